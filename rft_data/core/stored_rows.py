"""Types of rows as `pa.Table.to_pylist` gives them: every column of a table by name, JSON columns as text.

A reader that selects columns has rows with those alone. `schema` says what each column means.
"""

from __future__ import annotations

from datetime import datetime
from typing import TypedDict


class SpanRow(TypedDict):
    """A stretch of tokens that one policy version sampled."""

    version: int
    start: int
    end: int


class ExperienceRow(TypedDict):
    """A row of `experiences`."""

    seq: int
    experience_id: str
    source: str
    run_id: str
    taskset: str
    task_id: str
    group_id: str
    attempt: int
    member: int
    turn: int
    explorer_id: str
    token_ids: list[int] | None
    prompt_length: int
    action_mask: list[int] | None
    logprobs: list[float] | None
    version_min: int | None
    version_max: int | None
    version_spans: list[SpanRow]
    messages: str
    prompt_messages: int
    tools: str | None
    completion_text: str
    finish_reason: str
    reward: float | None
    reward_parts: str
    unscored_reason: str | None
    teacher_logprobs: list[float] | None
    environment: str | None
    payloads: list[str]
    sampling: str
    tokenizer_hash: str
    metadata: str
    created_at: datetime
    digest: str


class GroupRow(TypedDict):
    """A row of `groups`."""

    group_id: str
    run_id: str
    ordinal: int
    round: int
    attempt: int
    taskset: str
    task_id: str
    version: int
    version_min: int
    outcome: str
    rewards: list[float | None]
    seqs: list[int]
    dropped_by: str
    error: str
    created_at: datetime


class AnnotationRow(TypedDict):
    """A row of `annotations`."""

    seq: int
    experience_id: str
    pipeline_hash: str
    verdict: str
    dropped_by: str
    reason: str
    advantage: list[float] | None
    shaped_reward: float | None
    masked: bool | None
    stats: str
    created_at: datetime


class LeaseEventRow(TypedDict):
    """An event of `leases`, before it is stored: without its id and time."""

    kind: str
    run_id: str
    consumer: str
    step: int
    epoch: int
    version: int
    seqs: list[int]
    group_ids: list[str]
    digest: str
    reason: str
