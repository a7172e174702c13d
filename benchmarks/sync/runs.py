"""One run of the benchmark, and what its tables say of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from benchmarks.grid import rft_run
from benchmarks.sync.slow import rollout_latency_s
from rft_data.buffer import Buffer

HERE = Path(__file__).parent
MODES: Mapping[str, tuple[int, int]] = {"synchronous": (1, 0), "one-step": (1, 1), "asynchronous": (1, 3)}
"""Name to (publish every, most staleness)."""
_WARM_UP = 3
"""Steps left out of the rates: the first leases wait for the first rollouts."""
_WIND_DOWN = 4
"""Steps at the end in which nothing is explored any more, left out of what the hub costs."""
HUB_CPU_S = 0.12
"""Bound of the bar `hub_cpu_s_per_step`, for 256 rows a step."""


@dataclass(frozen=True)
class Setting:
    """Setting of one run."""

    mode: str
    seed: int
    steps: int
    distribution: str = ""
    """The distribution of the environment's waits; empty: it does not wait."""
    median_s: float = 0.5

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.mode}-{self.distribution or 'fast'}-{self.seed}"


@dataclass(frozen=True)
class Outcome:
    """Figures in a run's tables."""

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
    """CPU seconds of the conductor's process per step; see `hub_cpu_s`."""
    idle_s: float
    """Seconds per step between the end of one trainer call and the start of the next."""
    tail: float | None
    """Share of the slowest 5 % of tasks among the trained, over that among the dispatched."""

    @property
    def figures(self) -> dict[str, Any]:
        """The numbers as JSON values."""
        return {**asdict(self), "setting": asdict(self.setting)}

    @property
    def violations(self) -> int:
        """Groups trained past the bound."""
        return sum(n for lag, n in self.lag.items() if lag > MODES[self.setting.mode][1])


def prepare(root: Path) -> Path:
    """The folder of the model that every run starts from, made once."""
    folder = root / "prepare"
    if not (folder / "summary.json").is_file():
        rft_run(HERE / "prepare.yaml", [f"run_dir={folder}", f"buffer.uri={folder}/buffer"], folder)
    return folder / "stages" / "0-sft"


def play(setting: Setting, root: Path, model: Path) -> Outcome:
    """Run a setting in a process of its own, unless it was run before, and read what it left."""
    folder = root / setting.name
    every, staleness = MODES[setting.mode]
    changes = [
        f"name={setting.name}",
        f"run_dir={folder}",
        f"buffer.uri={folder}/buffer",
        f"seed={setting.seed}",
        f"sync.every={every}",
        f"sync.max_staleness={staleness}",
        f"model.path={model}",
        f"stages.0.steps={setting.steps}",
    ]
    if setting.distribution:
        wait = f"{{distribution: {setting.distribution}, median_s: {setting.median_s}}}"
        changes.append(f"explorer.workflow={{use: 'benchmarks.sync.slow:SlowTurn', args: {wait}}}")
    if not (folder / "summary.json").is_file():
        rft_run(HERE / "recipe.yaml", changes, folder)
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
        hub_cpu=hub_cpu_s(numbers["loop", "cpu_s"]),
        idle_s=float(np.median(numbers["seconds", "idle"][_WARM_UP:])),
        tail=tail,
    )


def hub_cpu_s(cpu_s: Sequence[float]) -> float:
    """CPU seconds per step of the process that has hub, operators, sampler, metrics and conductor in it.

    The mean, so that merges of tables count, which many steps are without.
    Args: `loop/cpu_s` of each step: of all threads of the process since the step before.
    """
    return float(np.mean(cpu_s[_WARM_UP:-_WIND_DOWN] or cpu_s[_WARM_UP:]))


def _wait(setting: Setting, group: Mapping[str, Any]) -> float:
    return rollout_latency_s(group["task_id"], setting.distribution, setting.median_s)


def _by_key(buffer: Buffer) -> dict[tuple[str, str], list[float]]:
    """(role, key) to values in order of steps."""
    rows = sorted(buffer.read("metrics").to_pylist(), key=lambda row: row["step"])
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        found.setdefault((row["role"], row["key"]), []).append(row["value"])
    return found


def tail_share(dispatched: ArrayLike, trained: ArrayLike, top: float = 0.05) -> float | None:
    """Share of the largest `top` of what was dispatched among what was trained, over their true share.

    1 when slow (or long) rollouts are trained on as often as they are started; below 1 when they are lost.
    Args: seconds or tokens, one for each group or rollout.
    Returns: None with fewer than 1 / `top` dispatched, or nothing trained.
    """
    started, used = np.asarray(dispatched, np.float64), np.asarray(trained, np.float64)
    if started.size < 1 / top or not used.size:
        return None
    bound = np.quantile(started, 1 - top)
    return float((used >= bound).mean() / (started >= bound).mean())
