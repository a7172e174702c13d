"""Parts of a lineage: rows as they are stored, judgements, leases, stages, weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TypedDict

from rft_data.core.rows import Task
from rft_data.core.stored_rows import ExperienceRow
from rft_data.core.words import LeaseState, Verdict


class FeedbackRow(TypedDict):
    """A row of `feedback`."""

    feedback_id: str
    experience_id: str
    author: str
    key: str
    value: float | None
    text: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Weights:
    """One policy version and where its weights are."""

    run_id: str
    version: int
    step: int
    """Optimizer steps behind the weights."""
    path: str
    """Weight folder, relative to the run; empty if this version was not published."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The newest verdict of one operator pipeline on the experience."""

    pipeline_hash: str
    verdict: Verdict
    dropped_by: str
    reason: str
    advantage: tuple[float, ...] | None
    """One value, or one per token; None when dropped."""
    shaped_reward: float | None
    masked: bool
    """Whether none of its tokens enters a loss."""


@dataclass(frozen=True, slots=True)
class Use:
    """One lease the experience was part of."""

    run_id: str
    consumer: str
    step: int
    epoch: int
    policy_version: int
    """Policy version of the trainer when it leased; -1 if unknown."""
    state: LeaseState
    reason: str
    """Reason why it was released, or empty."""
    checkpoint_step: int | None
    """The checkpoint that contains the step; None until one does."""
    weights: Weights | None
    """The first published version whose weights contain the step, else the first issued. None until a
    checkpoint contains the step: a granted lease does not prove that the step was taken."""
    reward_version: str = ""
    """Feedback key of the rewards that its advantages were made of; empty: the stored reward."""


@dataclass(frozen=True, slots=True)
class Stage:
    """An offline stage that was trained on the experience, alone or as half of a pair."""

    run_id: str
    stage: str
    """Number and algorithm of the stage, for example `1-dpo`."""
    digest: str
    """Content hash of all its examples; the manifest of the stage's folder has it as `trained_on`."""


@dataclass(frozen=True, slots=True)
class Retired:
    """A consumer that never leases the experience's group (again)."""

    run_id: str
    consumer: str
    """Empty: all consumers of the run."""
    reason: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """The origin and the later use of one experience."""

    experience: ExperienceRow
    """Its columns, without those that hold lists."""
    task: Task | None
    """None when the task was never stored."""
    sampled_by: tuple[Weights, ...]
    """Versions that sampled its tokens, oldest first."""
    judgements: tuple[Judgement, ...]
    uses: tuple[Use, ...]
    """In the order in which they were granted."""
    stages: tuple[Stage, ...]
    """In the order in which they trained."""
    retired: tuple[Retired, ...]
    feedback: tuple[FeedbackRow, ...]
    """Oldest first."""
    preferences: tuple[str, ...]
    """Ids of stored pairs in which it is the better or the worse half."""

    def as_json(self) -> dict[str, object]:
        """The fields as plain values, for JSON."""
        return asdict(self)
