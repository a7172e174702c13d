"""The explorer's own work around a scripted engine: turns, waiting worlds, cancelled and broken rollouts."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.explorer.scripted import ScriptedEngine
from explorers.role import ExplorerRole, explorer_role
from rft_data.buffer import Buffer
from rft_data.core.groups import Assignment, Played, Ticket
from rft_data.core.rows import Task, WeightRef
from trainers.models.tiny_model import build_tiny_tokenizer

_HERE = "benchmarks.explorer.scripted"
GROUP = 8


@dataclass(frozen=True)
class Explored:
    """Rollouts that a role has played."""

    played: list[Played]
    rows: pa.Table
    metrics: Mapping[str, float]
    engine: ScriptedEngine
    cpu_s: float
    """CPU seconds of this process while it played, all threads together."""


@contextmanager
def scripted_role(
    workflow: Mapping[str, Any], engine: Mapping[str, Any], limits: Mapping[str, Any]
) -> Iterator[tuple[ExplorerRole, Buffer]]:
    """The explorer's own role on a buffer, with a scripted engine."""
    with tempfile.TemporaryDirectory() as folder, Buffer(f"{folder}/buffer") as buffer:
        build_tiny_tokenizer().save_pretrained(f"{folder}/model")
        (Path(folder) / "model" / "config.json").write_text('{"model_type": "qwen2"}')
        role = explorer_role(
            buffer,
            plan={
                "engine": {"use": f"{_HERE}:ScriptedEngine", **engine},
                "model": f"{folder}/model",
                "workflow": dict(workflow),
                "reward": [],
                "run_id": "bench",
                "attempt": 0,
                "explorer_id": "explorer-0",
                "group_size": GROUP,
                "sampling": {"max_tokens": 16},
                "limits": dict(limits),
            },
        )
        try:
            asyncio.run(role.load_weights(WeightRef("bench", 0, 0, "")))
            yield role, buffer
        finally:
            role.close()


def assignments(groups: int) -> list[Assignment]:
    """A group for each of so many tasks, whose first messages all differ."""
    tasks = [Task("bench", ({"role": "user", "content": f"{i}: begin"},), str(i)) for i in range(groups)]
    return [Assignment(Ticket(f"g-{i}", i, 0), task) for i, task in enumerate(tasks)]


def explored(
    groups: int,
    workflow: Mapping[str, Any],
    engine: Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
) -> Explored:
    """Play groups of GROUP rollouts all at once."""
    with scripted_role(workflow, engine or {}, limits or {}) as (role, buffer):

        async def play() -> tuple[list[Played], float, dict[str, float]]:
            started = time.process_time()
            played = await role.explore(assignments(groups))
            return played, time.process_time() - started, await role.metrics()

        played, cpu_s, metrics = asyncio.run(play())
        rows = buffer.take([seq for group in played for seq in group.seqs])
        return Explored(played, rows, metrics, ScriptedEngine.newest, cpu_s)


def turns(rollouts: int, count: int) -> dict[str, float]:
    """Conversations of `count` turns at once: CPU ms a turn, and whether history was left alone."""
    short = explored(rollouts // GROUP, {"use": f"{_HERE}:play_turns", "args": {"args": {"turns": 1}}})
    long = explored(rollouts // GROUP, {"use": f"{_HERE}:play_turns", "args": {"args": {"turns": count}}})
    return {
        "multi_turn_overhead_ms": 1e3 * (long.cpu_s - short.cpu_s) / (rollouts * (count - 1)),
        "first_turn_and_row_ms": 1e3 * short.cpu_s / rollouts,
        "history_tokenised_again": float(long.engine.retokenised()),
        "rows_per_rollout": long.metrics["rows_per_rollout"],
        "turns_asked": len(long.engine.prompts) / rollouts,
    }


def slow_worlds(count: int, longest_s: float) -> dict[str, float]:
    """So many environments at once, and an engine of a 16th of the places: its time without work."""
    found = explored(
        count // GROUP,
        {"use": f"{_HERE}:SlowWorld", "args": {"args": {"longest_s": longest_s}, "pool": {"size": count}}},
        {"turn_s": 0.1 * longest_s, "slots": count // 16},
    )
    return {
        "slow_env_engine_idle": found.engine.idle_s / found.metrics["elapsed_s"],
        "slow_env_seconds": found.metrics["elapsed_s"],
        "slow_env_rollouts": found.metrics["rollouts_arrived"],
    }


def cancelled(rollouts: int) -> dict[str, float]:
    """Rollouts cancelled amid a step: environments that stay open, or whose `close` failed."""
    workflow = {"use": f"{_HERE}:SlowWorld", "args": {"args": {"longest_s": 0.4}, "pool": {"size": rollouts}}}
    with scripted_role(workflow, {}, {}) as (role, _):

        async def play() -> dict[str, float]:
            playing = asyncio.create_task(role.explore(assignments(-(-rollouts // GROUP))))
            await asyncio.sleep(0.5)
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            before = await role.metrics()
            for _ in range(100):
                await asyncio.sleep(0.05)
                now = await role.metrics()
                if not now["environments_open"]:
                    break
            return {
                "env_leaks": now["environments_open"] + now["environment_leaks"],
                "env_cancelled": before["rollouts_cancelled"],
            }

        return asyncio.run(play())


def deaths(groups: int, share: float) -> dict[str, float]:
    """Worlds that die: rollouts of them that are stored with a reward of zero, or scored at all."""
    found = explored(
        groups,
        {"use": f"{_HERE}:play_with_deaths", "args": {"args": {"share": share}}},
        limits={"retries": 0, "min_members": 1},
    )
    rewards = found.rows["reward"].to_numpy(zero_copy_only=False)
    return {
        "infra_zeros": float(np.count_nonzero(rewards == 0.0)),
        "infra_deaths": found.metrics["rollouts_failed"],
        "infra_scored": float(np.count_nonzero(~np.isnan(rewards))),
    }
