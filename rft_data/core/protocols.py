"""Protocols between the parts: structural, without implementation and heavy imports."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rft_data.core.rows import (
    Experience,
    GroupResult,
    Lease,
    Message,
    Task,
    TaskKey,
    Ticket,
    VersionSpan,
    WeightRef,
)
from rft_data.core.words import GroupOutcome, HubRole, RowSource, UnscoredCause

if TYPE_CHECKING:
    import pyarrow as pa

# --- exploring -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample one completion. No top-p or top-k: logprobs must be of the whole distribution."""

    max_tokens: int
    temperature: float = 1.0
    """0 means greedy (then logprobs are of the temperature-1 distribution)."""
    stop: tuple[str, ...] = ()
    """Texts that end the completion; the tokens up to the end of the text are kept."""
    min_tokens: int = 0
    """No end token and no stop text before so many tokens; the logprobs are of the distribution without end
    tokens, from which these tokens are sampled."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", tuple(self.stop))

    def stored(self) -> dict[str, object]:
        """The fields as rows hold them: those that were added later only where they are set."""
        values: dict[str, object] = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        if self.stop:
            values["stop"] = list(self.stop)
        if self.min_tokens:
            values["min_tokens"] = self.min_tokens
        return values


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine returns for one prompt."""

    token_ids: Sequence[int]
    """Sampled ids, the end-of-sequence token included."""
    logprobs: Sequence[float]
    """One per sampled id, natural log, of the tempered distribution."""
    finish_reason: str
    """A `FinishReason`, or another word of the engine."""
    version_spans: Sequence[VersionSpan]
    """Which policy version sampled which ids; indices into `token_ids`."""
    prompt_ids: Sequence[int] | None = None
    """The prompt as the model saw it, where images took places in it; None: as it was given."""
    processor: str = ""
    """Hash of what made tensors of the images; empty without images."""


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """What a chat engine answers: an assistant's message, of which no token is known."""

    message: Message
    """The message as rows store it: role, content, and where there are any, reasoning_content and tool_calls
    (arguments as objects; the text of those that are no JSON object)."""
    finish_reason: str
    """A `FinishReason`, or another word of the endpoint."""
    prompt_tokens: int
    """As the endpoint counted them; 0 where it says nothing."""
    completion_tokens: int
    served_by: str
    """The model that the endpoint says it was; empty where it says nothing."""


class Engine(Protocol):
    """Serves one policy version at a time: token ids in, token ids and logprobs out."""

    @property
    def version(self) -> int:
        """The version that it serves, proved with the probe."""
        ...

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, images: Sequence[str] = ()
    ) -> Completion:
        """Sample one completion; many calls run together. What an engine has no room for is found before
        it is rendered where it says its `max_model_len`, tokens.

        Args: images: payload ids of the images in the order of their placeholders in the prompt, one
            placeholder each. An engine without `images_from` is never called with it.
        """
        ...

    def load_weights(self, ref: WeightRef) -> float:
        """Swap the live weights in one atomic call and prove them against the directory's probe.

        Returns: the largest absolute difference of logprobs on the probe (nats).
        Raises: ParityError, and the engine keeps refusing to serve, when it is above tolerance.
        """
        ...

    def close(self) -> None:
        """Free the engine; idempotent."""
        ...


class ChatEngine(Protocol):
    """An engine that takes and gives messages instead of token ids: a model behind an endpoint.

    It has the methods of `Engine` too, of which `generate` raises. Its rows have no token ids, no
    logprobs and no policy version.
    """

    @property
    def endpoint(self) -> Mapping[str, str]:
        """What rows say about who sampled them: `base_url` and `model`."""
        ...

    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        sampling: Sampling,
    ) -> ChatCompletion:
        """Sample the next turn of a conversation; many calls run together.

        Raises: ConnectionError, TimeoutError when the endpoint gives no answer; ContextOverflow; RowError for
            a conversation that it refuses; other RftErrors when it would refuse any.
        """
        ...


@dataclass(frozen=True, slots=True)
class Unscored:
    """A reward that could not be computed; never confused with a reward of zero."""

    reason: str
    """Why; empty when it comes later, as feedback."""
    cause: UnscoredCause = UnscoredCause.REWARD
    """What kind of failure it is. A failure of the world around the model is tried again."""


class Reward(Protocol):
    """Scores one finished completion; docs/rewards.md has what else a reward may take and return."""

    def __call__(self, task: Task, completion: str) -> float | Mapping[str, float] | Unscored:
        """Return a finite number, parts or why there is none; must not raise for bad model output."""
        ...


@dataclass(frozen=True, slots=True)
class RolloutContext:
    """The position of a rollout in its run; it determines the ids of its experiences."""

    run_id: str
    group_id: str
    member: int
    attempt: int
    explorer_id: str
    source: RowSource
    sampling: Sampling


class Workflow(Protocol):
    """Plays one rollout of one task and returns its experiences (one, or one per step)."""

    async def run(self, task: Task, engine: Engine, ctx: RolloutContext) -> list[Experience]:
        """Raise freely: a failed rollout becomes data, not a crash."""
        ...


@dataclass(frozen=True, slots=True)
class Group:
    """The result of one ticket."""

    ticket: Ticket
    task: Task
    experiences: tuple[Experience, ...]
    outcome: GroupOutcome
    """`arrived` or `failed`."""
    error: str = ""
    """Why it failed, or empty."""


# --- choosing tasks --------------------------------------------------------------------------------


class Selector(Protocol):
    """Chooses the tasks to explore next; learns from their results."""

    def select(self, n: int) -> list[TaskKey]:
        """The next n tasks (a task may repeat only when there are fewer than n)."""
        ...

    def observe(self, results: Sequence[GroupResult]) -> None:
        """Learn from real outcomes; failed, cancelled and unscored groups are ignored."""
        ...

    def state_dict(self) -> dict[str, object]:
        """Everything that decides the next choice, as JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue exactly where `state_dict` was taken."""
        ...

    def metrics(self) -> dict[str, float]:
        """Numbers for the run's log."""
        ...


# --- operators -------------------------------------------------------------------------------------


class Pipeline(Protocol):
    """An ordered list of operators over whole groups."""

    @property
    def pipeline_hash(self) -> str:
        """Content hash of the operators and their arguments."""
        ...

    def run(self, experiences: pa.Table) -> pa.Table:
        """Judge every row: one annotation (schema.ANNOTATIONS) per input row, in input order."""
        ...

    def metrics(self) -> dict[str, float]:
        """Rows in and out and seconds per operator, since the last call."""
        ...

    def close(self) -> None:
        """End the operators' workers; idempotent."""
        ...


# --- sampling --------------------------------------------------------------------------------------


class Sampler(Protocol):
    """Decides both which groups may start and which train next, so that the two stay consistent.

    Group states are rebuilt from stored groups and leases; `state_dict` has only what these do not tell.
    """

    @property
    def outstanding(self) -> int:
        """Groups admitted and not yet trained, dropped, failed, cancelled or stale."""
        ...

    @property
    def ready(self) -> int:
        """Groups that could be leased now."""
        ...

    def admit(self, n: int, engine_version: int) -> list[Ticket]:
        """At most n tickets for new groups, as many as the staleness bound allows now."""
        ...

    def close(self, result: GroupResult) -> None:
        """Close a ticket: its group arrived (kept or dropped), failed or was cancelled."""
        ...

    def is_stale(self, result: GroupResult) -> bool:
        """Whether the weights that sampled a group are past the staleness bound now."""
        ...

    def lease(self, consumer: str, step: int, n_groups: int, version: int) -> Lease | None:
        """Whole groups for one step, or None when too few are ready. Idempotent on (consumer, step)."""
        ...

    def release(self, lease: Lease, reason: str) -> None:
        """End a lease without training it; its groups may be leased again, in their old order."""
        ...

    def settle(self, lease: Lease) -> None:
        """The lease's gradient step has been taken."""
        ...

    def conservation(self) -> dict[str, int]:
        """Groups by state; `admitted` equals the sum of the others."""
        ...

    def state_dict(self) -> dict[str, object]:
        """State that cannot be read from stored groups and leases, as JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue where `state_dict` was taken."""
        ...

    def metrics(self) -> dict[str, float]:
        """Numbers for the run's log."""
        ...


# --- roles -----------------------------------------------------------------------------------------


class BufferClient(Protocol):
    """The buffer methods that roles call; `Buffer` and the hub's client have them."""

    def append(self, rows: Sequence[Experience] | pa.Table) -> Any:
        """Store rows; returns when they are durable, with `seqs` per row (None for refused rows)."""
        ...

    def take(self, seqs: Sequence[int]) -> pa.Table:
        """Rows by number, in the order asked."""
        ...

    def leased(self, lease: Lease, pipeline_hash: str) -> LeasedBatch:
        """A lease's rows joined with their annotations."""
        ...

    def payload(self, payload_id: str) -> tuple[str, bytes]:
        """(media type, bytes) of a stored payload."""
        ...


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """How to make a role anywhere."""

    name: str
    factory: str
    """`package.module:callable`, called as factory(buffer=BufferClient, **arguments)."""
    arguments: Mapping[str, Any]
    """JSON values."""
    cpus: float = 1.0
    gpus: float = 0.0
    hub_role: HubRole = HubRole.READER
    """What it may do at the run's hub, in a process of its own."""
    gpu_group: str = ""
    """Roles of one group use the same GPUs in turns; empty: its own."""
    beside: int = 0
    """How many more places with the same CPUs and GPUs are kept for it in a cluster, for actors that it
    starts itself (the other ranks of a trainer)."""


class WeightSender(Protocol):
    """Gives published weights to explorers that do not read them from the run's folder."""

    def offer(self, ref: WeightRef, explorers: Sequence[str]) -> None:
        """Called before these explorers, by name, are asked to load a version.

        Raises: StalledError, EngineError when it cannot be sent.
        """
        ...

    def close(self) -> None:
        """Stop; idempotent."""
        ...


class Role(Protocol):
    """A running role, wherever it runs."""

    @property
    def name(self) -> str:
        """The spec's name."""
        ...

    @property
    def incarnation(self) -> int:
        """How often it was restarted."""
        ...

    def call(self, method: str, returns: object, *, deadline_s: float, **arguments: object) -> Future[Any]:
        """Call a method of the role; its coroutines run beside each other, other methods one at a time.

        Args: returns: the type its result is read as.
        The future raises the role's own RftError, RoleDiedError, or StalledError past the deadline.
        """
        ...

    def restart(self) -> Future[None]:
        """End it and start it again from its spec; calls in flight fail with RoleDiedError.

        The future ends when the role is ready, or with what `Placement.start` raises; then there is none, and
        it may be restarted again.
        """
        ...

    def close(self) -> None:
        """Ask it to end, then end it; idempotent."""
        ...


class Placement(Protocol):
    """Where roles run; also an `ElasticPlacement` if roles may come and go during a run."""

    @property
    def overlaps(self) -> bool:
        """Whether roles run beside each other and beside the caller."""
        ...

    def preflight(self, specs: Sequence[RoleSpec]) -> list[str]:
        """Compare the resources that these roles need with those there are; returns warnings.

        Raises: RftError when they can never run here.
        """
        ...

    def start(self, spec: RoleSpec) -> Role:
        """Start a role; returns when it is ready, and raises what its factory raised."""
        ...

    def close(self, *, now: bool = False) -> None:
        """End every role started here; with `now` without asking it to close first. Idempotent."""
        ...


@runtime_checkable
class ElasticPlacement(Placement, Protocol):
    """A placement whose roles may come and go while a run goes on. None of its own methods waits."""

    def reserve(self, spec: RoleSpec) -> bool:
        """Whether the role may be started now; a cluster without room for it is asked for more."""
        ...

    def release(self, name: str) -> None:
        """Ask for no room any more for a role that was closed, or never started; idempotent."""
        ...

    def drained(self) -> Container[str]:
        """Names of the roles whose node is about to be taken away."""
        ...


# --- training --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeasedBatch:
    """A lease and its rows: the experiences joined with their annotations, in lease order."""

    lease: Lease
    table: pa.Table
    images: Mapping[str, bytes] = field(default_factory=dict)
    """Bytes of the images that its rows show, by payload id; the table then has a column `payloads`."""
