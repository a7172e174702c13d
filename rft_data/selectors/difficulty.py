"""Tasks whose pass rate is near a target, by a Beta posterior per task.

Groups teach most where some rollouts pass and some fail; a group of one outcome has no gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rft_data.errors import RecipeError
from rft_data.rows import GroupResult, Task, TaskKey


class Difficulty:
    """Thompson sampling toward a target pass rate.

    Task i of difficulty class c has posterior Beta(k*m_c + s_i, k*(1 - m_c) + f_i): s and f are its own
    decayed passes and fails, m_c the decayed pass rate of its class (tasks of one taskset with one
    offline difficulty), k the weight of that prior in rollouts. The class prior is what makes a
    first visit useful: tasks usually outnumber visits. A draw from each posterior is taken and the
    tasks nearest the target are chosen. Decay forgets outcomes of older policies.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        seed: int,
        target_pass_rate: float = 0.5,
        decay: float = 0.8,
        prior_weight: float = 4.0,
    ) -> None:
        """`decay` multiplies a task's (and its class's) counts at each new group of it.

        Raises: RecipeError when there is no task.
        """
        if not tasks:
            raise RecipeError(
                "selector 'difficulty' has no task to choose from; look at the recipe's 'tasks'."
            )
        ordered = sorted(tasks, key=lambda task: task.key)
        self._keys = [task.key for task in ordered]
        self._index = {key: i for i, key in enumerate(self._keys)}
        classes = [(task.taskset, task.difficulty) for task in ordered]
        self._class_names = list(dict.fromkeys(classes))
        position = {name: i for i, name in enumerate(self._class_names)}
        self._class = np.array([position[name] for name in classes])
        self._counts = np.zeros((len(self._keys), 2))
        """Decayed (passes, fails) per task; a reward in (0, 1) counts as part of each."""
        self._class_counts = np.ones((len(self._class_names), 2))
        self._target = target_pass_rate
        self._decay = decay
        self._prior_weight = prior_weight
        self._rng = np.random.default_rng(seed)

    def _posterior(self) -> tuple[np.ndarray, np.ndarray]:
        mean = self._class_counts[:, 0] / self._class_counts.sum(axis=1)
        prior = self._prior_weight * mean[self._class]
        return prior + self._counts[:, 0], self._prior_weight - prior + self._counts[:, 1]

    def select(self, n: int) -> list[TaskKey]:
        """The n tasks whose drawn pass rates are nearest the target (repeats only when n > tasks)."""
        chosen: list[TaskKey] = []
        while len(chosen) < n:
            draw = self._rng.beta(*self._posterior())
            order = np.argsort(np.abs(draw - self._target), kind="stable")
            chosen += [self._keys[i] for i in order[: n - len(chosen)]]
        return chosen

    def observe(self, results: Sequence[GroupResult]) -> None:
        """Learn from groups that arrived; failed, cancelled and wholly unscored ones are ignored."""
        for result in results:
            scored = np.array([r for r in result.rewards if r is not None], dtype=np.float64)
            place = self._index.get(result.task)
            if result.outcome != "arrived" or not len(scored) or place is None:
                continue
            passes = float(np.clip(scored, 0.0, 1.0).sum())
            outcome = np.array([passes, len(scored) - passes])
            self._counts[place] = self._decay * self._counts[place] + outcome
            # a class gathers many groups per step, so it forgets more slowly than a task
            group_decay = self._decay ** (1 / 16)
            self._class_counts[self._class[place]] = (
                group_decay * self._class_counts[self._class[place]] + outcome
            )

    def state_dict(self) -> dict[str, Any]:
        """Posterior and random generator."""
        visited = np.flatnonzero(self._counts.any(axis=1))
        return {
            "counts": {_name(self._keys[i]): self._counts[i].tolist() for i in visited},
            "class_counts": self._class_counts.tolist(),
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        for i, key in enumerate(self._keys):
            self._counts[i] = state["counts"].get(_name(key), (0.0, 0.0))
        self._class_counts = np.array(state["class_counts"], dtype=np.float64)
        self._rng.bit_generator.state = state["rng"]

    def metrics(self) -> dict[str, float]:
        """Estimated pass rate of each difficulty class, and the share of tasks visited."""
        rates = self._class_counts[:, 0] / self._class_counts.sum(axis=1)
        named = {
            f"pass_rate/{taskset}/{level}": float(rate)
            for (taskset, level), rate in zip(self._class_names, rates, strict=True)
        }
        return {**named, "visited": float(self._counts.any(axis=1).mean())}


def _name(key: TaskKey) -> str:
    """A task's name in the saved state; one question may be in two tasksets."""
    return f"{key.taskset}/{key.task_id}"
