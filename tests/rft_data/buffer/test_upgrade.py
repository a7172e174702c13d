"""Buffers of schema version 1, which had blake2b digests and fewer columns, and of 2, without `masked`."""

import fcntl
from datetime import UTC, datetime
from pathlib import Path

import lancedb
import pyarrow as pa
import pytest

from rft_data.buffer import Buffer
from rft_data.buffer.upgrade import upgrade
from rft_data.core.codec import to_experiences, to_table
from rft_data.core.errors import BusyError, IntegrityError, MissingFileError
from rft_data.core.rows import Lease, canonical_json, content_id, now
from rft_data.core.schema import ANNOTATIONS, EXPERIENCES, LEASES
from rft_data.sampler.ledger import Ledger
from tests.rft_data.conftest import make_experience

CHANGES = (
    {},
    {"reward": None, "unscored_reason": "é"},
    {
        "source": "expert",
        "token_ids": None,
        "action_mask": None,
        "logprobs": None,
        "version_min": None,
        "version_max": None,
        "version_spans": (),
    },
)
V1_DIGESTS = [  # as version 0.2 of this package computed them
    "e9cbee471168451ecc708f3b36370d66",
    "f6b481ca261d905853b2b6e2fd23ea12",
    "ee033908b10dc078ba8a9a97e9b7e72a",
]
ADDED = ["prompt_messages", "tools", "teacher_logprobs", "environment", "payloads", "metadata"]


def old_buffer(root: Path, digests: list[str]) -> list:
    rows = [
        make_experience(i, created_at=datetime(2026, 11, 1, tzinfo=UTC), **changes)
        for i, changes in enumerate(CHANGES)
    ]
    table = to_table(rows, EXPERIENCES).drop_columns(ADDED)
    messages = pa.array([canonical_json([dict(m) for m in row.messages]) for row in rows])
    place = table.schema.get_field_index("messages")
    table = table.set_column(place, EXPERIENCES.field("messages"), messages)
    table = table.append_column(EXPERIENCES.field("seq"), pa.array([0, 1, 2]))
    table = table.append_column(EXPERIENCES.field("digest"), pa.array(digests))
    order = [name for name in EXPERIENCES.names if name not in ADDED]
    db = lancedb.connect(str(root), storage_options={"new_table_enable_stable_row_ids": "true"})
    db.create_table("experiences", table.select(order))
    lease = {
        "lease_id": "run/trainer/0",
        "run_id": "run",
        "consumer": "trainer",
        "step": 0,
        "epoch": 0,
        "version": 3,
        "seqs": [0, 1],
        "group_ids": ["run/g0"],
        "digest": "d",
        "created_at": now(),
    }
    kinds = {field.name: field.type for field in LEASES}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in lease])
    db.create_table("leases", pa.Table.from_pylist([lease], schema=schema))
    (root / "schema_version").write_text("1\n")
    return rows


def test_upgrade_keeps_rows_numbers_and_leases(tmp_path: Path) -> None:
    rows = old_buffer(tmp_path / "old", V1_DIGESTS)
    with pytest.raises(IntegrityError, match="rft buffer upgrade"):
        Buffer(tmp_path / "old")
    for _ in range(2):  # an upgrade that was interrupted may be repeated
        assert upgrade(tmp_path / "old", tmp_path / "new") == {"experiences": 3, "leases": 1}
    with Buffer(tmp_path / "new") as buffer:
        stored = to_experiences(buffer.take([0, 1, 2]))
        assert [row.completion_text for row in stored] == [row.completion_text for row in rows]
        assert [row.reward for row in stored] == [1.0, None, 1.0]
        assert [row.prompt_messages for row in stored] == [1, 1, 1]
        [lease] = Ledger(buffer, "run", 1).leases()
        assert (lease.step, lease.seqs, lease.group_ids) == (0, (0, 1), ("run/g0",))
        assert buffer.append([make_experience(9)]).seqs == (3,)


def test_upgrade_refuses_a_damaged_row_and_an_unknown_version(tmp_path: Path) -> None:
    old_buffer(tmp_path / "old", [V1_DIGESTS[0], V1_DIGESTS[0], V1_DIGESTS[2]])
    with pytest.raises(IntegrityError, match="row 1 does not match its digest"):
        upgrade(tmp_path / "old", tmp_path / "new")
    (tmp_path / "old" / "schema_version").write_text("7\n")
    with pytest.raises(IntegrityError, match="schema version 7"):
        upgrade(tmp_path / "old", tmp_path / "other")
    with pytest.raises(MissingFileError, match="there is no buffer"):
        upgrade(tmp_path / "nothing", tmp_path / "other")


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


def test_upgrade_from_2_begins_an_interrupted_copy_again(tmp_path: Path) -> None:
    version_2_buffer(tmp_path / "old")
    (tmp_path / "new.part" / "experiences.lance").mkdir(parents=True)
    (tmp_path / "new.part" / "stale").write_text("half")
    upgrade(tmp_path / "old", tmp_path / "new")
    assert not (tmp_path / "new.part").exists()
    assert not (tmp_path / "new" / "stale").exists()


def test_upgrade_from_2_waits_for_no_writer(tmp_path: Path) -> None:
    version_2_buffer(tmp_path / "old")
    with (tmp_path / "old" / "owner.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="is being written to"):
            upgrade(tmp_path / "old", tmp_path / "new")
    assert not (tmp_path / "new").exists()
