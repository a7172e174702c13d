"""One selector on one pool until the policy is good enough: rollouts, steps, and how well it foresaw rewards.

The selector is the shipped class behind its protocol, told what a run would tell it; it knows nothing of the
world.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.selectors.world import Floats, Ints, Policy
from rft_data.core.groups import GroupResult, Ticket
from rft_data.core.protocols import Selector
from rft_data.core.rows import TaskKey
from rft_data.tasks.selectors.calibration import Calibration

MAX_EXPLORED = 4.0
"""With refill: groups explored per step, in multiples of a step, as `max_explored` of a run's stage."""


class Oracle:
    """The tasks with the highest true p(1 - p): knows the policy, the difficulties and the unsolvable tasks.

    It is myopic: it does not foresee what a step makes learnable.
    """

    def __init__(self, policy: Policy, keys: Sequence[TaskKey]) -> None:
        """`keys`: of the pool's tasks, by number."""
        self._policy = policy
        self._keys = keys

    def select(self, n: int) -> list[TaskKey]:
        """The n best now."""
        rates = self._policy.pass_rates()
        return [self._keys[i] for i in np.argpartition(-rates * (1 - rates), n - 1)[:n]]

    def observe(self, results: Sequence[GroupResult]) -> None:
        """It knows already."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing of its own."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing of its own."""

    def metrics(self) -> dict[str, float]:
        """Nothing."""
        return {}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a run."""

    reached: bool
    """Whether the target was; if not, `steps` and `rollouts` are what was spent in vain."""
    steps: int
    rollouts: int
    """Number of all sampled rollouts, discarded ones too."""
    discarded: int
    """Rollouts of groups that were not trained on."""
    score: float
    """Mean true pass rate over the held-out tasks at the end."""
    brier: float | None
    """Brier score of the selector's predictions over all rollouts; None for one that predicts nothing."""
    brier_last_mean: float | None
    """Brier score of the last-mean estimator over the same rollouts."""
    calibration: list[dict[str, float]] | None
    """`Calibration.table`: groups, mean prediction and mean reward by tenth of the prediction."""


class Simulation:
    """A run of one policy under one selector."""

    def __init__(self, policy: Policy, selector: Selector, keys: Sequence[TaskKey], *, seed: int) -> None:
        """`keys`: of the pool's tasks, by number."""
        self._policy = policy
        self._selector = selector
        self._number = {key: i for i, key in enumerate(keys)}
        self._rng = np.random.default_rng([seed, 2])
        self._groups = 0
        self._rounds = 0
        self._discarded = 0

    def run(self, *, refill: bool, max_steps: int) -> Outcome:
        """Train until the held-out target or `max_steps`.

        Args: refill: explore others in place of groups of one verdict (DAPO, arXiv:2503.14476).
        """
        policy, size, steps = self._policy, self._policy.world.group_size, 0
        while steps < max_steps and policy.score() < policy.world.target:
            tasks, signal = self._step(policy.world.groups_per_step, steps, refill)
            if len(tasks):
                policy.learn(tasks, signal)
            steps += 1
        calibration: Calibration | None = getattr(self._selector, "calibration", None)
        foreseen = calibration.metrics() if calibration else {}
        return Outcome(
            reached=policy.score() >= policy.world.target,
            steps=steps,
            rollouts=self._groups * size,
            discarded=self._discarded * size,
            score=policy.score(),
            brier=foreseen.get("brier"),
            brier_last_mean=foreseen.get("brier_last_mean"),
            calibration=calibration.table() if calibration and foreseen else None,
        )

    def _step(self, wanted: int, version: int, refill: bool) -> tuple[Ints, Floats]:
        """The groups of one optimizer step and what each teaches."""
        tasks, signal = self._round(wanted, version, refill)
        room = int((MAX_EXPLORED - 1) * wanted)
        while refill and len(tasks) < wanted and room > 0:
            n = min(wanted - len(tasks), room)
            more, taught = self._round(n, version, refill)
            tasks, signal = np.concatenate([tasks, more]), np.concatenate([signal, taught])
            room -= n
        return tasks, signal

    def _round(self, n: int, version: int, drop: bool) -> tuple[Ints, Floats]:
        """Select, play and observe n groups; those kept, and what each teaches."""
        keys = self._selector.select(n)
        tasks = np.array([self._number[key] for key in keys], dtype=np.int64)
        rewards, signal = self._policy.sample(tasks, self._rng)
        keep = rewards.std(axis=1) > 0 if drop else np.ones(n, dtype=np.bool_)
        self._selector.observe(self._results(keys, rewards, keep, version))
        self._discarded += int((~keep).sum())
        return tasks[keep], signal[keep]

    def _results(
        self, keys: Sequence[TaskKey], rewards: Floats, keep: npt.NDArray[np.bool_], version: int
    ) -> list[GroupResult]:
        size, results = rewards.shape[1], []
        for key, row, kept in zip(keys, rewards.tolist(), keep.tolist(), strict=True):
            first = self._groups * size
            results.append(
                GroupResult(
                    ticket=Ticket(f"group-{self._groups}", self._groups, version, self._rounds),
                    task=key,
                    rewards=tuple(row),
                    outcome="arrived",
                    version_min=version,
                    seqs=tuple(range(first, first + size)) if kept else (),
                    dropped_by="" if kept else "dynamic_sampling_filter",
                )
            )
            self._groups += 1
        self._rounds += 1
        return results
