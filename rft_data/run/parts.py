"""The parts of a run, by mode.

`assembly.py` makes the parts once, from a recipe; nothing after it reads a recipe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rft_data.core.protocols import Pipeline
from rft_data.core.roles import Placement, RoleSpec
from rft_data.core.rows import Task
from rft_data.loop.closing import GroupCloser
from rft_data.loop.dispatch import Dispatcher
from rft_data.loop.fleet import Fleet
from rft_data.loop.online import Schedule
from rft_data.recipe.monitor import Monitor
from rft_data.recipe.offline import AnyOfflineStage, HeldoutPairs
from rft_data.recipe.tasksets import AnyExperts
from rft_data.run.control import RunControl
from rft_data.run.folder import Run
from rft_data.run.roles import OfflineCalls, Roles
from rft_data.tasks.curator import TaskCurator
from rft_data.weights.served import ServedModel

AnyModel = Path | ServedModel
"""A model that is played: its folder, or its name at an endpoint."""


@dataclass(frozen=True)
class Parts:
    """The parts that runs of every mode have."""

    run: Run
    roles: Roles
    seed: int


@dataclass(frozen=True)
class Started:
    """The processes and calls of a run that is running."""

    control: RunControl
    placement: Placement
    fleet: Fleet
    """Without explorers where nothing is explored."""
    offline: OfflineCalls


@dataclass(frozen=True)
class Tasks:
    """The recipe's tasks, each once, as `task_ops` left them."""

    all: Sequence[Task]
    report: Mapping[str, object]
    """How many were read and kept, by split, and what each operator dropped."""

    def of(self, split: str) -> list[Task]:
        """The tasks of a split, `train` or `heldout`."""
        return [task for task in self.all if task.split == split]


@dataclass(frozen=True)
class Heldout:
    """How a policy is measured: tasks that nothing is trained on, played on the explorers."""

    tasks: Sequence[Task]
    samples: int
    """Answers per task; one is greedy."""
    decided_by: str
    """The reward component that says whether a rollout passes, where there is no threshold."""
    threshold: float | None = None
    """Least effective reward of a rollout that passes."""
    shaping: Pipeline | None = None
    """Operators that shape rewards; None: the recipe has none."""
    decided_in: Mapping[str, str] = field(default_factory=dict)
    """`decided_by` of tasksets that have another one, by name."""


@dataclass(frozen=True)
class SamplerSettings:
    """The sampler that leases groups, and their source."""

    use: str
    args: Mapping[str, object]
    max_staleness: int | None
    """In optimizer steps; None: no bound."""
    mixed_in: Sequence[str]
    """Run ids of other groups that may be leased: other runs', and this run's experts'."""


@dataclass(frozen=True)
class RlParts:
    """The stage that trains by reinforcement."""

    algorithm: str
    trainer: RoleSpec
    """Complete but for the model it starts from and the checkpoint it resumes from."""
    schedule: Schedule
    sampler: SamplerSettings
    synchronous: bool
    """Whether everything trained was sampled by the weights that train on it."""
    closer: GroupCloser
    dispatcher: Dispatcher
    curator: TaskCurator | None
    """The dispatcher's selector, where tasks are curated as the run goes on."""
    monitor: Monitor
    checkpoints: Path
    step_deadline_s: float
    """Longest an optimizer step, a checkpoint or the writing of weights may take."""
    colocated: bool = False
    """Whether trainer and engines use the same GPUs in turns."""
    planned_elsewhere: int | None = None
    """Groups that another run plays in all, while this one trains on them; None: no other run explores."""

    def close(self) -> None:
        """Close the operators."""
        self.closer.pipeline.close()
        if self.curator is not None:
            self.curator.close()


@dataclass(frozen=True)
class OnlineParts(Parts):
    """Explore and train."""

    model: Path
    """The policy that the first stage starts from."""
    tasks: Tasks
    experts: Sequence[AnyExperts]
    """Components that make solutions before the first stage."""
    heldout: Heldout | None
    """None: nothing is measured."""
    offline_stages: Sequence[AnyOfflineStage]
    evaluate_every: int | None
    """Optimizer steps of the online stage between two evaluations; None: it is measured at its end."""
    heldout_share: float
    """Share of prompts held out of offline stages that choose among stored rows."""
    rl: RlParts


@dataclass(frozen=True)
class ServePlace:
    """A hub for trainers elsewhere."""

    host: str
    port: int
    secret: str = field(repr=False)
    idle_s: float
    """Seconds without a trainer after which it closes, once everything is played."""


@dataclass(frozen=True)
class ExploreParts(Parts):
    """Explore with a fixed policy."""

    model: AnyModel
    tasks: Tasks
    closer: GroupCloser
    dispatcher: Dispatcher
    groups: int
    """How many to play."""
    checkpoint_every: int
    """Groups between two checkpoints."""
    checkpoints: Path
    monitor: Monitor
    serve: ServePlace | None = None
    """The address at which runs of mode `train` reach the buffer; None: they do not."""


@dataclass(frozen=True)
class TrainParts(Parts):
    """Train on the groups of another run."""

    model: Path
    rl: RlParts


@dataclass(frozen=True)
class OfflineParts(Parts):
    """Train on what the buffer holds."""

    model: Path
    stages: Sequence[AnyOfflineStage]
    heldout: HeldoutPairs | None
    trackers: Sequence[str]


@dataclass(frozen=True)
class EvaluateParts(Parts):
    """Measure models."""

    models: Sequence[AnyModel]
    tasks: Tasks
    heldout: Heldout
    trackers: Sequence[str]
