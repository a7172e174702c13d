"""Tasks and results for the tests of selectors, and arguments under which each selector can be made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rft_data.core.groups import GroupResult, Ticket
from rft_data.core.rows import Task, TaskKey

INNER = {"use": "difficulty", "args": {"decay": 0.7}}
STAGES = [
    {"use": "easy_to_hard", "args": {"pace": 50}, "until": {"groups": 20}},
    {"use": "pools", "until": {"pass_rate": 0.4}},
    {"use": "hierarchical"},
]
ARGUMENTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "adaptive_target": ("adaptive_target", {"groups_per_update": 5}),
    "bandit": ("bandit", {}),
    "difficulty": ("difficulty", {}),
    "difficulty, greedy": ("difficulty", {"choice": "greedy"}),
    "easy_to_hard": ("easy_to_hard", {"pace": 200}),
    "hierarchical": ("hierarchical", {}),
    "hierarchical, embedded": ("hierarchical", {"embedding": "vector", "clusters": 3}),
    "interpolated": ("interpolated", {"groups_per_update": 5}),
    "learnability": ("learnability", {}),
    "mixture": ("mixture", {"temperature": 2.0, "inner": INNER}),
    "mopps": ("mopps", {}),
    "pools": ("pools", {}),
    "random": ("random", {}),
    "sequential": ("sequential", {}),
    "shuffle": ("shuffle", {}),
    "staged": ("staged", {"stages": STAGES}),
}
"""Every selector there is."""


def make_tasks(levels: int = 4, each: int = 50, taskset: str = "a", first: int = 0) -> list[Task]:
    """Tasks with everything a selector may ask of one."""
    return [make_task(taskset, level, first + i) for level in range(levels) for i in range(each)]


def make_task(taskset: str, level: int, number: int) -> Task:
    vector = [float(level), float(number % 3), 1.0]
    weak = 0.8 / (level + 1)
    return Task(
        taskset,
        ({"role": "user", "content": f"{level}-{number}"},),
        "0",
        difficulty=float(level),
        metadata={"vector": vector, "weak_pass_rate": weak / 2, "strong_pass_rate": weak},
    )


def outcome(
    key: TaskKey, rewards: Sequence[float | None], kind: str = "arrived", version: int = 0
) -> GroupResult:
    return GroupResult(Ticket("g", 0, 0), key, tuple(rewards), kind, version)


def play(
    selector: Any, tasks: Sequence[Task], rates: Mapping[float, float], rounds: int, rng: np.random.Generator
) -> list[float]:
    """Difficulties chosen in the last third of `rounds` rounds of 16 groups of 8."""
    level = {task.key: task.difficulty for task in tasks}
    chosen: list[float] = []
    for round_ in range(rounds):
        keys = selector.select(16)
        selector.observe([outcome(k, (rng.random(8) < rates[level[k]]).astype(float)) for k in keys])
        if round_ >= rounds * 2 // 3:
            chosen += [level[k] for k in keys]
    return chosen
