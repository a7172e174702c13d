"""Views of a run beside its writer: what did not change is not read again, and what changed is seen."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rft_data.buffer import Buffer
from rft_data.buffer.parts import Part
from rft_data.core.rows import now
from rft_data.core.schema import TABLES
from rft_data.web.runs import metrics, outcomes


def group(number: int, outcome: str, dropped_by: str = "", run_id: str = "run") -> dict[str, object]:
    known: dict[str, object] = {
        "group_id": f"{run_id}/{number}",
        "run_id": run_id,
        "ordinal": number,
        "outcome": outcome,
        "dropped_by": dropped_by,
        "rewards": [],
        "seqs": [],
        "created_at": now(),
    }
    empty: dict[str, object] = {"int64": 0, "string": ""}
    return {field.name: known.get(field.name, empty.get(str(field.type))) for field in TABLES["groups"][0]}


def number(step: int, value: float) -> dict[str, object]:
    row = {"run_id": "run", "step": step, "role": "trainer", "key": "reward", "value": value}
    return {field.name: row.get(field.name, now()) for field in TABLES["metrics"][0]}


@pytest.fixture
def buffers(tmp_path: Path) -> Iterator[tuple[Buffer, Buffer]]:
    """One that writes, and one that reads."""
    with Buffer(tmp_path / "buffer") as owner, Buffer(tmp_path / "buffer", read_only=True) as buffer:
        yield owner, buffer


@pytest.mark.slow
def test_groups_are_counted_once_and_new_ones_are_seen(
    buffers: tuple[Buffer, Buffer], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, buffer = buffers
    read: list[int] = []
    whole = Part.read

    def noted(self: Part, *args: Any, **options: Any) -> Any:
        read.append(self.rows)
        return whole(self, *args, **options)

    monkeypatch.setattr(Part, "read", noted)
    assert outcomes(buffer, "run") == {}
    owner.add_rows("groups", [group(n, "arrived") for n in range(5)])
    owner.add_rows("groups", [group(5, "arrived", "some_filter"), group(0, "failed", run_id="other")])
    assert outcomes(buffer, "run") == {"arrived": 5, "dropped by some_filter": 1}
    assert outcomes(buffer, "other") == {"failed": 1}
    read.clear()
    owner.add_rows("groups", [group(n, "failed") for n in range(6, 9)])
    assert list(outcomes(buffer, "run").items()) == [
        ("arrived", 5),
        ("failed", 3),
        ("dropped by some_filter", 1),
    ]
    assert outcomes(buffer, "run")["failed"] == 3
    assert read == [3]


def test_numbers_are_read_again_where_there_are_new_ones(
    buffers: tuple[Buffer, Buffer], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, buffer = buffers
    names = ["trainer/reward"]
    assert metrics(buffer, "run", names) is None
    owner.add_rows("metrics", [number(step, step / 2) for step in range(3)])
    found = metrics(buffer, "run", names)
    assert found is not None
    assert found["trainer/reward"].tolist() == [0.0, 0.5, 1.0]
    assert metrics(buffer, "other", names) is None
    assert metrics(buffer, "run", names) is found  # not read again
    owner.add_rows("groups", [group(0, "arrived")])
    assert metrics(buffer, "run", names) is found
    owner.add_rows("metrics", [number(2, 9.0), number(3, 1.5)])
    newer = metrics(buffer, "run", names)
    assert newer is not None
    assert newer["trainer/reward"].tolist() == [0.0, 0.5, 9.0, 1.5]
