"""`python -m benchmarks.learning [--minutes M] [--only ALGORITHM,SEED,VARIANT] [--list] [--quick] ...`.

Trains every online algorithm on sums for a fixed budget and prints held-out accuracy before and after; GRPO
also with rewards that mean nothing, and algorithms that differ only off policy with rollouts of older
weights. A finished cell is a line in the records; with `--root` a cell that was stopped goes on from its last
checkpoint; one that fails is told and the next has its turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.grid import ENGINES, options, played, seeds_asked_for, versions
from benchmarks.learning.cells import Cell, Scale, Variant, play
from benchmarks.learning.verdicts import bars, table
from benchmarks.report import finish
from benchmarks.selectors.records import bars_of_all
from rft_data.recipe.algorithms import ALGORITHMS

RECORDS = Path(__file__).parent / "records" / "learning.jsonl"
SEEDS = 2
CONTROL = "grpo"
"""The algorithm of the negative control."""
CONTROL_SEEDS = 4
"""The control needs more seeds, since it is judged by how far its own runs differ."""
OFF_POLICY = (
    "grpo", "gspo", "sapo", "dapo", "cispo", "vespo", "m2po", "dual_clip", "decoupled_ppo", "loglinear_ppo",
    "sequence_masking", "importance_sampling", "rloo", "rec", "topr", "opmd", "sppo", "ppo", "a2c",
)  # fmt: skip
"""Algorithms of which at least two make the same update while every step is on-policy."""


def cells(scale: Scale, engine: str, seeds: int = SEEDS) -> list[Cell]:
    """The grid, seed by seed, the control's further seeds last."""
    control = (CONTROL, Variant.SHUFFLED)
    named = [control, *((name, Variant.PLAIN) for name in ALGORITHMS)]
    named += [(name, Variant.STALE) for name in OFF_POLICY]
    order = [(seed, one) for seed in range(seeds) for one in named]
    order += [(seed, control) for seed in range(seeds, CONTROL_SEEDS)]
    return [Cell(name, seed, engine, scale, variant) for seed, (name, variant) in order]


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing and report."""
    parser = options("benchmarks.learning", __doc__, RECORDS)
    parser.add_argument("--engine", choices=ENGINES, default="vllm")
    arguments = parser.parse_args(argv)
    scale = Scale.tiny() if arguments.quick else Scale()
    wanted = cells(scale, arguments.engine, seeds_asked_for(arguments.only, SEEDS))
    done = played(arguments, wanted, play)
    if done is None:
        return
    whole = cells(scale, arguments.engine)
    rows = done.records.found(whole)
    print(table(rows, list(ALGORITHMS)))
    found = bars(rows, {Variant.PLAIN: list(ALGORITHMS), Variant.STALE: OFF_POLICY}, CONTROL)
    found = bars_of_all(found, done.records.missing(whole)) + done.bars
    finish(found, versions(), {"cells": len(rows), "failed": done.failed})


if __name__ == "__main__":
    main()
