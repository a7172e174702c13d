"""`python -m benchmarks.selectors.study [--minutes M] [--only NAME,N,SEED]`: does choosing tasks help?

Runs the cells that are not in the records yet, then prints tables and bars from the records. Each cell is one
selector on one pool of N tasks with one seed; a cell that is there with the same code is not run again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.report import Bar, finish
from benchmarks.selectors.records import FOLDER, Records, bars_of_all, code_version, repeat, repeated_bar
from benchmarks.selectors.savings import best, calibration, cell_mean, share_of_saving, summary
from benchmarks.selectors.simulator import Oracle, Simulation
from benchmarks.selectors.world import Policy, Pool, World, make_pool
from rft_data.core.canonical import content_id
from rft_data.core.protocols import Selector
from rft_data.core.rows import Task
from rft_data.tasks.selectors.make import SELECTORS, make_selector

SIZES = (1_000, 4_000, 10_000, 100_000)
SEEDS = 5
MAX_STEPS = 600
"""Three times what the uniform choice needs."""
WORLDS: Mapping[str, World] = {
    "standard": World(),
    "vague": World(rung_logits=0.8, task_spread=1.5),  # labels explain 40 % of the difficulty, not 86 %
    "blind": World(wrong_label=1.0),  # labels say nothing
    "worn": World(wear=0.1),  # a task teaches 10 % less each time it is played again
}
_SIZE_OF_BARS = 4_000
_PACKAGES = ("benchmarks.selectors.", "rft_data.tasks.selectors.")
"""Packages whose code a cell depends on."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A selector as it takes part; arguments are the shipped defaults unless given."""

    use: str
    args: Mapping[str, Any] = field(default_factory=dict)
    refill: bool = False
    """Discard groups of one verdict and explore others (DAPO)."""
    difficulty: bool = False
    """It is told a noisy offline difficulty of every task; all are told noisy skill labels."""


CONTENDERS: Mapping[str, Contender] = {
    "uniform": Contender("shuffle"),
    "dapo_filter": Contender("shuffle", refill=True),
    "easy_to_hard": Contender("easy_to_hard", difficulty=True),
    "pools": Contender("pools"),
    "mopps": Contender("mopps"),
    "learnability": Contender("learnability"),
    "difficulty": Contender("difficulty"),
    "bandit": Contender("bandit"),
    "adaptive_target": Contender("adaptive_target", difficulty=True),
    "hierarchical": Contender("hierarchical"),
    "oracle": Contender("oracle"),
}
ELIGIBLE = ("pools", "mopps", "learnability", "difficulty", "bandit", "hierarchical")
"""Selectors that may meet the bars: chosen by results alone, never told a difficulty."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    world: str
    selector: str
    n_tasks: int
    seed: int

    @property
    def command(self) -> str:
        """Command that runs it alone."""
        only = f"{self.selector},{self.n_tasks},{self.seed}"
        return f"python -m benchmarks.selectors.study --world {self.world} --only {only}"

    @property
    def recipe_hash(self) -> str:
        """A hash of the world, the selector's configuration and the code of both."""
        contender = CONTENDERS[self.selector]
        world = asdict(WORLDS[self.world])
        return content_id(asdict(self), world, asdict(contender), MAX_STEPS, _code(contender.use))


@cache
def _code(use: str) -> str:
    """A hash of the code of the world and of the selector."""
    own = () if use == "oracle" else (SELECTORS[use].__module__,)
    return code_version(("benchmarks.selectors.simulator", *own), within=_PACKAGES)


def cells(seeds: int) -> list[Cell]:
    """The whole study, pool by pool; the other worlds only at one size."""
    sizes = [("standard", n) for n in SIZES] + [
        (world, _SIZE_OF_BARS) for world in WORLDS if world != "standard"
    ]
    places = [(world, n, seed) for world, n in sizes for seed in range(seeds)]
    return [Cell(world, selector, n, seed) for world, n, seed in places for selector in CONTENDERS]


def run_cell(cell: Cell, pool: Pool, tasks: Sequence[Task]) -> dict[str, Any]:
    """Run one cell; its record."""
    contender, began = CONTENDERS[cell.selector], time.perf_counter()
    policy, keys = Policy(WORLDS[cell.world], pool), [task.key for task in tasks]
    if contender.use == "oracle":
        selector: Selector = Oracle(policy, keys)
    else:
        selector = make_selector(contender.use, contender.args, tasks, cell.seed)
    simulation = Simulation(policy, selector, keys, seed=cell.seed)
    outcome = simulation.run(refill=contender.refill, max_steps=MAX_STEPS)
    return {
        **asdict(cell),
        **asdict(outcome),
        "rollouts_to_target": outcome.rollouts if outcome.reached else None,
        "seconds": round(time.perf_counter() - began, 2),
        "command": cell.command,
        "recipe_hash": cell.recipe_hash,
    }


def again(cell: Cell) -> dict[str, Any]:
    """Run one cell by itself."""
    pool = make_pool(WORLDS[cell.world], cell.n_tasks, cell.seed)
    return run_cell(cell, pool, pool.tasks(difficulty=CONTENDERS[cell.selector].difficulty))


def run_cells(wanted: Sequence[Cell], records: Records, minutes: float) -> None:
    """Run what is missing, pool by pool, until the time is up; every finished cell is recorded at once."""
    ends = time.monotonic() + 60 * minutes
    for (world, n, seed), group in _by_pool(records.missing(wanted)):
        pool = make_pool(WORLDS[world], n, seed)
        views = {
            sees: pool.tasks(difficulty=sees) for sees in {CONTENDERS[c.selector].difficulty for c in group}
        }
        for cell in group:
            if time.monotonic() > ends:
                return
            record = run_cell(cell, pool, views[CONTENDERS[cell.selector].difficulty])
            records.append(record)
            print(
                f"{world:<9}{cell.selector:<17}{n:>7}  seed {seed}  {record['rollouts']:>7} rollouts  "
                f"{record['steps']:>4} steps  {record['seconds']:>6.1f} s"
                + ("" if record["reached"] else "  (not reached)"),
                flush=True,
            )


def _by_pool(wanted: Sequence[Cell]) -> Iterator[tuple[tuple[str, int, int], list[Cell]]]:
    groups: dict[tuple[str, int, int], list[Cell]] = {}
    for cell in wanted:
        groups.setdefault((cell.world, cell.n_tasks, cell.seed), []).append(cell)
    yield from groups.items()


def sim_bars(rows: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """The simulator's bars, from records; a study that is not complete does not hold them."""
    sizes = [{"world": "standard", "n_tasks": n} for n in SIZES]
    winner, worst = best(rows, ELIGIBLE, sizes)
    share = share_of_saving(rows, winner, "oracle", world="standard", n_tasks=_SIZE_OF_BARS)
    briers = [_brier_ratio(rows, winner, cell) for cell in sizes]
    return [
        Bar("best_vs_uniform_rollouts_sim", worst, 1.6),
        Bar("share_of_oracle_saving_4000", share, 0.75),
        Bar("brier_vs_last_mean", max(briers), 1.0, ceiling=True),
    ]


def _brier_ratio(rows: Sequence[Mapping[str, Any]], selector: str, cell: Mapping[str, Any]) -> float:
    """The selector's Brier score over that of the last mean; infinite when there is no record."""
    own, last = (
        cell_mean(rows, column, selector=selector, **cell) for column in ("brier", "brier_last_mean")
    )
    return own / last if last > 0 else float("inf")


def report(path: Path) -> tuple[Sequence[Mapping[str, Any]], list[Bar]]:
    """The records of the present code and the bars read from them."""
    records, wanted = Records(path), cells(SEEDS)
    rows = records.found(wanted)
    return rows, bars_of_all(sim_bars(rows), records.missing(wanted))


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """The tables for people, in Markdown."""
    columns = {
        "rollouts": "{:,.0f}".format,
        "steps": "{:.0f}".format,
        "discarded": "{:,.0f}".format,
        "brier": "{:.4f}".format,
        "brier_last_mean": "{:.4f}".format,
    }
    for world, n in dict.fromkeys((row["world"], row["n_tasks"]) for row in rows):
        print(f"\n{world} world, {n:,} tasks\n")
        print(summary(rows, list(CONTENDERS), columns, world=world, n_tasks=n))
    winner, _ = best(rows, ELIGIBLE, [{"world": "standard", "n_tasks": n} for n in SIZES])
    if winner:
        print(f"\npredictions of '{winner}', {_SIZE_OF_BARS:,} tasks\n")
        print(calibration(rows, winner, world="standard", n_tasks=_SIZE_OF_BARS))


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.selectors.study", description=__doc__)
    parser.add_argument("--records", type=Path, default=FOLDER / "simulator.jsonl")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"default {SEEDS}")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no cell after; 0: report only")
    parser.add_argument("--world", choices=list(WORLDS), help="only this world")
    parser.add_argument("--only", default="", help="SELECTOR[,N[,SEED]]: only these cells")
    parser.add_argument(
        "--verify", type=int, default=0, metavar="N", help="run N random recorded cells again"
    )
    parser.add_argument("--list", action="store_true", help="print the cells that are missing and end")
    arguments = parser.parse_args(argv)
    name, n, seed = (*arguments.only.split(","), "", "")[:3]
    wanted = [
        cell
        for cell in cells(max(arguments.seeds, int(seed or 0) + 1))
        if arguments.world in (None, cell.world)
        and name in ("", cell.selector)
        and n in ("", str(cell.n_tasks))
        and seed in ("", str(cell.seed))
    ]
    records = Records(arguments.records)
    if arguments.list:
        for cell in records.missing(wanted):
            print(f"{cell.world} {cell.selector},{cell.n_tasks},{cell.seed}")
        return
    if not arguments.verify:
        run_cells(wanted, records, arguments.minutes)
    rows, bars = report(arguments.records)
    show(rows)
    if arguments.verify:
        bars.append(repeated_bar(repeat(wanted, records, again, arguments.verify)))
    versions = {name: metadata.version(name) for name in ("rft-data", "numpy")}
    finish(bars, versions, {"cells": len(rows), "missing": len(records.missing(cells(SEEDS)))})


if __name__ == "__main__":
    main()
