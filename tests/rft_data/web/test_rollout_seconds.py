"""A rollout's seconds, and what the trainer measured in the steps of a row."""

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from rft_data.buffer import Buffer
from rft_data.web.app import make_app
from rft_data.web.rollout_seconds import WIDTH, shares
from rft_data.web.subjects import Subjects
from tests.rft_data.conftest import make_experience


def test_the_bar_has_every_phase_and_what_is_left() -> None:
    spent = {"all": 4.0, "generating": 2.0, "waiting": 0.5, "rewarding": 0.5}
    found = shares(json.dumps({"rollout_seconds": spent}))
    assert [(one.phase, one.seconds) for one in found] == [
        ("waiting", 0.5),
        ("generating", 2.0),
        ("rewarding", 0.5),
        ("rest", 1.0),
    ]
    assert [one.x for one in found] == [0.0, 75.0, 375.0, 450.0]
    assert sum(one.width for one in found) == pytest.approx(WIDTH)
    beside = shares(json.dumps({"rollout_seconds": {"all": 1.0, "generating": 1.0, "acting": 1.0}}))
    assert [one.width for one in beside] == [300.0, 300.0, 0.0], "phases that overlap"


@pytest.mark.parametrize(
    "held",
    [None, "{}", '{"rollout_seconds": "long"}', '{"rollout_seconds": {"all": 0}}']
    + [json.dumps({"rollout_seconds": one}) for one in ({"all": "1"}, {"all": -1}, {"generating": 1.0}, [])],
)
def test_what_is_no_clock_is_no_bar(held: str | None) -> None:
    assert shares(held) == []


@pytest.mark.slow
def test_a_row_shows_the_seconds_of_its_rollout(tmp_path: Path) -> None:
    spent = {"all": 3.0, "generating": 2.5}
    with Buffer(tmp_path / "buffer") as buffer:
        buffer.append([make_experience(0, metadata={"rollout_seconds": spent}), make_experience(1)])
    with Subjects([str(tmp_path / "buffer")]) as subjects:
        page = TestClient(make_app(subjects, None, "f"))
        assert "generating 2.5, the rest 0.5." in page.get("/s/buffer/rows/0").text
        assert "No seconds of generating" in page.get("/s/buffer/rows/1").text


@pytest.mark.slow
def test_a_trained_row_has_the_numbers_of_its_step(page: TestClient, runs: Path) -> None:
    with Buffer(runs / "run" / "buffer", read_only=True) as buffer:
        [lease] = [row for row in buffer.read("leases").to_pylist() if row["kind"] == "grant"][:1]
        metrics = buffer.read("metrics").to_pylist()
    [entropy] = [
        row["value"]
        for row in metrics
        if (row["role"], row["key"], row["step"]) == ("trainer", "entropy", lease["step"])
    ]
    text = page.get(f"/s/run/rows/{lease['seqs'][0]}").text
    assert f'href="/s/run/steps/{lease["step"]}">step {lease["step"]}</a>, over all its rows' in text
    assert f"</a> {entropy:.4g}" in text
