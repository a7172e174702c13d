"""One Arrow schema per table of the hub.

This is the truth about stored data: column order, types, which columns may be null, what each means
and who fills it (`doc` and `by` in the field's metadata, from which docs/schema.md is written).
Nothing here touches a file.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

SCHEMA_VERSION = 3
OLDEST_COPIED = 2
"""Buffers of this schema version and later ones can be copied to the present version."""

_TIME = pa.timestamp("us", tz="UTC")
_SPANS = pa.list_(
    pa.struct([pa.field("version", pa.int64()), pa.field("start", pa.int32()), pa.field("end", pa.int32())])
)


_ZSTD = {"lance-encoding:compression": "zstd", "lance-encoding:compression-level": "1"}
"""For long texts: as small as Lance's own choice (FSST) in half of its time, measured."""
_TOKEN = pa.field("item", pa.int32(), metadata={"lance-encoding:rle-threshold": "0.0"})
"""Token ids have no runs; searching for runs would cost Lance 5 us a row."""
_LOGPROB = pa.field("item", pa.float32(), metadata={"lance-encoding:compression": "none"})
"""Logprobs do not compress; trying would cost Lance 5 us a row."""


def _field(
    name: str, kind: pa.DataType, doc: str, *, by: str = "", null: bool = False, is_json: bool = False
) -> pa.Field:
    metadata = {"doc": doc, **({"by": by} if by else {}), **({"json": "1"} if is_json else {})}
    if name in ("messages", "completion_text"):
        metadata |= _ZSTD
    return pa.field(name, kind, nullable=null, metadata=metadata)


def _text(name: str, doc: str, *, by: str = "", null: bool = False, is_json: bool = False) -> pa.Field:
    return _field(name, pa.string(), doc, by=by, null=null, is_json=is_json)


def _int(name: str, doc: str, *, by: str = "", null: bool = False) -> pa.Field:
    return _field(name, pa.int64(), doc, by=by, null=null)


def _float(name: str, doc: str, *, by: str = "", null: bool = False) -> pa.Field:
    return _field(name, pa.float32(), doc, by=by, null=null)


def _list(name: str, item: pa.DataType | pa.Field, doc: str, *, by: str = "", null: bool = False) -> pa.Field:
    return _field(name, pa.list_(item), doc, by=by, null=null)


_ENGINE = "engine"

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
        _text("workflow", "workflow that plays it; null: the recipe's", null=True),
        _text("reward", "reward that scores it; null: the recipe's", null=True),
        _list("tags", pa.string(), "labels a selector or a filter may use"),
        _text(
            "parent_experience_id",
            "the experience it was made from; null for a task from a source",
            null=True,
        ),
        _text("metadata", "what reward or workflow need beside the answer", is_json=True),
        _CREATED,
    ]
)

TASK_STATE = pa.schema(
    [
        _text("run_id", "run whose selector this is", by="loop"),
        _int("step", "optimizer step at which it was taken", by="loop"),
        _text(
            "selector", "the selector's whole state: posteriors, RNG, position", by="selector", is_json=True
        ),
        _CREATED,
    ]
)

EXPERIENCES = pa.schema(
    [
        _int("seq", "row number: dense, given at commit, equal to Lance's stable row id", by="owner"),
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
        _list("token_ids", _TOKEN, "prompt and completion, T ids", by=_ENGINE, null=True),
        _int("prompt_length", "tokens before the first sampled one", by="workflow"),
        _list(
            "action_mask",
            pa.int8(),
            "T values, 1 where the policy sampled the token",
            by="workflow",
            null=True,
        ),
        _list(
            "logprobs",
            _LOGPROB,
            "T values, nats, of the tempered distribution; 0 where the mask is 0",
            by=_ENGINE,
            null=True,
        ),
        _int("version_min", "lowest policy version among sampled tokens", by=_ENGINE, null=True),
        _int("version_max", "highest policy version among sampled tokens", by=_ENGINE, null=True),
        _field(
            "version_spans", _SPANS, "which version sampled which tokens, indices into token_ids", by=_ENGINE
        ),
        _text("messages", "the conversation, as chat messages", by="workflow", is_json=True),
        _int(
            "prompt_messages",
            "how many of `messages` are the prompt; the rest is the completion",
            by="workflow",
        ),
        _text("tools", "tool definitions offered to the policy", by="workflow", null=True, is_json=True),
        _text("completion_text", "the decoded completion", by=_ENGINE),
        _text("finish_reason", "stop, length, abort, or empty when not sampled", by=_ENGINE),
        _float(
            "reward",
            "as it was scored: the weighted sum of its parts; null until known (delayed or unscored). What "
            "counts is the effective reward: `shaped_reward` of the newest annotation where set, else this",
            by="reward",
            null=True,
        ),
        _text("reward_parts", "reward by component, before weights", by="reward", is_json=True),
        _text("unscored_reason", "why there is no reward", by="reward", null=True),
        _list("teacher_logprobs", _LOGPROB, "T values, nats, a teacher's logprobs of token_ids", null=True),
        _text("environment", "key of the environment state it started from", by="workflow", null=True),
        _list("payloads", pa.string(), "ids in `payloads` of the images or audio that `messages` refers to"),
        _text("sampling", "sampling parameters", by=_ENGINE, is_json=True),
        _text("tokenizer_hash", "content hash of the tokenizer and chat template", by="workflow"),
        _text("metadata", "what an importer or a workflow keeps beside", is_json=True),
        _CREATED,
        _text("digest", "xxh3-64 of the columns a gradient step depends on, and of the others", by="owner"),
    ]
)

INCOMING = pa.schema([field for field in EXPERIENCES if field.name not in ("seq", "digest")])
"""The columns of an append: the owner adds the row number and the digest."""

PREFERENCES = pa.schema(
    [
        _text("preference_id", "content hash of prompt, chosen and rejected"),
        _text("source", "import, mined or human"),
        _text("taskset", "taskset of its task, or the name of the imported set"),
        _text("task_id", "its task, or the hash of the prompt"),
        _text(
            "messages", "the prompt, as chat messages; empty when it is inside the two answers", is_json=True
        ),
        _text("chosen", "the better answer, as chat messages", is_json=True),
        _text("rejected", "the worse answer, as chat messages", is_json=True),
        _text("tools", "tool definitions", null=True, is_json=True),
        _text("chosen_experience_id", "the stored rollout it came from", null=True),
        _text("rejected_experience_id", "the stored rollout it came from", null=True),
        _float("chosen_score", "reward or rating of the better answer", null=True),
        _float("rejected_score", "reward or rating of the worse answer", null=True),
        _text("author", "who or what preferred, or empty"),
        _text("metadata", "what an importer keeps beside", is_json=True),
        _CREATED,
    ]
)

GROUPS = pa.schema(
    [
        _text("group_id", "its ticket's group"),
        _text("run_id", "run that made it"),
        _int("ordinal", "order of admission in the run, 0-based"),
        _int("round", "round of admission its task was drawn in, 0-based"),
        _int("attempt", "restarts of the run before it was admitted"),
        _text("taskset", "taskset of its task"),
        _text("task_id", "its task"),
        _int("version", "policy version at admission"),
        _int("version_min", "lowest policy version in the group"),
        _text("outcome", "arrived, failed or cancelled"),
        _list(
            "rewards",
            pa.float32(),
            "effective reward of each rollout (its last row's), in order of seq; null where it has none",
        ),
        _list("seqs", pa.int64(), "rows training may use; empty when dropped or failed"),
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
        _list("advantage", pa.float32(), "one value, or T values; null when dropped", null=True),
        _float(
            "shaped_reward",
            "the effective reward, where operators shaped the stored one or feedback filled it in (also of "
            "rows they then dropped); null: `reward` of the experience is the effective one",
            null=True,
        ),
        _field(
            "masked",
            pa.bool_(),
            "true: the row keeps its place in its group's statistics and in the batch, and none of its "
            "tokens enters a loss",
            null=True,
        ),
        _text("stats", "what operators computed beside", is_json=True),
        _CREATED,
    ]
)

LEASES = pa.schema(
    [
        _text("event_id", "hash of the event; the same event retried has the same id"),
        _text("kind", "attach, grant, release (given back untrained) or retire (never to be trained)"),
        _text("run_id", "run it belongs to"),
        _text("consumer", "who trains on it"),
        _int("step", "optimizer step it is for; -1 when the event has none"),
        _int("epoch", "epoch of the consumer: grows with each attach, an older one is fenced"),
        _int("version", "policy version the trainer held; -1 when the event has none"),
        _list("seqs", pa.int64(), "rows, in order"),
        _list("group_ids", pa.string(), "whole groups, in order"),
        _text("digest", "content hash of seqs"),
        _text("reason", "why it was released or retired, or empty"),
        _CREATED,
    ]
)

CONSUMED = pa.schema(
    [
        _text("lease_id", "the lease: run/consumer/step"),
        _text("run_id", "run it belongs to"),
        _text("consumer", "who trained on it"),
        _int("step", "optimizer step"),
        _int("checkpoint_step", "the checkpoint that holds its gradient step"),
        _CREATED,
    ]
)

TRAINED_TOKENS = pa.schema(
    [
        _text("run_id", "run it belongs to", by="loop"),
        _text("consumer", "who trained on it", by="loop"),
        _int("step", "optimizer step", by="loop"),
        _int("seq", "row of the experience; of each step there are a few", by="trainer"),
        _list(
            "logprobs",
            _LOGPROB,
            "of each token after the prompt, nats, by the trainer, of the tempered distribution of the "
            "policy at the step's start",
            by="trainer",
        ),
        _list(
            "entropies",
            _LOGPROB,
            "of that distribution at each of these tokens, nats; empty where the trainer computes none",
            by="trainer",
        ),
        _CREATED,
    ]
)

STAGE_ROWS = pa.schema(
    [
        _text("run_id", "run it belongs to"),
        _text("stage", "the stage: its number and algorithm, for example 1-dpo"),
        _text("digest", "content hash of its examples, which the stage's folder names too"),
        _list("experience_ids", pa.string(), "rows it was trained on, alone or as halves of a pair"),
        _list("preference_ids", pa.string(), "stored or mined pairs it was trained on"),
        _CREATED,
    ]
)

FEEDBACK = pa.schema(
    [
        _text(
            "feedback_id",
            "content hash of what it says, about what, by whom and, where its source tells, when",
        ),
        _text("experience_id", "the experience it is about"),
        _text("experience_digest", "digest of that row when the feedback was given"),
        _text("author", "who gave it"),
        _text("key", "reward, score, edit, or a name of your own"),
        _field("value", pa.float64(), "the number, for reward and score", null=True),
        _text("text", "the words, for edit and comments", null=True),
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
        _text("role", "trainer, explorer, ops, sampler, selector, loop, seconds or run"),
        _int("step", "optimizer step"),
        _text("key", "name of the metric"),
        _field("value", pa.float64(), "its value"),
        _CREATED,
    ]
)

PAYLOADS = pa.schema(
    [
        _text("payload_id", "blake2b-128 of the bytes"),
        _text("media_type", "for example image/png"),
        _int("size", "bytes"),
        _field("data", pa.large_binary(), "the bytes"),
        _CREATED,
    ]
)

TAGS = pa.schema(
    [
        _text("name", "what the view is called"),
        _int("rows", "only experiences with seq below this belong to it"),
        _text(
            "filter", "only rows this filter lets through belong to it; null: all", null=True, is_json=True
        ),
        _text("note", "why it was made, or empty"),
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
    "task_state": (TASK_STATE, None),
    "experiences": (EXPERIENCES, "experience_id"),
    "preferences": (PREFERENCES, "preference_id"),
    "groups": (GROUPS, "group_id"),
    "annotations": (ANNOTATIONS, None),
    "leases": (LEASES, "event_id"),
    "consumed": (CONSUMED, "lease_id"),
    "trained_tokens": (TRAINED_TOKENS, None),
    "stage_rows": (STAGE_ROWS, None),
    "feedback": (FEEDBACK, "feedback_id"),
    "versions": (VERSIONS, None),
    "metrics": (METRICS, None),
    "payloads": (PAYLOADS, "payload_id"),
    "tags": (TAGS, None),
    "quarantine": (QUARANTINE, None),
}
"""Table name to (schema, primary key column or None). `embeddings` is made on demand, as wide as a model."""


def is_json(field: pa.Field) -> bool:
    """Whether a string column holds JSON."""
    return (field.metadata or {}).get(b"json") == b"1"
