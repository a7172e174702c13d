"""`python -m benchmarks.trainer [--quick] [--parts steps,memory,packing] [--sizes tiny,100m] [--threads N]`.

An optimizer step on eight rows of 256 tokens by our trainer, by a bare PyTorch loop and by stock TRL, and
tokens a second of supervised training, packed and not. In each round every contender has its turn in a
process of its own, one after the other, so that a drift of the machine's speed meets all of them and peak
memory is each one's own; ratios are taken within rounds, and their median over rounds counts.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.child import in_child
from benchmarks.report import Bar, finish
from benchmarks.trainer.case import SIZES, Size

CHILD = "benchmarks.trainer.child"
CONTENDERS = ("bare", "ours", "stock")
PARTS = ("steps", "memory", "packing")
SAME = 1e-3
"""Relative difference of the first steps' gradient norms up to which contenders do the same update."""
Round = Mapping[str, Mapping[str, Any]]
"""By contender: `seconds` and `processor_seconds` of each step, `grad_norms`, `peak_mb`."""


def play_round(size: Size, folder: Path, threads: int, first: int) -> Round:
    """Every contender's turn; the `first`-th of them begins.

    Raises: RuntimeError when they do not do the same update.
    """
    order = [*CONTENDERS[first:], *CONTENDERS[:first]]
    steps = size.steps + 1
    found = {
        name: in_child(CHILD, "turn", threads, contender=name, folder=str(folder), steps=steps)
        for name in order
    }
    norms = {name: turn["grad_norms"][0] for name, turn in found.items()}
    if max(norms.values()) > (1 + SAME) * min(norms.values()):
        raise RuntimeError(
            f"contenders do not do the same update: gradient norms of the first step are {norms}"
        )
    return found


def round_figures(rounds: Sequence[Round]) -> dict[str, float]:
    """Medians over rounds: ms a step and peak MB of each contender, and ratios within rounds."""
    step = [{name: median(turn["seconds"][1:]) for name, turn in played.items()} for played in rounds]
    busy = [{name: median(t["processor_seconds"][1:]) for name, t in played.items()} for played in rounds]
    peak = [{name: turn["peak_mb"] for name, turn in played.items()} for played in rounds]
    found: dict[str, float] = {}
    for name in CONTENDERS:
        found[f"{name}_ms"] = 1e3 * median(times[name] for times in step)
        found[f"{name}_processor_ms"] = 1e3 * median(times[name] for times in busy)
        found[f"{name}_peak_mb"] = median(sizes[name] for sizes in peak)
    for peer in ("bare", "stock"):
        found[f"step_vs_{peer}"] = median(times["ours"] / times[peer] for times in step)
        found[f"processor_vs_{peer}"] = median(times["ours"] / times[peer] for times in busy)
        found[f"peak_vs_{peer}"] = median(sizes["ours"] / sizes[peer] for sizes in peak)
    return found


def bars(figures: Mapping[str, Mapping[str, Any]]) -> list[Bar]:
    """Bars of the figures, for the sizes that were measured."""
    wanted = (
        ("step_vs_bare_100m", "100m", "step_vs_bare", 1.1),
        ("step_vs_bare_500m", "500m", "step_vs_bare", 1.1),
        ("rss_vs_stock_trl", "100m", "peak_vs_stock", 1.0),
    )
    return [
        Bar(name, figures[size][figure], bound, ceiling=True)
        for name, size, figure, bound in wanted
        if figure in figures.get(size, {})
    ]


def show(name: str, parts: Sequence[str], found: Mapping[str, Any]) -> None:
    """A line for each part of one size."""
    head = f"{name} ({found['parameters'] / 1e6:,.1f} M parameters)"
    if "steps" in parts:
        cells = ", ".join(f"{who} {found[f'{who}_ms']:,.1f}" for who in CONTENDERS)
        ratios = f"ours/bare {found['step_vs_bare']:.3f}, ours/stock {found['step_vs_stock']:.3f}"
        busy = f"of processor time {found['processor_vs_bare']:.3f} and {found['processor_vs_stock']:.3f}"
        print(f"{head}: ms a step: {cells}; {ratios} ({busy})")
    if "memory" in parts:
        cells = ", ".join(f"{who} {found[f'{who}_peak_mb']:,.0f}" for who in CONTENDERS)
        print(f"{head}: peak MB resident: {cells}; ours/stock {found['peak_vs_stock']:.3f}")
    if "packing" in found:
        packing = found["packing"]
        packed = f"{packing['packed']:,.0f}" if "packed" in packing else "not on this device"
        reason = f" ({packing['obstacle']})" if packing["obstacle"] else ""
        print(f"{head}: SFT tokens/s: padded {packing['padded']:,.0f}, packed {packed}{reason}", flush=True)


def measure(size: Size, parts: Sequence[str], threads: int) -> dict[str, Any]:
    """The figures of one size; its model lives as long as this takes."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        found = in_child(CHILD, "prepare", threads, size=size.name, folder=str(folder))
        if {"steps", "memory"} & set(parts):
            rounds = [
                play_round(size, folder, threads, number % len(CONTENDERS)) for number in range(size.rounds)
            ]
            found |= round_figures(rounds)
        if "packing" in parts and size.sft_rows:
            found["packing"] = in_child(CHILD, "packing", threads, folder=str(folder), rows=size.sft_rows)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Print the lines, the bars and the JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trainer", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the tiny size, few steps")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args(argv)
    parts, sizes = arguments.parts.split(","), [SIZES[name] for name in arguments.sizes.split(",")]
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown parts {sorted(unknown)}; there are {', '.join(PARTS)}")
    if arguments.quick:
        sizes = [replace(SIZES["tiny"], steps=2, rounds=1, sft_rows=16)]
    figures = {}
    for size in sizes:
        figures[size.name] = measure(size, parts, arguments.threads)
        show(size.name, parts, figures[size.name])
    versions = {name: metadata.version(name) for name in ("rft-data", "torch", "trl", "transformers")}
    finish(bars(figures), versions, {"threads": arguments.threads, **figures})


if __name__ == "__main__":
    main()
