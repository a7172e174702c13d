"""The sections of a recipe about how a run proceeds: sampling, weights, placement, deadlines, monitoring.

Names and arguments of components are checked by the components themselves, before anything runs.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from ops.runtime.limits import OnFailure, needs_workers
from rft_data.core.lookup import suggest
from rft_data.core.words import Importance, OldLogprobs
from rft_data.recipe.section import Section

PLACEMENTS = ("inline", "local", "ray")
"""Placements of ours; one of one's own is an import path."""


class Component(Section):
    """Something by name, or by import path (`package.module:Class`), with its arguments."""

    use: str
    """Name of a built-in, or your own: `package.module:Class`, or `folder/file.py:Class`."""
    args: dict[str, object] = Field(default_factory=dict)
    """Keyword arguments it is made with; what is left out keeps the component's own default."""


class Sync(Section):
    """When weights flow back, and how old a trained rollout may be (both in optimizer steps).

    (1, 0) is synchronous on-policy, (k, k-1) every k steps, (1, 1) one step off-policy, more is asynchronous.
    """

    every: int = Field(default=1, ge=1)
    """Optimizer steps between two publications of weights to the explorers."""
    max_staleness: int = Field(default=0, ge=0)
    """Most optimizer steps between the weights that sampled a rollout's oldest token and those that train on
    it first; sampler `replay` has a `reuse_window` for later uses."""

    @model_validator(mode="after")
    def _feasible(self) -> Sync:
        if self.max_staleness < self.every - 1:
            raise ValueError(
                f"'max_staleness' {self.max_staleness} can never be met when weights are published every "
                f"{self.every} steps; give at least {self.every - 1}"
            )
        return self

    @property
    def synchronous(self) -> bool:
        """Whether everything trained was sampled by the weights that train on it."""
        return self.every == 1 and self.max_staleness == 0


class TransportSection(Section):
    """How published weights reach the engine; see docs/weights.md."""

    use: Literal["directory", "shm", "ray", "gloo", "nccl", "ipc", "auto"] = "directory"
    """`directory`: each engine reads the published folder; `shm`: one copy per machine in shared memory;
    `ray`: Ray's object store, `gloo`: broadcast over TCP, both for nodes that do not see the folder; `nccl`:
    broadcast between GPUs; `ipc`: memory of a GPU that is shared; `auto`: what fits the placement, and what
    is taken with `placement.use: ray` where this is left out."""


class OffPolicy(Section):
    """How rows of an older policy are corrected for; see docs/trainers.md."""

    old_logprobs: OldLogprobs = "rollout"
    """The old policy of the ratio: `rollout` (as stored) or `recompute` (the weights before the step)."""
    importance: Importance = "none"
    """With `recompute`: `none`, `token_truncated`, `sequence_truncated` or `masked`."""
    cap: float = 2.0
    """Largest importance weight, above 1; with `masked`, weights outside [1/cap, cap] become 0."""


class ExplorerRange(Section):
    """Explorers that join and leave while the run goes on; see docs/placement.md."""

    min: int = Field(default=1, ge=1)
    """So many are there from the start, and are started again when they die."""
    max: int = Field(ge=1)
    """As many as there is room for, and `rft scale` has not asked for fewer, up to this."""

    @model_validator(mode="after")
    def _ordered(self) -> ExplorerRange:
        if self.max < self.min:
            raise ValueError(f"'max' {self.max} is less than 'min' {self.min}")
        return self


class Explorers(Section):
    """The resources of each explorer."""

    count: Annotated[
        Annotated[int, Field(ge=1), Tag("number")] | Annotated[ExplorerRange, Tag("range")],
        Discriminator(lambda count: "range" if isinstance(count, dict | ExplorerRange) else "number"),
    ] = 1
    """How many explorers there are, each with an engine of its own; or `{min: 1, max: 4}`, if they may join
    and leave while the run goes on."""
    cpus: float = Field(default=1.0, ge=0)
    """CPUs of each: threads with `local`, a reservation with `ray`, ignored with `inline`."""
    gpus: float = Field(default=0.0, ge=0)
    """GPUs of each: a whole number, or a part of one GPU that it shares; 0: none."""

    @property
    def least(self) -> int:
        """So many are always there."""
        return self.count if isinstance(self.count, int) else self.count.min

    @property
    def most(self) -> int:
        """There are never more."""
        return self.count if isinstance(self.count, int) else self.count.max


class TrainerPlace(Section):
    """The resources of the trainer, all its processes together."""

    cpus: float = Field(default=1.0, ge=0)
    """CPUs of all its processes together, divided evenly; ignored with `inline`."""
    gpus: float = Field(default=0.0, ge=0)
    """GPUs of all its processes together; 0: it trains on the CPU."""
    processes: int = Field(default=1, ge=1)
    """Data-parallel processes of one trainer, on its machine, or as many as torchrun starts; see
    docs/scale.md. With GPUs, one of them for each process."""
    over_nodes: bool = False
    """With `ray`: each process is an actor with its share of the CPUs and GPUs, on any node that has them;
    false: all are on one machine."""
    shard: Literal["fsdp2"] | None = None
    """`fsdp2`: each process keeps a part of weights, gradients and optimizer state; null: all of them."""


class PlacementSection(Section):
    """The place of explorers and trainer: this process, processes beside it, or Ray actors."""

    use: str = "inline"
    """`inline`: this process, no overlap; `local`: child processes of this machine; `ray`: Ray actors; or
    `package.module:callable` of your own (docs/placement.md)."""
    explorers: Explorers = Field(default_factory=Explorers)
    """How many explorers, and the CPUs and GPUs of each."""
    trainer: TrainerPlace = Field(default_factory=TrainerPlace)
    """Processes, CPUs and GPUs of the trainer."""
    address: str | None = Field(default=None, exclude_if=lambda given: given is None)
    """Address of a running Ray cluster: `host:port`, or `auto`; left out: RAY_ADDRESS, or one is started
    here."""
    wait_s: float | None = Field(default=None, gt=0, exclude_if=lambda given: given is None)
    """With `ray`, how long the run waits for room, also on nodes that the cluster does not have yet; left
    out: 300 s for what other runs hold, and what its nodes can never hold is refused at once."""
    colocate: bool = Field(default=False, exclude_if=lambda given: not given)
    """Whether the explorer and the trainer use the same GPUs in turns: the engine (`vllm`) sleeps while the
    trainer takes a step, and the trainer while the engine samples. For `use: local`, one explorer and a
    synchronous run; see docs/placement.md."""

    @field_validator("use")
    @classmethod
    def _named(cls, use: str) -> str:
        if use not in PLACEMENTS and ":" not in use:
            raise ValueError(
                f"placement '{use}' is not known;{suggest(use, PLACEMENTS)} "
                f"Built in: {', '.join(PLACEMENTS)}. "
                "Your own: 'package.module:callable' or 'file.py:callable'."
            )
        return use

    @model_validator(mode="after")
    def _of_a_cluster(self) -> PlacementSection:
        given = [name for name in ("address", "wait_s") if getattr(self, name) is not None]
        if given and self.use != "ray":
            raise ValueError(
                f"'{given[0]}' is about a Ray cluster, and 'use' is '{self.use}'; set use: ray, or remove it"
            )
        return self

    @model_validator(mode="after")
    def _shares(self) -> PlacementSection:
        if not self.colocate:
            return self
        if self.use != "local" or self.explorers.count != 1:
            raise ValueError(
                f"'colocate' is for 'use: local' with one explorer, found '{self.use}' with "
                f"{self.explorers.count}; give the explorers GPUs of their own, or change that"
            )
        each, trainer = self.explorers.gpus, self.trainer.gpus
        if each != trainer or 0 < each < 1:
            raise ValueError(
                f"'colocate' shares whole GPUs; 'explorers.gpus' is {each:g}, 'trainer.gpus' {trainer:g}; "
                "give both the same number from 1, or both 0 to try the turns on a CPU"
            )
        return self

    @model_validator(mode="after")
    def _feasible(self) -> PlacementSection:
        place, explorers = self.trainer, self.explorers
        if explorers.most > explorers.least and self.use == "inline":
            raise ValueError(
                "'explorers.count' is a range with 'use: inline', where explorers take turns in one process; "
                "use local or ray, or give a number"
            )
        if place.processes > 1 and self.use == "inline":
            raise ValueError(
                f"'trainer.processes' is {place.processes} with 'use: inline', where the trainer shares its "
                "process with everything else; use local or ray"
            )
        if place.gpus and place.gpus < place.processes:
            raise ValueError(
                f"'trainer.gpus' {place.gpus:g} is less than 'trainer.processes' {place.processes}; each "
                "process needs a GPU of its own"
            )
        if place.over_nodes and (self.use != "ray" or place.processes < 2):
            raise ValueError(
                f"'trainer.over_nodes' is true with 'use: {self.use}' and 'trainer.processes' "
                f"{place.processes}; it spreads several processes over the nodes of a Ray cluster: give use: "
                "ray and processes: 2 or more, or remove it"
            )
        if place.over_nodes and not place.cpus and not place.gpus:
            raise ValueError("'trainer.over_nodes' is true without CPUs or GPUs; give each process a share")
        if place.shard and place.processes < 2:
            raise ValueError(
                f"'trainer.shard' is {place.shard} with one process, which has no other to share the model "
                "with; give 'trainer.processes' 2 or more, or remove it"
            )
        return self


class DataPlace(Section):
    """The place of a data recipe's operators."""

    use: Literal["local", "ray"] = "local"
    """`local`: this process; `ray`: tasks of Ray Data, over the nodes of a cluster, with the same result."""
    address: str | None = None
    """Address of a running Ray cluster: `host:port`, or `auto`; left out: RAY_ADDRESS, or one is started
    here."""
    workers: int | None = Field(default=None, ge=1)
    """How many tasks run at a time, each on one CPU; left out: as many as the cluster has CPUs."""

    @model_validator(mode="after")
    def _of_a_cluster(self) -> DataPlace:
        given = [name for name in ("address", "workers") if getattr(self, name) is not None]
        if given and self.use != "ray":
            raise ValueError(f"'{given[0]}' is about a Ray cluster; set use: ray, or remove it")
        return self


class LateRewards(Section):
    """Rewards that come as feedback while the run goes on; see docs/feedback.md."""

    wait_s: float = Field(gt=0)
    """How long a group is kept open for them, from when its last rollout was made; then it goes without."""
    port: int = Field(default=0, ge=0, le=65535)
    """Where the run's hub takes feedback in, its token in RFT_HUB_TOKEN; 0: any port (the log says which)."""


class Serve(Section):
    """The run's hub for trainers elsewhere, which train while this run explores; see docs/modes.md."""

    port: int = Field(default=0, ge=0, le=65535)
    """Where it listens, its secret in RFT_HUB_TOKEN; 0: any port (the log says which)."""
    host: str = "127.0.0.1"
    """This machine's address on the network of the trainers; they speak TLS there (extra `tls`)."""
    idle_s: float = Field(default=60.0, ge=0)
    """When all groups are played, the run ends after so many seconds without a trainer."""


class Deadlines(Section):
    """Longest waits for the parts of a run, in seconds."""

    explore_s: float = Field(default=3600.0, gt=0)
    """For a round or a group of rollouts, an evaluation, or the loading of weights."""
    step_s: float = Field(default=3600.0, gt=0)
    """For an optimizer step, a checkpoint, or the writing of weights."""
    stage_s: float = Field(default=86400.0, gt=0)
    """For a whole offline stage."""


class OperatorLimits(Section):
    """How one operator runs, and what its failures mean; see docs/operators.md."""

    on_failure: OnFailure = "quarantine"
    """A row it fails on is set aside (fail closed), goes on unjudged (fail open), or ends the run."""
    workers: int = Field(default=0, ge=0)
    """Processes of its own; 0: it runs in the run's."""
    where: Literal["local", "ray"] = "local"
    """Whether the workers are processes of this machine or Ray actors."""
    budget_s: float | None = Field(default=None, gt=0)
    """Seconds for one batch; a worker that needs more is ended, and all its rows have failed."""

    @model_validator(mode="after")
    def _feasible(self) -> OperatorLimits:
        if problem := needs_workers(self.workers, self.where, self.budget_s):
            raise ValueError(problem)
        return self
