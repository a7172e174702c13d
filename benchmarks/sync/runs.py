"""One run of the benchmark, and what its tables say of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rft_data.buffer import Buffer
from rft_data.metrics.facts import tail_share
from benchmarks.sync.slow import latency_of

RECIPE = Path(__file__).with_name("recipe.yaml")
MODES: Mapping[str, tuple[int, int]] = {"synchronous": (1, 0), "one-step": (1, 1), "asynchronous": (1, 3)}
"""Name to (publish every, most staleness)."""
_WARM_UP = 3
"""Steps left out of the rates: the first leases wait for the first rollouts."""


@dataclass(frozen=True)
class Setting:
    """What one run is given."""

    mode: str
    seed: int
    steps: int
    distribution: str = ""
    """Of the environment's waits; empty: none."""
    median_s: float = 0.5
    overrides: Sequence[str] = ()

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.mode}-{self.distribution or 'fast'}-{self.seed}"


@dataclass(frozen=True)
class Outcome:
    """What a run's tables say."""

    setting: Setting
    steps_per_s: float
    tokens_per_s: float
    busy: Mapping[str, float]
    """Share of the time each role had a call under way."""
    reward: float
    """Mean over the last quarter of the steps."""
    lag: Mapping[int, int]
    """Trained groups by optimizer steps between sampling and training."""
    hub_cpu: float
    """CPU seconds of the conductor (hub, operators, sampler) per step."""
    hub_wait_s: float
    """Seconds per step between the end of one trainer call and the start of the next, groups being ready."""
    tail: float | None
    """Share of the slowest 5 % of tasks among the trained, over that among the dispatched."""
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def violations(self) -> int:
        """Groups trained past the bound."""
        return sum(n for lag, n in self.lag.items() if lag > MODES[self.setting.mode][1])


def play(setting: Setting, root: Path, model: Path | None) -> Outcome:
    """Run a setting in a process of its own and read what it left."""
    folder = root / setting.name
    every, staleness = MODES[setting.mode]
    changes = [
        f"name={setting.name}",
        f"run_dir={folder}",
        f"buffer.uri={folder}/buffer",
        f"seed={setting.seed}",
        f"sync.every={every}",
        f"sync.max_staleness={staleness}",
        *([] if model is None else [f"model={{path: {model}}}"]),
        *setting.overrides,
    ]
    stage = 0 if model is not None else 1
    changes.append(f"stages.{stage}.steps={setting.steps}")
    if setting.distribution:
        wait = f"{{distribution: {setting.distribution}, median_s: {setting.median_s}}}"
        changes.append(f"explorer.workflow={{use: 'benchmarks.sync.slow:SlowTurn', args: {wait}}}")
    recipe = RECIPE if model is not None else RECIPE.with_name("prepare.yaml")
    log = root / f"{setting.name}.log"
    with log.open("w") as out:
        done = subprocess.run(
            [sys.executable, "-m", "rft_data", "run", str(recipe), *changes],
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    if done.returncode:
        raise RuntimeError(f"{setting.name} ended with {done.returncode}:\n{log.read_text()[-3000:]}")
    return read(setting, folder)


def read(setting: Setting, folder: Path) -> Outcome:
    """The outcome of a finished run."""
    with Buffer(folder / "buffer", read_only=True) as buffer:
        numbers = _by_key(buffer)
        groups = buffer.read("groups", ["group_id", "task_id", "version_min", "outcome"]).to_pylist()
        leases = [row for row in buffer.read("leases").to_pylist() if row["kind"] == "grant"]
        step_of = {row["version"]: row["step"] for row in buffer.read("versions").to_pylist()}
    by_id = {group["group_id"]: group for group in groups}
    trained = [(by_id[name], lease) for lease in leases for name in lease["group_ids"]]
    lags = [step_of[lease["version"]] - step_of[group["version_min"]] for group, lease in trained]
    clock = numbers["loop", "elapsed_s"]
    elapsed = clock[-1] - clock[_WARM_UP - 1]
    steps = len(clock) - _WARM_UP
    tokens = sum(numbers["trainer", "tokens"][_WARM_UP:]) if ("trainer", "tokens") in numbers else 0.0
    busy = {
        role: float(np.sum(values[_WARM_UP:]) / elapsed)
        for (role, key), values in numbers.items()
        if key == "busy_s"
    }
    tail = None
    if setting.distribution:
        waits = [_wait(setting, group) for group in groups]
        tail = tail_share(waits, [_wait(setting, group) for group, _ in trained])
    reward = numbers["trainer", "reward"]
    return Outcome(
        setting=setting,
        steps_per_s=steps / elapsed,
        tokens_per_s=tokens / elapsed,
        busy=busy,
        reward=float(np.mean(reward[-max(1, len(reward) // 4) :])),
        lag={lag: lags.count(lag) for lag in sorted(set(lags))},
        hub_cpu=float(np.median(numbers["loop", "cpu_s"][_WARM_UP:])),
        hub_wait_s=float(np.median(numbers["loop", "idle_s"][_WARM_UP:])),
        tail=tail,
    )


def _wait(setting: Setting, group: Mapping[str, Any]) -> float:
    return latency_of(group["task_id"], setting.distribution, setting.median_s)


def _by_key(buffer: Buffer) -> dict[tuple[str, str], list[float]]:
    """(role, key) to values in order of steps."""
    rows = sorted(buffer.read("metrics").to_pylist(), key=lambda row: row["step"])
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        found.setdefault((row["role"], row["key"]), []).append(row["value"])
    return found
