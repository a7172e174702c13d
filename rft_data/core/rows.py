"""The rows that pass between the parts, as frozen dataclasses, and the rules that name them.

`schema.py` holds the Arrow form of each; a test compares the two. Ids are hashes of what they name,
so a retried write is the same write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rft_data.core.canonical import content_id
from rft_data.core.words import NOT_SAMPLED, PairSource, RowSource, Split

Message = Mapping[str, Any]
"""One chat message, `{"role": ..., "content": ...}`."""

VersionSpan = tuple[int, int, int]
"""(policy version, first token, one past the last token), indices into `token_ids`."""


OFFERED_TOOLS = "offered_tools"
"""Key of a task's metadata under which it keeps the tools that it offers."""


def now() -> datetime:
    """The current time, UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt with what is needed to score it."""

    taskset: str
    """Name of the taskset it belongs to."""
    messages: tuple[Message, ...]
    """The prompt, as chat messages."""
    answer: str | None = None
    """Reference answer; None when the reward needs none."""
    split: Split = Split.TRAIN
    difficulty: float | None = None
    """Offline difficulty, larger is harder; None when the source has none."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Further values that the reward or the workflow needs (JSON values)."""
    workflow: str | None = None
    """Workflow that plays it; None: the recipe's."""
    reward: str | None = None
    """Reward that scores it; None: the recipe's."""
    tags: tuple[str, ...] = ()
    """Labels a selector or a filter may use."""
    parent_experience_id: str | None = None
    """The experience it was made from; None for a task from a source."""

    @property
    def tools(self) -> Sequence[Mapping[str, Any]] | None:
        """Tools that the task itself offers, as definitions in OpenAI's form; None: none."""
        return self.metadata.get(OFFERED_TOOLS)

    @property
    def task_id(self) -> str:
        """Content hash of prompt, answer and metadata."""
        return content_id([dict(m) for m in self.messages], self.answer, dict(self.metadata))

    @property
    def key(self) -> TaskKey:
        """The task's key among all tasksets."""
        return TaskKey(self.taskset, self.task_id)


@dataclass(frozen=True, slots=True, order=True)
class TaskKey:
    """(taskset, task_id)."""

    taskset: str
    task_id: str


@dataclass(frozen=True, slots=True)
class Experience:
    """One trainable row that a rollout produced, immutable once written.

    The token lists share one length T, or are all None for a row that is tokenised when leased.
    """

    experience_id: str
    """Deterministic: `experience_id_of(run, task, attempt, group, member, turn)`."""
    source: RowSource
    """Evaluation rows are never leased."""
    run_id: str
    taskset: str
    task_id: str
    group_id: str
    """Experiences sampled together for one task share this (the GRPO group)."""
    attempt: int = 0
    """How often the run had been restarted when this was sampled."""
    member: int = 0
    """Place in the group, 0-based."""
    turn: int = 0
    """Step of a step-wise workflow; 0 when one row is one rollout."""
    explorer_id: str = ""
    token_ids: Sequence[int] | None = None
    """Prompt and completion, T ids."""
    prompt_length: int = 0
    """Tokens before the first sampled one."""
    action_mask: Sequence[int] | None = None
    """T values: 1 where the policy sampled the token, 0 elsewhere."""
    logprobs: Sequence[float] | None = None
    """T values, of the tempered distribution the token was sampled from; 0.0 where the mask is 0."""
    version_min: int | None = None
    """Lowest policy version among the sampled tokens; None for rows no policy of ours sampled."""
    version_max: int | None = None
    version_spans: Sequence[VersionSpan] = ()
    messages: Sequence[Message] = ()
    """The conversation, prompt and completion, as chat messages."""
    prompt_messages: int = 0
    """How many of `messages` are the prompt; the rest is the completion."""
    tools: Sequence[Mapping[str, Any]] | None = None
    """Tool definitions offered to the policy; None when there were none."""
    completion_text: str = ""
    finish_reason: str = NOT_SAMPLED
    """A `FinishReason`, or another word that an engine or a file gave; NOT_SAMPLED when not sampled."""
    reward: float | None = None
    """None until it is known (delayed or unscored)."""
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    unscored_reason: str | None = None
    """The reason that the reward could not be computed; None when it was, or is still to come."""
    teacher_logprobs: Sequence[float] | None = None
    """T values, a teacher's logprobs (nats) of `token_ids`; None without a teacher."""
    environment: str | None = None
    """Key of the environment state it started from; None for a plain prompt."""
    payloads: Sequence[str] = ()
    """Ids in the `payloads` table of the images or audio that `messages` refers to."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters (temperature, max_tokens, ...)."""
    tokenizer_hash: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Further values that an importer or a workflow stores (JSON values)."""
    created_at: datetime = field(default_factory=now)


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """Two answers to one prompt, one preferred: imported, mined from a group, or given by a person."""

    source: PairSource
    taskset: str
    task_id: str
    chosen: Sequence[Message]
    """The better answer, as chat messages."""
    rejected: Sequence[Message]
    """The worse answer, as chat messages."""
    messages: Sequence[Message] = ()
    """The prompt, as chat messages; empty when it is inside `chosen` and `rejected` (implicit prompt)."""
    tools: Sequence[Mapping[str, Any]] | None = None
    chosen_experience_id: str | None = None
    """The stored rollout it came from; None for a pair that was imported."""
    rejected_experience_id: str | None = None
    chosen_score: float | None = None
    """Reward or rating; None when only the order is known."""
    rejected_score: float | None = None
    author: str = ""
    """Name of the person or program that preferred."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    created_at: datetime = field(default_factory=now)

    @property
    def preference_id(self) -> str:
        """Content hash of prompt, chosen and rejected."""
        answers = [[dict(m) for m in part] for part in (self.messages, self.chosen, self.rejected)]
        return content_id(self.taskset, *answers, self.tools)


@dataclass(frozen=True, slots=True)
class Feedback:
    """Feedback about a stored experience, given later: a delayed reward, a score, an edit."""

    experience_id: str
    author: str
    key: str
    """A `FeedbackKey`, or a name of your own."""
    value: float | None = None
    """The number, for reward and score."""
    text: str | None = None
    """The words, for edit and comments."""
    created_at: datetime | None = None
    """Time of the feedback, if its source tells it; with a later time it is new. None: time of storing."""

    @property
    def feedback_id(self) -> str:
        """Content hash of the value, text, experience, author and, if its source tells it, time (UTC)."""
        value = None if self.value is None else float(self.value)
        content = (self.experience_id, self.author, self.key, value, self.text)
        if self.created_at is None:
            return content_id(*content)
        zone = self.created_at.tzinfo or UTC
        return content_id(*content, self.created_at.replace(tzinfo=zone).astimezone(UTC).isoformat())


def experience_id_of(
    run_id: str, task: TaskKey, attempt: int, group_id: str, member: int, turn: int = 0
) -> str:
    """The id of one experience; the same rollout retried gets the same id."""
    return content_id(run_id, task.taskset, task.task_id, attempt, group_id, member, turn)


@dataclass(frozen=True, slots=True)
class WeightRef:
    """A complete weight directory."""

    run_id: str
    version: int
    """Policy version, issued by the registry; only grows."""
    step: int
    """Optimizer steps behind these weights."""
    path: str
    """Folder with `*.safetensors`, `config.json`, `probe/` and `manifest.json`."""
    base: str = ""
    """Folder of the model that these weights, an adapter, are merged into; empty for whole weights."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Size and digest of a file in a manifest."""

    bytes: int
    blake2b: str
    """Its digest, 128 bits."""


@dataclass(frozen=True, slots=True)
class TokenValues:
    """Figures of the trainer for each token of a row's completion, C values each, nats."""

    seq: int
    logprobs: Sequence[float]
    """Log-probabilities in the tempered distribution of the policy at the step's start."""
    entropies: Sequence[float] = ()
    """Entropies of the same distribution; empty where the trainer computes none."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """The measurements of one optimizer step."""

    metrics: Mapping[str, float]
    ess: Mapping[int, float] = field(default_factory=dict)
    """Effective sample size as a fraction of the sampled tokens, by the rows' lowest policy version."""
    files: Mapping[str, FileFacts] = field(default_factory=dict)
    """The files of the checkpoint written with it, by their path in its folder."""
    tokens: Sequence[TokenValues] = ()
    """The values of a few rows."""
