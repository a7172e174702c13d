"""A made-up policy and a pool of tasks whose true pass rates are known, to compare selectors on.

Its constants were written down with their reasons before any selector but the uniform one ran on it (that one
needs about 190 steps). It favours middling pass rates by construction, as policy gradients of 0/1 rewards do.
It is no model of a language model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rft_data.core.rows import Task

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class World:
    """Every modelling choice, and where it comes from. Difficulties and skills are in logits."""

    domains: int = 7
    rungs: int = 5
    """A skill is one rung of one domain: 35 skills, as MATH has subjects x levels (arXiv:2103.03874)."""
    rung_logits: float = 1.25
    """How much harder each rung is than the one before: the first starts at 62 % and the last at 1 %, so a
    pool holds mastered, learnable and unreachable tasks at once, as raw pools do before they are filtered."""
    domain_spread: float = 0.5
    """Standard deviation of the domains' own difficulty."""
    task_spread: float = 0.75
    """Standard deviation of a task's difficulty within its skill: that of a generator's difficulty level
    (reasoning-gym), where most of the variance (here 86 %) lies between levels."""
    start_skill: float = 0.5
    unsolvable: float = 0.10
    """Share of tasks nobody can solve (wrong reference answers), in every skill alike."""
    verifier_flip: float = 0.05
    """Chance that a rollout's verdict is the wrong one. An unsolvable task so gets a reward now and then."""
    wrong_label: float = 0.20
    """Share of tasks that carry the label of a random skill."""
    difficulty_noise: float = 1.0
    """Standard deviation of the error of the offline difficulty, for the selectors that need one."""
    group_size: int = 8
    groups_per_step: int = 64
    learning_rate: float = 3.0
    rung_transfer: float = 0.5
    """Practice on one rung counts this much on the next one of its domain, its square on the one after."""
    domain_transfer: float = 0.05
    """Practice in one domain counts this much in another."""
    forgetting: float = 0.001
    """Share of what was gained in a skill that a step takes back, practised or not."""
    wear: float = 0.0
    """Share by which a task teaches less each time it is played again: memorising. 0: a task never wears out,
    as in training on one example for a thousand steps (arXiv:2504.20571); an ablation sets it."""
    heldout: int = 2000
    target: float = 0.75
    """Mean true pass rate over held-out solvable tasks that ends a run."""

    @property
    def skills(self) -> int:
        """How many there are."""
        return self.domains * self.rungs

    def transfer(self) -> Floats:
        """(skill, skill): what a unit of signal in the second adds to the first."""
        rungs, domains = np.arange(self.rungs), np.eye(self.domains)
        within = self.rung_transfer ** np.abs(rungs[:, None] - rungs[None, :])
        return np.kron(domains + self.domain_transfer * (1 - domains), within)


@dataclass(frozen=True, slots=True)
class SimulatedTask(Task):
    """A task named by its number, so that 100,000 of them need no hashing."""

    @property
    def task_id(self) -> str:
        """The number as 32 hexadecimal digits, written in `answer`."""
        return self.answer or ""


@dataclass(frozen=True, slots=True)
class Pool:
    """N training tasks, by number, and the held-out ones."""

    skill: Ints
    difficulty: Floats
    solvable: npt.NDArray[np.bool_]
    label: Ints
    """The skill a task is said to belong to."""
    said_difficulty: Floats
    """The offline difficulty a task is said to have."""
    heldout_skill: Ints
    heldout_difficulty: Floats

    def tasks(self, *, difficulty: bool) -> list[Task]:
        """The tasks as a selector sees them: taskset = label, and the offline difficulty if it may see it.

        That one is rounded to half a logit.
        """
        said = np.round(2 * self.said_difficulty) / 2
        return [
            SimulatedTask(
                taskset=f"skill-{label:02d}",
                messages=(),
                answer=f"{i:016x}{0:016x}",
                difficulty=float(level) if difficulty else None,
            )
            for i, (label, level) in enumerate(zip(self.label, said, strict=True))
        ]


def make_pool(world: World, n: int, seed: int) -> Pool:
    """Draw n training tasks and the held-out ones; the same for the same seed."""
    rng = np.random.default_rng([seed, 1])
    base = np.repeat(rng.normal(0, world.domain_spread, world.domains), world.rungs)
    base += world.rung_logits * np.tile(np.arange(world.rungs), world.domains)
    skill, heldout_skill = (rng.integers(world.skills, size=size) for size in (n, world.heldout))
    difficulty, heldout_difficulty = (
        base[skills] + rng.normal(0, world.task_spread, len(skills)) for skills in (skill, heldout_skill)
    )
    mislabelled = rng.random(n) < world.wrong_label
    return Pool(
        skill=skill,
        difficulty=difficulty,
        solvable=rng.random(n) >= world.unsolvable,
        label=np.where(mislabelled, rng.integers(world.skills, size=n), skill),
        said_difficulty=difficulty + rng.normal(0, world.difficulty_noise, n),
        heldout_skill=heldout_skill,
        heldout_difficulty=heldout_difficulty,
    )


@dataclass(slots=True)
class Policy:
    """Skills that grow with what is practised. Pass rate of a task: sigmoid(skill - difficulty) (Rasch)."""

    world: World
    pool: Pool
    skills: Floats = field(init=False)
    _transfer: Floats = field(init=False)
    _plays: Ints = field(init=False)
    """Groups of each task that were trained on."""

    def __post_init__(self) -> None:
        self.skills = np.full(self.world.skills, self.world.start_skill)
        self._transfer = self.world.transfer()
        self._plays = np.zeros(len(self.pool.skill), dtype=np.int64)

    def pass_rates(self, tasks: Ints | slice = slice(None)) -> Floats:
        """True chance that a rollout of each task is right; 0 for an unsolvable one."""
        pool = self.pool
        logits = self.skills[pool.skill[tasks]] - pool.difficulty[tasks]
        return np.where(pool.solvable[tasks], 1 / (1 + np.exp(-logits)), 0.0)

    def score(self) -> float:
        """Mean true pass rate over the held-out tasks."""
        logits = self.skills[self.pool.heldout_skill] - self.pool.heldout_difficulty
        return float(np.mean(1 / (1 + np.exp(-logits))))

    def sample(self, tasks: Ints, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Play one group of each task.

        Returns: rewards (tasks, group) as the verifier gives them, and what each group teaches, (tasks,): the
            covariance of verdict and truth within the group. Its expectation is (1 - 2 flip) p (1 - p), the
            policy gradient of a 0/1 reward under a logistic policy with the group's mean as baseline; the
            expected improvement is proportional to it (LILO, arXiv:2502.12272). A group of one verdict
            teaches nothing; flipped verdicts can teach the wrong thing.
        """
        size = self.world.group_size
        truth = rng.random((len(tasks), size)) < self.pass_rates(tasks)[:, None]
        rewards = (truth ^ (rng.random(truth.shape) < self.world.verifier_flip)).astype(np.float64)
        covariance = (rewards * truth).mean(axis=1) - rewards.mean(axis=1) * truth.mean(axis=1)
        return rewards, covariance * size / (size - 1)

    def learn(self, tasks: Sequence[int] | Ints, signal: Floats) -> None:
        """One optimizer step on groups of these tasks: the mean of what they teach, less forgetting."""
        tasks = np.asarray(tasks)
        fresh = (1.0 - self.world.wear) ** self._plays[tasks]
        np.add.at(self._plays, tasks, 1)
        practised = np.bincount(self.pool.skill[tasks], signal * fresh, self.world.skills) / len(tasks)
        gained = self.skills - self.world.start_skill
        self.skills += self.world.learning_rate * self._transfer @ practised - self.world.forgetting * gained
