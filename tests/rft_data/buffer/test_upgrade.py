"""Buffers of schema version 2, whose annotations had no `masked`."""

import fcntl
from pathlib import Path

import lancedb
import pytest

from rft_data.buffer import Buffer
from rft_data.buffer.upgrade import upgrade
from rft_data.core.canonical import content_id
from rft_data.core.codec import to_table
from rft_data.core.errors import BusyError, IntegrityError, MissingFileError
from rft_data.core.groups import Lease
from rft_data.core.rows import now
from rft_data.core.schema import ANNOTATIONS
from tests.rft_data.conftest import make_experience


def version_2_buffer(root: Path) -> list[str]:
    """A buffer with rows, verdicts and a lost row, in the form of schema version 2; returns its files."""
    with Buffer(root) as buffer:
        buffer.append([make_experience(i) for i in range(4)])
        rows = [
            {
                "seq": seq,
                "experience_id": "",
                "pipeline_hash": "p",
                "verdict": "kept",
                "dropped_by": "",
                "reason": "",
                "advantage": [float(seq)],
                "shaped_reward": None,
                "masked": None,
                "stats": {},
                "created_at": now(),
            }
            for seq in (0, 1, 3)
        ]
        buffer.annotate(to_table(rows, ANNOTATIONS))
    db = lancedb.connect(str(root))
    db.open_table("experiences").delete("seq = 2")
    annotations = db.open_table("annotations").to_arrow().drop_columns(["masked"])
    db.drop_table("annotations")
    db.create_table("annotations", annotations)
    (root / "lost_rows.json").write_text('{"seqs": [[2, 2]]}')
    (root / "schema_version").write_text("2\n")
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.mark.slow
def test_upgrade_from_2_keeps_rows_verdicts_and_lost_rows(tmp_path: Path) -> None:
    files = version_2_buffer(tmp_path / "old")
    with pytest.raises(IntegrityError, match=r"has schema version 2.*rft buffer upgrade"):
        Buffer(tmp_path / "old")
    for _ in range(2):  # an upgrade that was interrupted may be repeated
        assert upgrade(tmp_path / "old", tmp_path / "new") == {"experiences": 3, "annotations": 3}
    after = sorted(str(p.relative_to(tmp_path / "old")) for p in (tmp_path / "old").rglob("*") if p.is_file())
    assert after == files
    with Buffer(tmp_path / "new") as buffer:
        assert buffer.read("annotations")["masked"].to_pylist() == [None] * 3
        lease = Lease("trainer", 0, 0, 0, (0, 3), ("g",), content_id([0, 3]))
        table = buffer.leased(lease, "p").table
        assert table["advantage"].to_pylist() == [[0.0], [3.0]]
        assert buffer.lost_rows() == {2}
        assert buffer.append([make_experience(9)]).seqs == (4,)
    with pytest.raises(IntegrityError, match="something else than a copy"):
        upgrade(tmp_path / "old", tmp_path / "new")


def as_version_2(root: Path) -> Path:
    with Buffer(root):
        pass
    (root / "schema_version").write_text("2\n")
    return root


@pytest.mark.slow
def test_upgrade_refuses_an_unknown_version(tmp_path: Path) -> None:
    version_2_buffer(tmp_path / "old")
    for version in ("1", "3", "7"):
        (tmp_path / "old" / "schema_version").write_text(f"{version}\n")
        with pytest.raises(IntegrityError, match=f"version {version}; .* copies version 2 into 3"):
            upgrade(tmp_path / "old", tmp_path / "other")
    with pytest.raises(MissingFileError, match="there is no buffer"):
        upgrade(tmp_path / "nothing", tmp_path / "other")


def test_only_a_buffer_that_can_be_upgraded_is_sent_to_upgrade(tmp_path: Path) -> None:
    as_version_2(tmp_path / "old")
    (tmp_path / "old" / "schema_version").write_text("1\n")
    with pytest.raises(IntegrityError, match="open it with the version of rft-data that wrote it"):
        Buffer(tmp_path / "old")


def test_upgrade_from_2_of_an_empty_buffer_is_told_from_a_foreign_folder(tmp_path: Path) -> None:
    old = as_version_2(tmp_path / "old")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "notes.txt").write_text("hi")
    for wrong in (tmp_path / "new", as_version_2(tmp_path / "another"), old):
        with pytest.raises(IntegrityError, match="something else than a copy"):
            upgrade(old, wrong)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["notes.txt"]
    (tmp_path / "new" / "notes.txt").unlink()
    for _ in range(2):
        upgrade(old, tmp_path / "new")
    with Buffer(tmp_path / "new") as buffer:
        assert len(buffer) == 0


@pytest.mark.slow
def test_upgrade_from_2_begins_an_interrupted_copy_again(tmp_path: Path) -> None:
    version_2_buffer(tmp_path / "old")
    (tmp_path / "new.part" / "experiences.lance").mkdir(parents=True)
    (tmp_path / "new.part" / "stale").write_text("half")
    upgrade(tmp_path / "old", tmp_path / "new")
    assert not (tmp_path / "new.part").exists()
    assert not (tmp_path / "new" / "stale").exists()


@pytest.mark.slow
def test_upgrade_from_2_waits_for_no_writer(tmp_path: Path) -> None:
    version_2_buffer(tmp_path / "old")
    with (tmp_path / "old" / "owner.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="is being written to"):
            upgrade(tmp_path / "old", tmp_path / "new")
    assert not (tmp_path / "new").exists()
