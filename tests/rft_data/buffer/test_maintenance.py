"""Compaction, what it leaves behind, and the fsync barrier."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rft_data.buffer import Buffer, maintenance
from rft_data.buffer.verdicts import Verdicts
from rft_data.core.errors import RftError
from tests.rft_data.conftest import make_experience


def fragments(buffer: Buffer, name: str = "experiences") -> int:
    return len(buffer._store.head(name).get_fragments())


@pytest.mark.slow
def test_many_commits_do_not_pile_up(buffer: Buffer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "COMPACT_EVERY", 12)
    for number in range(60):
        buffer.append([make_experience(number)])
        buffer.add_rows("metrics", [{"run_id": "r", "role": "run", "step": number, "key": "k", "value": 0.0}])
    assert fragments(buffer) <= 12 + 8
    assert fragments(buffer, "metrics") <= 12 + 8
    order = [59, 0, 31, 0]
    rows = buffer.take(order)
    assert rows.column("seq").to_pylist() == order
    assert rows.column("member").to_pylist() == order
    steps = buffer.read("metrics", ["step"]).column("step").to_pylist()
    assert steps == list(range(60))


@pytest.mark.slow
def test_superseded_manifests_go_and_no_file_with_them(
    buffer: Buffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("COMPACT_EVERY", 10), ("CLEAN_EVERY", 10), ("NEWEST_VERSIONS", 4)):
        monkeypatch.setattr(maintenance, name, value)
    buffer.append([make_experience(0)])
    location = buffer._store.uri("experiences")
    reader = lance.dataset(location)
    for number in range(1, 60):
        buffer.append([make_experience(number)])
    buffer.close()  # an append is answered before the upkeep that follows it
    versions = {version["version"] for version in lance.dataset(location).versions()}
    assert reader.version not in versions
    assert len(versions) < 40
    named = {
        file.path
        for version in versions
        for fragment in lance.dataset(location, version=version).get_fragments()
        for file in fragment.data_files()
    }
    assert named == {path.name for path in (buffer.root / "experiences.lance" / "data").glob("*.lance")}
    assert reader.to_table(columns=["seq"]).column("seq").to_pylist() == [0]
    with Buffer(buffer.root, read_only=True) as again:
        assert again.read("experiences", ["seq"]).column("seq").to_pylist() == list(range(60))


@pytest.mark.slow
def test_versions_go_when_their_time_is_over(buffer: Buffer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "COMPACT_EVERY", 10)
    monkeypatch.setattr(maintenance, "KEEP_VERSIONS_S", 0.0)
    for number in range(30):
        buffer.append([make_experience(number)])
    assert len(buffer) == 30
    buffer.close()
    table = buffer.root / "experiences.lance"
    assert len(list((table / "_versions").glob("*.manifest"))) <= 12
    assert len(list((table / "data").glob("*.lance"))) <= 12


@pytest.mark.slow
def test_compaction_keeps_row_numbers_ids_and_digests(buffer: Buffer) -> None:
    for number in range(20):
        buffer.append([make_experience(number)])
    before = buffer.read("experiences")
    report = buffer.compact()
    assert report["experiences"]["fragments_before"] == 20
    assert report["experiences"]["fragments_after"] == 1
    buffer.close()
    with Buffer(buffer.root) as again:
        assert again.read("experiences").equals(before)
        assert again.take(list(range(20))).equals(before)
        assert again.append([make_experience(20)]).seqs == (20,)
        assert again._store.rows("experiences").take([20]).column("seq").to_pylist() == [20]


@pytest.mark.slow
def test_janitor_removes_what_no_version_names(buffer: Buffer) -> None:
    buffer.append([make_experience(0)])
    data = buffer.root / "experiences.lance" / "data"
    [stored] = data.iterdir()
    orphan = data / ("0" * 24 + stored.name[24:])
    orphan.write_bytes(stored.read_bytes())
    assert buffer.compact()["experiences"]["orphan_bytes"] == stored.stat().st_size
    assert list(data.iterdir()) == [stored]
    assert buffer.take([0]).num_rows == 1


@pytest.mark.parametrize("durability", ["process", "power"])
def test_power_durability_syncs_every_file_of_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    synced: set[str] = set()
    real = os.fsync

    def recorded(handle: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    with Buffer(tmp_path / "b", durability=durability) as buffer:
        buffer.append([make_experience(0)])
        table = buffer.root / "experiences.lance"
        before = {path for path in table.rglob("*") if path.is_file()}
        monkeypatch.setattr(os, "fsync", recorded)
        buffer.append([make_experience(1)])
        written = {str(path) for path in table.rglob("*") if path.is_file() and path not in before}
        assert len(written) == 3, "data, transaction and manifest"
        folders = {str(table / name) for name in ("data", "_transactions", "_versions")}
        assert synced & (written | folders) == (written | folders if durability == "power" else set())


def test_a_closed_buffer_says_so(buffer: Buffer) -> None:
    buffer.append([make_experience(0)])
    buffer.close()
    with pytest.raises(RftError, match="the buffer is closed"):
        buffer.append([make_experience(1)])


def judged(*rows: tuple[int, str, list[float] | None], pipeline: str = "p") -> pa.Table:
    seqs, verdicts, advantages = zip(*rows, strict=True)
    return pa.table(
        {
            "seq": pa.array(seqs, pa.int64()),
            "pipeline_hash": [pipeline] * len(rows),
            "verdict": list(verdicts),
            "advantage": pa.array(advantages, pa.list_(pa.float32())),
            "masked": pa.nulls(len(rows), pa.bool_()),
            "shaped_reward": pa.nulls(len(rows), pa.float32()),
        }
    )


def test_verdicts_fold_newest_last_with_one_value_or_one_per_token() -> None:
    folded = Verdicts("p")
    folded.fold(judged((0, "kept", [1.0]), (3, "kept", [0.5, -0.5]), (4, "dropped", None)))
    folded.fold(judged((0, "kept", [9.0]), pipeline="another"))
    asked = np.array([3, 0])
    assert folded.missing(np.array([0, 1, 3, 4, 5000])) == [1, 4, 5000]
    assert folded.advantages(asked).to_pylist() == [[0.5, -0.5], [1.0]]
    folded.fold(judged((3, "kept", [2.0]), (0, "kept", [0.25, 0.75])))
    assert folded.advantages(asked).to_pylist() == [[2.0], [0.25, 0.75]]
    folded.fold(judged((0, "kept", [-1.0]), (3, "quarantined", None)))
    assert folded.missing(asked) == [3]
    assert folded.advantages(np.array([0])).to_pylist() == [[-1.0]]


@pytest.mark.slow
def test_power_durability_holds_over_a_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    real = os.fsync

    def recorded(handle: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    with Buffer(tmp_path / "b", durability="power") as buffer:
        for number in range(4):
            buffer.append([make_experience(number)])
        before = set((buffer.root / "experiences.lance" / "data").iterdir())
        monkeypatch.setattr(os, "fsync", recorded)
        buffer.compact()
        merged = set((buffer.root / "experiences.lance" / "data").iterdir()) - before
        assert merged
        assert {str(path) for path in merged} <= synced


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(sizes=st.lists(st.integers(1, 40), min_size=2, max_size=14), indexed=st.integers(0, 14))
def test_compaction_keeps_the_order_whatever_the_sizes_and_the_end_of_an_index(
    sizes: list[int], indexed: int
) -> None:
    """Lance gives a merged fragment a new id, and reads fragments in the order of their ids."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch, Buffer(folder) as buffer:
        patch.setattr(maintenance, "TIERS", (8, 24, 72))
        patch.setattr(maintenance, "_CROWD", 2)
        patch.setattr(maintenance, "COMPACT_EVERY", 3)
        written = 0
        for number, size in enumerate(sizes):
            rows = [{"run_id": "r", "role": "run", "step": i, "key": "k", "value": 0.0} for i in range(size)]
            buffer.add_rows("metrics", [{**row, "step": written + row["step"]} for row in rows])
            written += size
            if number == indexed:
                lance.dataset(buffer._store.uri("metrics")).create_scalar_index("key", "BTREE")
                buffer._store.forget_head("metrics")
            assert buffer.read("metrics", ["step"]).column("step").to_pylist() == list(range(written))
        assert fragments(buffer, "metrics") <= 12
        maintenance.compact(buffer._store, "metrics", crowd=1)
        assert buffer.read("metrics", ["step"]).column("step").to_pylist() == list(range(written))
        assert fragments(buffer, "metrics") <= 4 or indexed < len(sizes)
