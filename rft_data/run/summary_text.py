"""The summary of a finished run as text, which a person can paste: results, counts, and further commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_COLUMN = 9
"""Width of a model's column; models with longer names are numbered."""


def table(summary: Mapping[str, Any]) -> str:
    """The results of a run of any mode, of those that its summary has; older releases have fewer."""
    counted = [
        _line("groups", summary.get("groups", {})),
        _line("groups of", _several(summary.get("groups_by_taskset", {}))),
        _line("buffer", summary.get("buffer_rows", {})),
        _line("tokens", summary.get("tokens", {})),
        _line("endpoint", summary.get("endpoint", {})),
        _line("wall time", {k: f"{v:.0f} s" for k, v in summary.get("seconds", {}).items()}),
    ]
    results = [*_stages(summary.get("stages", {})), *_preferences(summary.get("preferences", {}))]
    if (accuracy := summary.get("heldout_accuracy")) is not None:
        results += _accuracy_lines(summary) if accuracy else [_UNMEASURED]
    return "\n".join([*results, *[""] * bool(results), *filter(None, counted)])


_UNMEASURED = "nothing was measured: the recipe has no 'evaluation'"


def _line(name: str, values: Mapping[str, Any]) -> str:
    """The numbers that are not zero, in a line; empty where all are."""
    found = ", ".join(f"{key} {value}" for key, value in values.items() if value)
    return f"{name:<10}{found}" if found else ""


def _several(counts: Mapping[str, int]) -> Mapping[str, int]:
    """The counts by name, unless there is a single name, whose count is told already."""
    return counts if len(counts) > 1 else {}


def _stages(stages: Mapping[str, Any]) -> Iterator[str]:
    """A line for each offline stage."""
    for name, report in stages.items():
        told = report["metrics"]
        left = ", ".join(f"{count} left out: {why}" for why, count in report.get("left_out", {}).items())
        loss = f", loss {told['loss_first']:.4g} -> {told['loss_last']:.4g}" if "loss_first" in told else ""
        yield (
            f"stage {name}: {report['examples']} examples, {told['steps']:.0f} steps{loss}"
            + (f"; {left}" if left else "")
        )


def _preferences(measured: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """How often each model told the better of two answers."""
    for name, found in measured.items():
        yield (
            f"preferences, {name}: {100 * found['accuracy']:.1f}% of {found['pairs']:.0f} pairs told right, "
            f"margin {found['margin']:.3f}"
        )


def _accuracy_lines(summary: Mapping[str, Any]) -> list[str]:
    """Measurements on held-out tasks, a column for each model."""
    accuracy, by_class = summary["heldout_accuracy"], summary["by_difficulty"]
    classes = sorted({name for rates in by_class.values() for name in rates})
    width = max(len(name) for name in [*classes, "held-out accuracy"])
    short = all(len(model) < _COLUMN for model in accuracy)
    heads = dict(zip(accuracy, accuracy if short else map(str, range(1, len(accuracy) + 1)), strict=True))
    lines = [] if short else [*(f"model {head}: {model}" for model, head in heads.items()), ""]
    lines.append(f"{'held-out accuracy':<{width}}" + "".join(f"{head:>{_COLUMN}}" for head in heads.values()))
    for name in classes:
        shares = "".join(f"{100 * by_class.get(model, {}).get(name, 0.0):>8.1f}%" for model in accuracy)
        lines.append(f"{name:<{width}}{shares}")
    lines.append(f"{'all':<{width}}" + "".join(f"{100 * value:>8.1f}%" for value in accuracy.values()))
    for model, shares in summary["pass_at_k"].items():
        said = ", ".join(f"{k}: {100 * v:.1f}%" for k, v in shares.items())
        lines.append(f"pass@k {heads.get(model, model)}: {said}")
    return lines + _reward_lines(summary, width)


def _reward_lines(summary: Mapping[str, Any], width: int) -> list[str]:
    """Mean rewards with their standard errors below the accuracies, and the best weights."""
    found = summary.get("heldout_reward", {})
    lines = []
    for name, key in (("mean reward", "reward"), ("standard error", "reward_error")):
        values = [found.get(model, {}).get(key) for model in summary["heldout_accuracy"]]
        if any(value is not None for value in values):
            lines.append(_row(name, values, width))
    lines += _part_lines(summary, width)
    if best := summary.get("best"):
        lines.append(
            f"best: step {best['step']}, {100 * float(str(best['pass_rate'])):.1f}% pass, {best['model']}"
        )
    return lines


def _part_lines(summary: Mapping[str, Any], width: int) -> list[str]:
    """A line for each reward component, where there are several: the reward does not tell them apart."""
    found = summary.get("heldout_parts", {})
    names = sorted({name for parts in found.values() for name in parts})
    if len(names) < 2:
        return []
    models = summary["heldout_accuracy"]
    return [
        _row(name.rpartition(":")[2], [found.get(model, {}).get(name) for model in models], width)
        for name in names
    ]


def _row(name: str, values: Sequence[float | None], width: int) -> str:
    shown = "".join(f"{'-' if value is None else f'{value:.3f}':>{_COLUMN}}" for value in values)
    return f"{name:<{width}}{shown}"


def next_steps(program: str, again: str, run_dir: str, buffer: str, rows: Mapping[str, int]) -> str:
    """Commands to look further.

    Args: again: the command that starts the run anew; empty where none does. rows: of the buffer's tables.
    """
    lines = ["look further:", f"  {program} status {run_dir}", f"  {program} buffer info {buffer}"]
    for name, count in (("experiences", 3), ("annotations", 8)):
        if rows.get(name):
            lines.append(f"  {program} buffer head {buffer} --table {name} -n {count}")
    if again:
        lines.append(f"  {program} {again} --fresh   # again, from the start")
    return "\n".join([*lines, f"  {program} resume {run_dir}   # continue a run that was stopped"])
