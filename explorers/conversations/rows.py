"""Rows of a rollout's turns: ids, mask, logprobs and version spans in one coordinate system."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NotRequired, TypedDict

from explorers.conversations.turns import Turn, Turns
from rft_data.core.engine import Sampling
from rft_data.core.images import PROCESSOR, image_ids
from rft_data.core.rows import Experience, Message, Task, VersionSpan, experience_id_of
from rft_data.core.words import HISTORY_DRIFT, Drift, RowSource
from rft_data.core.workflow import RolloutContext


class RowNames(TypedDict):
    """Columns that say which rollout of which task a row is, and which of its turns."""

    experience_id: str
    source: RowSource
    run_id: str
    taskset: str
    task_id: str
    group_id: str
    attempt: int
    member: int
    turn: int
    explorer_id: str


class Constant(TypedDict):
    """Columns that are the same in every row of a rollout."""

    sampling: Mapping[str, object]
    tokenizer_hash: str
    metadata: Mapping[str, object]
    payloads: NotRequired[Sequence[str]]


@dataclass(slots=True)
class _Tokens:
    """Token columns as they grow, turn by turn."""

    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)

    def context(self, ids: Sequence[int]) -> None:
        """Add ids without loss."""
        self.ids += ids
        self.mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def add(self, turn: Turn, *, trained: bool) -> None:
        """Add a turn, its sampled ids with their logprobs where it is trained in this row."""
        self.context(turn.context)
        if not trained:
            self.context([*turn.sampled, *turn.replaced])
            return
        start = len(self.ids)
        if turn.constrained:
            self.context(turn.sampled)
        else:
            self.ids += turn.sampled
            self.mask += [1] * len(turn.sampled)
            self.logprobs += turn.logprobs
        self.spans += [(version, start + first, start + end) for version, first, end in turn.spans]
        self.context(turn.replaced)


def branch_rows(turns: Turns) -> list[tuple[Turn, set[Turn]]]:
    """The last turn of each row and the turns trained there; a shared turn is trained in the first row."""
    rows, trained = [], set[Turn]()
    for leaf in turns.leaves:
        new = {turn for turn in leaf.path if turn not in trained}
        trained |= new
        rows.append((leaf, new))
    return rows


def constant_columns(
    sampling: Sampling,
    tokenizer_hash: str,
    drift: Mapping[Drift, int],
    metadata: Mapping[str, object] | None = None,
) -> Constant:
    """Columns that are the same in every row of a rollout; `drift`: its chat calls by how they drifted."""
    drifted = {str(kind): n for kind, n in sorted(drift.items()) if kind is not Drift.EXACT}
    return {
        "sampling": sampling.stored(),
        "tokenizer_hash": tokenizer_hash,
        "metadata": {**({HISTORY_DRIFT: drifted} if drifted else {}), **(metadata or {})},
    }


def step_rows(turns: Turns) -> list[tuple[Turn, set[Turn]]]:
    """One row for every turn: what came before it is its prompt."""
    return [(turn, {turn}) for turn in turns]


def experience(
    last: Turn, trained: set[Turn], task: Task, ctx: RolloutContext, turn: int, constant: Constant
) -> Experience:
    """The row that ends with the turn `last`; `constant`: columns that are the same in every row."""
    tokens = _Tokens()
    messages: list[Message] = []
    prompt_messages = 0
    for one in last.path:
        if not any(tokens.mask):
            prompt_messages = len(messages) + len(one.messages)
        tokens.add(one, trained=one in trained)
        messages += [*one.messages, dict(one.reply.message) if one.reply else {}]
    versions = [version for version, _, _ in tokens.spans]
    images = image_ids(messages)
    if images:
        processor = next((one.processor for one in last.path if one.processor), "")
        metadata: dict[str, object] = {**constant["metadata"], PROCESSOR: processor}
        constant = {**constant, "payloads": images, "metadata": metadata}
    return Experience(
        **row_names(task, ctx, turn),
        token_ids=tokens.ids,
        prompt_length=tokens.mask.index(1) if 1 in tokens.mask else len(tokens.ids),
        action_mask=tokens.mask,
        logprobs=tokens.logprobs,
        version_min=min(versions, default=None),
        version_max=max(versions, default=None),
        version_spans=tokens.spans,
        messages=messages,
        prompt_messages=prompt_messages,
        tools=json.loads(last.offered) if last.offered else None,
        completion_text=last.reply.content if last.reply else "",
        finish_reason=last.reply.finish_reason if last.reply else "",
        **constant,
    )


def row_names(task: Task, ctx: RolloutContext, turn: int = 0) -> RowNames:
    """The columns that say which rollout of which task a row is, and which of its turns."""
    return {
        "experience_id": experience_id_of(ctx.run_id, task.key, ctx.attempt, ctx.group_id, ctx.member, turn),
        "source": ctx.source,
        "run_id": ctx.run_id,
        "taskset": task.taskset,
        "task_id": task.task_id,
        "group_id": ctx.group_id,
        "attempt": ctx.attempt,
        "member": ctx.member,
        "turn": turn,
        "explorer_id": ctx.explorer_id,
    }
