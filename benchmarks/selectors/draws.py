"""Cost of choosing and learning with very many tasks, in processor time (it waits for nothing).

Every selector chooses 256 tasks and learns from 256 groups of 8 in turn, with 50,000 tasks visited before.
Beside them a softmax over all scores and a draw from it, as O(N) selectors do. `staged` is left out: it
costs what its stages cost.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.report import Bar
from rft_data.core.groups import GroupResult, Ticket
from rft_data.core.rows import Task, TaskKey
from rft_data.tasks.selectors import make_selector

DRAWN = 256
GROUP = 8
VISITED = 50_000
ROUNDS = 40
LIMIT_MS = 5.0
LIMIT_BYTES = 200.0
MEASURED = 100_000
"""Tasks with which memory is measured; it grows in proportion."""
CONTENDERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "adaptive_target": ("adaptive_target", {}),
    "bandit": ("bandit", {}),
    "difficulty": ("difficulty", {}),
    "difficulty, greedy": ("difficulty", {"choice": "greedy"}),
    "easy_to_hard": ("easy_to_hard", {}),
    "hierarchical": ("hierarchical", {}),
    "interpolated": ("interpolated", {}),
    "learnability": ("learnability", {}),
    "mixture of hierarchical": ("mixture", {"inner": {"use": "hierarchical"}}),
    "mopps": ("mopps", {}),
    "pools": ("pools", {}),
    "random": ("random", {}),
    "sequential": ("sequential", {}),
    "shuffle": ("shuffle", {}),
}
_SPREAD = 0x9E3779B97F4A7C15F39CC0605CEDC835
_REFERENCES = {"weak_pass_rate": 0.3, "strong_pass_rate": 0.7}


@dataclass(frozen=True, slots=True)
class NumberedTask(Task):
    """A task whose id is a number, scattered: a million content hashes would take longer than the rest."""

    number: int = 0

    @property
    def task_id(self) -> str:
        """An id as long as a content hash."""
        return f"{self.number * _SPREAD % 2**128:032x}"


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one selector; times are medians and maxima in milliseconds."""

    build_s: float
    draw_ms: float
    draw_max_ms: float
    observe_ms: float
    observe_max_ms: float
    state_ms: float
    bytes_per_task: float
    state_bytes_per_visited: float


def numbered_tasks(n: int) -> list[Task]:
    """n tasks of two tasksets and ten levels of difficulty."""
    return [
        NumberedTask("ab"[i % 2], (), difficulty=float(i % 10), metadata=_REFERENCES, number=i + 1)
        for i in range(n)
    ]


def outcomes(keys: Sequence[TaskKey], version: int, rng: np.random.Generator) -> list[GroupResult]:
    """A group for each task, its pass rate random."""
    rewards = (rng.random((len(keys), GROUP)) < rng.random((len(keys), 1))).astype(float).tolist()
    ticket = Ticket("run/0", 0, version)
    return [
        GroupResult(ticket, key, tuple(r), "arrived", version) for key, r in zip(keys, rewards, strict=True)
    ]


def measured_cost(use: str, args: Mapping[str, Any], tasks: Sequence[Task], rounds: int = ROUNDS) -> Cost:
    """Play `rounds` rounds of 256 groups with one selector."""
    rng = np.random.default_rng(0)
    start = time.process_time()
    selector = make_selector(use, args, tasks, 0)
    build_s = time.process_time() - start
    fixed = len(json.dumps(selector.state_dict()))
    visited = [task.key for task in tasks[: min(VISITED, len(tasks))]]
    selector.observe(outcomes(visited, 0, rng))
    size = (len(json.dumps(selector.state_dict())) - fixed) / len(visited)
    spent: dict[str, list[float]] = {"draw": [], "observe": [], "state": []}
    selector.select(DRAWN)  # makes what the first draw makes
    for version in range(rounds):
        start = time.process_time()
        keys = selector.select(DRAWN)
        drawn = time.process_time()
        results = outcomes(keys, version, rng)
        before = time.process_time()
        selector.observe(results)
        after = time.process_time()
        spent["draw"].append((drawn - start) * 1e3)
        spent["observe"].append((after - before) * 1e3)
    start = time.process_time()
    selector.state_dict()
    state_ms = (time.process_time() - start) * 1e3
    draws, observes = spent["draw"], spent["observe"]
    return Cost(
        build_s=build_s,
        draw_ms=statistics.median(draws),
        draw_max_ms=max(draws),
        observe_ms=statistics.median(observes),
        observe_max_ms=max(observes),
        state_ms=state_ms,
        bytes_per_task=bytes_per_task(use, args, tasks[:MEASURED]),
        state_bytes_per_visited=size,
    )


def bytes_per_task(use: str, args: Mapping[str, Any], tasks: Sequence[Task]) -> float:
    """Memory a selector holds per task beside the tasks themselves."""
    gc.collect()
    tracemalloc.start()
    selector = make_selector(use, args, tasks, 0)
    selector.observe(outcomes(selector.select(DRAWN), 0, np.random.default_rng(0)))
    selector.select(DRAWN)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return held / len(tasks)


def softmax_ms(n: int, rounds: int) -> float:
    """Median milliseconds of a softmax over n scores and a draw of 256 without replacement."""
    rng = np.random.default_rng(0)
    scores, spent = rng.random(n), []
    for _ in range(rounds):
        start = time.process_time()
        weights = np.exp((scores - scores.max()) / 0.1)
        rng.choice(n, DRAWN, replace=False, p=weights / weights.sum())
        spent.append((time.process_time() - start) * 1e3)
    return statistics.median(spent)


def measure(n: int, rounds: int, names: Sequence[str]) -> tuple[list[Bar], dict[str, Any]]:
    """Print a row for each selector; returns the bars over the slowest, and the figures behind them."""
    tasks = numbered_tasks(n)
    print(f"{n:,} tasks, {DRAWN} a round, processor time: median (maximum)")
    print(f"{'selector':<24}{'draw ms':>16}{'observe ms':>16}{'state ms':>10}{'B/task':>8}{'build s':>9}")
    costs: dict[str, Cost] = {}
    for name in names:
        costs[name] = cost = measured_cost(*CONTENDERS[name], tasks, rounds)
        draw = f"{cost.draw_ms:.2f} ({cost.draw_max_ms:.2f})"
        observe = f"{cost.observe_ms:.2f} ({cost.observe_max_ms:.2f})"
        print(
            f"{name:<24}{draw:>16}{observe:>16}{cost.state_ms:>10.1f}{cost.bytes_per_task:>8.0f}"
            f"{cost.build_s:>9.1f}",
            flush=True,
        )
    softmax = softmax_ms(n, rounds)
    print(f"{'softmax over all':<24}{softmax:>9.2f}")
    bars = [
        Bar("draw_256_of_1e6_ms", max(c.draw_ms for c in costs.values()), LIMIT_MS, ceiling=True),
        Bar("observe_256_of_1e6_ms", max(c.observe_ms for c in costs.values()), LIMIT_MS, ceiling=True),
        Bar("bytes_per_task", max(c.bytes_per_task for c in costs.values()), LIMIT_BYTES, ceiling=True),
        Bar(
            "state_bytes_per_visited",
            max(c.state_bytes_per_visited for c in costs.values()),
            LIMIT_BYTES,
            ceiling=True,
        ),
    ]
    rows = {name: {k: round(getattr(c, k), 3) for k in Cost.__slots__} for name, c in costs.items()}
    return bars, {"tasks": n, "softmax_ms": round(softmax, 3), "selectors": rows}
