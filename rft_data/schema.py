"""One Arrow schema per table of the hub, and the way between rows and tables.

This is the truth about stored data: column order, types, which columns may be null, and what each
means (`doc` in the field's metadata). Nothing here touches a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from rft_data.rows import Experience, Task, canonical_json

SCHEMA_VERSION = 1

_TIME = pa.timestamp("us", tz="UTC")
_SPANS = pa.list_(
    pa.struct([pa.field("version", pa.int64()), pa.field("start", pa.int32()), pa.field("end", pa.int32())])
)


def _field(name: str, kind: pa.DataType, doc: str, *, null: bool = False, is_json: bool = False) -> pa.Field:
    metadata = {"doc": doc, "json": "1"} if is_json else {"doc": doc}
    return pa.field(name, kind, nullable=null, metadata=metadata)


def _text(name: str, doc: str, *, null: bool = False, is_json: bool = False) -> pa.Field:
    return _field(name, pa.string(), doc, null=null, is_json=is_json)


def _int(name: str, doc: str, *, null: bool = False) -> pa.Field:
    return _field(name, pa.int64(), doc, null=null)


def _float(name: str, doc: str, *, null: bool = False) -> pa.Field:
    return _field(name, pa.float32(), doc, null=null)


_CREATED = _field("created_at", _TIME, "when the row was made, UTC")

RUNS = pa.schema(
    [
        _text("run_id", "name of the run"),
        _text("recipe", "the resolved recipe", is_json=True),
        _text("recipe_hash", "content hash of the resolved recipe"),
        _text("code_version", "version of this package"),
        _int("attempt", "0 for the first start, one more for each restart"),
        _CREATED,
    ]
)

TASKS = pa.schema(
    [
        _text("taskset", "name of the taskset"),
        _text("task_id", "content hash of prompt, answer and metadata"),
        _text("messages", "the prompt, as chat messages", is_json=True),
        _text("answer", "reference answer", null=True),
        _text("split", "train or heldout"),
        _float("difficulty", "offline difficulty, larger is harder", null=True),
        _text("metadata", "what reward or workflow need beside the answer", is_json=True),
        _CREATED,
    ]
)

EXPERIENCES = pa.schema(
    [
        _int("seq", "dense row number, given at commit; equals Lance's stable row id"),
        _text("experience_id", "hash(run, task, attempt, group, member, turn)"),
        _text("source", "rollout, expert, import, eval or probe; eval rows are never leased"),
        _text("run_id", "run that made it"),
        _text("taskset", "taskset of its task"),
        _text("task_id", "its task"),
        _text("group_id", "rollouts of one task sampled together"),
        _int("attempt", "restarts of the run before it was sampled"),
        _int("member", "place in the group, 0-based"),
        _int("turn", "step of a step-wise workflow, else 0"),
        _text("explorer_id", "who sampled it"),
        _field("token_ids", pa.list_(pa.int32()), "prompt and completion, T ids", null=True),
        _int("prompt_length", "tokens before the first sampled one"),
        _field(
            "action_mask", pa.list_(pa.int8()), "T values, 1 where the policy sampled the token", null=True
        ),
        _field("logprobs", pa.list_(pa.float32()), "T values, nats, of the tempered distribution", null=True),
        _int("version_min", "lowest policy version among sampled tokens", null=True),
        _int("version_max", "highest policy version among sampled tokens", null=True),
        _field("version_spans", _SPANS, "which version sampled which tokens, indices into token_ids"),
        _text("messages", "the conversation, as chat messages", is_json=True),
        _text("completion_text", "the decoded completion"),
        _text("finish_reason", "stop, length, abort, or empty when not sampled"),
        _float("reward", "null until known", null=True),
        _text("reward_parts", "reward by component, before weights", is_json=True),
        _text("unscored_reason", "why there is no reward", null=True),
        _text("sampling", "sampling parameters", is_json=True),
        _text("tokenizer_hash", "content hash of the tokenizer and chat template"),
        _CREATED,
        _text("digest", "blake2b-128 of every column but seq, created_at and digest"),
    ]
)

GROUPS = pa.schema(
    [
        _text("group_id", "its ticket's group"),
        _text("run_id", "run that made it"),
        _int("ordinal", "order of admission in the run, 0-based"),
        _int("attempt", "restarts of the run before it was admitted"),
        _text("taskset", "taskset of its task"),
        _text("task_id", "its task"),
        _int("version", "policy version at admission"),
        _int("version_min", "lowest policy version in the group"),
        _text("outcome", "arrived, failed or cancelled"),
        _field("rewards", pa.list_(pa.float32()), "one per rollout, null where unscored"),
        _field("seqs", pa.list_(pa.int64()), "rows training may use; empty when dropped or failed"),
        _text("dropped_by", "operator that dropped the whole group, or empty"),
        _text("error", "why it failed, or empty"),
        _CREATED,
    ]
)

ANNOTATIONS = pa.schema(
    [
        _int("seq", "row of the experience"),
        _text("experience_id", "the experience judged"),
        _text("pipeline_hash", "the operators and arguments that judged it"),
        _text("verdict", "kept, dropped or quarantined"),
        _text("dropped_by", "operator that dropped it, or empty"),
        _text("reason", "why it was dropped, or empty"),
        _field("advantage", pa.list_(pa.float32()), "one value, or T values; null when dropped", null=True),
        _float("shaped_reward", "reward after shaping; null when no operator shaped it", null=True),
        _text("stats", "what operators computed beside", is_json=True),
        _CREATED,
    ]
)

LEASES = pa.schema(
    [
        _text("lease_id", "consumer/step: one lease for each"),
        _text("run_id", "run it belongs to"),
        _text("consumer", "who trains on it"),
        _int("step", "optimizer step it is for"),
        _int("epoch", "ledger epoch that granted it"),
        _int("version", "policy version the trainer held"),
        _field("seqs", pa.list_(pa.int64()), "rows, in order"),
        _field("group_ids", pa.list_(pa.string()), "whole groups, in order"),
        _text("digest", "content hash of seqs"),
        _CREATED,
    ]
)

CONSUMED = pa.schema(
    [
        _text("lease_id", "the lease"),
        _text("run_id", "run it belongs to"),
        _text("consumer", "who trained on it"),
        _int("step", "optimizer step"),
        _int("checkpoint_step", "the checkpoint that holds its gradient step"),
        _CREATED,
    ]
)

VERSIONS = pa.schema(
    [
        _text("run_id", "run that made it"),
        _int("version", "policy version, only grows"),
        _int("step", "optimizer steps behind the weights"),
        _text("path", "weight directory, relative to the run"),
        _text("manifest_digest", "digest of the directory's manifest"),
        _int("rows", "experiences in the buffer when it was published"),
        _CREATED,
    ]
)

METRICS = pa.schema(
    [
        _text("run_id", "run that made it"),
        _text("role", "trainer, explorer, ops, sampler, selector or run"),
        _int("step", "optimizer step"),
        _text("key", "name of the metric"),
        _field("value", pa.float64(), "its value"),
        _CREATED,
    ]
)

QUARANTINE = pa.schema(
    [
        _text("experience_id", "id of the refused row, if it had one"),
        _text("reason", "why it was refused"),
        _text("row", "the row as far as JSON can hold it", is_json=True),
        _CREATED,
    ]
)

TABLES: Mapping[str, tuple[pa.Schema, str | None]] = {
    "runs": (RUNS, None),
    "tasks": (TASKS, None),
    "experiences": (EXPERIENCES, "experience_id"),
    "groups": (GROUPS, "group_id"),
    "annotations": (ANNOTATIONS, None),
    "leases": (LEASES, "lease_id"),
    "consumed": (CONSUMED, None),
    "versions": (VERSIONS, None),
    "metrics": (METRICS, None),
    "quarantine": (QUARANTINE, None),
}
"""Table name to (schema, primary key column or None)."""


def _is_json(field: pa.Field) -> bool:
    return (field.metadata or {}).get(b"json") == b"1"


def to_table(rows: Sequence[Any], schema: pa.Schema) -> pa.Table:
    """Rows (dataclasses or mappings) as a table of `schema`; JSON columns are encoded.

    A column that the schema has and the rows lack is left out (seq and digest, given at commit).
    Raises: ValueError when a JSON column holds NaN or an infinity; pa.ArrowException on a wrong type.
    """
    if not rows:
        return schema.empty_table()
    read: Callable[[Any, str], Any] = (
        (lambda row, name: row[name]) if isinstance(rows[0], Mapping) else getattr
    )
    present = [
        f for f in schema if (f.name in rows[0] if isinstance(rows[0], Mapping) else hasattr(rows[0], f.name))
    ]
    arrays = []
    for field in present:
        values = [read(row, field.name) for row in rows]
        if _is_json(field):
            values = [canonical_json(_plain(value)) for value in values]
        elif field.name == "version_spans":
            values = [[{"version": v, "start": s, "end": e} for v, s, e in spans] for spans in values]
        arrays.append(pa.array(values, type=field.type))
    return pa.Table.from_arrays(arrays, schema=pa.schema(present))


def _plain(value: Any) -> Any:
    """Mappings and tuples as dicts and lists, for JSON."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value


def _columns(table: pa.Table, names: Sequence[str]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = table.select([n for n in names if n in table.column_names]).to_pylist()
    return out


def to_tasks(table: pa.Table) -> list[Task]:
    """The rows of a TASKS table."""
    names = ["taskset", "messages", "answer", "split", "difficulty", "metadata"]
    return [
        Task(
            **{**row, "messages": tuple(json.loads(row["messages"])), "metadata": json.loads(row["metadata"])}
        )
        for row in _columns(table, names)
    ]


def to_experiences(table: pa.Table) -> list[Experience]:
    """The rows of an EXPERIENCES table (seq and digest are the table's, not the row's)."""
    names = [f.name for f in EXPERIENCES if f.name not in ("seq", "digest")]
    rows = []
    for row in _columns(table, names):
        for name in ("messages", "reward_parts", "sampling"):
            row[name] = json.loads(row[name])
        row["version_spans"] = tuple((s["version"], s["start"], s["end"]) for s in row["version_spans"])
        rows.append(Experience(**row))
    return rows
