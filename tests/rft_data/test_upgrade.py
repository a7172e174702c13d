"""Buffers of schema version 1, which had blake2b digests and fewer columns."""

from datetime import UTC, datetime
from pathlib import Path

import lancedb
import pyarrow as pa
import pytest

from rft_data.buffer import Buffer
from rft_data.buffer.upgrade import upgrade
from rft_data.codec import to_experiences, to_table
from rft_data.errors import IntegrityError, MissingFileError
from rft_data.ledger import Ledger
from rft_data.rows import canonical_json, now
from rft_data.schema import EXPERIENCES, LEASES
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
