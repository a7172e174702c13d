"""A grid of recorded cells as a command: its options, and running, listing or repeating what they ask for.

Each cell is `rft run` in a process of its own, and a line in the records. Nothing here knows what a cell
changes or what its numbers mean.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, TypeVar

from benchmarks.report import Bar
from benchmarks.selectors.records import RecordedCell, Records, repeat, repeated_bar

ENGINES = ("vllm", "transformers")
_SECONDS = 420.0
"""A cell takes this long where no record says better."""
_LOOK_S = 0.2


class Scale(Protocol):
    """How large the runs of a cell are."""

    @property
    def name(self) -> str:
        """The name that records give it."""


class GridCell(RecordedCell, Protocol):
    """A run of a grid."""

    @property
    def name(self) -> str:
        """The name of its folder."""

    @property
    def label(self) -> str:
        """Its name for `--only` and `--list`: its parts with commas between them, the seed second."""

    @property
    def scale(self) -> Scale:
        """How large it is."""


C = TypeVar("C", bound=GridCell)


@dataclass
class Played:
    """Cells that a command ran, with its bars."""

    records: Records
    failed: list[str] = field(default_factory=list)
    """Names of the cells that failed."""
    bars: list[Bar] = field(default_factory=list)
    """The bars of cells that were repeated."""


def options(
    program: str, about: str | None, records: Path, minutes: float = 180.0
) -> argparse.ArgumentParser:
    """The options that all grids have."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=about)
    parser.add_argument("--records", type=Path, default=records)
    parser.add_argument("--root", type=Path, help="keep the runs here; needed to resume a stopped cell")
    parser.add_argument(
        "--minutes", type=float, default=minutes, help="start no cell that cannot end by then"
    )
    parser.add_argument("--only", default="", help="NAME[,SEED[,...]]: only these cells, as --list has them")
    parser.add_argument("--quick", action="store_true", help="tiny runs, recorded apart: do they run at all")
    parser.add_argument(
        "--verify", type=int, default=0, metavar="N", help="run N random recorded cells again"
    )
    parser.add_argument("--list", action="store_true", help="print the cells that are missing and end")
    return parser


def seeds_asked_for(only: str, seeds: int) -> int:
    """So many seeds, or as many as it takes to have the one that `--only` names."""
    seed = (*only.split(","), "")[1]
    return max(seeds, int(seed or 0) + 1)


def played(
    arguments: argparse.Namespace, cells: Sequence[C], play: Callable[[C, Path], Mapping[str, Any]]
) -> Played | None:
    """Do what `options` ask for; None when that was to list.

    Raises: SystemExit when no cell is meant.
    """
    wanted = [cell for cell in cells if _is_meant(cell.label, arguments.only)]
    if not wanted:
        named = sorted({cell.label.split(",")[0] for cell in cells})
        sys.exit(f"there is no cell '{arguments.only}'; there are {', '.join(named)}, each with its seeds")
    done = Played(Records(arguments.records))
    if arguments.list:
        for cell in done.records.missing(wanted):
            print(cell.label)
        return None
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.verify:
            fresh = Path(temporary)
            differ = repeat(wanted, done.records, lambda cell: play(cell, fresh), arguments.verify)
            done.bars.append(repeated_bar(differ))
        else:
            root = arguments.root or Path(temporary)
            done.failed += _run(wanted, done.records, lambda cell: play(cell, root), arguments.minutes)
    return done


def _is_meant(label: str, only: str) -> bool:
    return all(part in ("", own) for part, own in zip(only.split(","), label.split(","), strict=False))


def _run(
    wanted: Sequence[C], records: Records, play: Callable[[C], Mapping[str, Any]], minutes: float
) -> list[str]:
    """Run what is missing; a cell is started only if one as slow as the slowest so far would end in time.

    Returns: names of the cells that failed.
    """
    ends, failed = time.monotonic() + 60 * minutes, []
    for cell in records.missing(wanted):
        alike = [row for row in records.rows() if row["scale"] == cell.scale.name]
        slowest = max((row["seconds"] + row.get("prepare_s", 0.0) for row in alike), default=_SECONDS)
        if time.monotonic() + slowest > ends:
            print(f"{cell.name}: not started, it may take {slowest:.0f} s")
            break
        try:
            record = play(cell)
        except RuntimeError as err:
            failed.append(cell.name)
            print(f"{cell.name}: FAILED\n{err}", file=sys.stderr, flush=True)
            continue
        records.append(record)
        print(f"{cell.name}: done in {record['seconds']:.0f} s", flush=True)
    return failed


def rft_run(
    recipe: Path, changes: Sequence[str], folder: Path, look: Callable[[], None] | None = None
) -> dict[str, Any]:
    """`rft run` of a recipe with `changes`, which put it into `folder`; its summary.

    Args: look: called again and again while it runs, and once more afterwards.
    Raises: RuntimeError with the end of its log when it fails.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_name(f"{folder.name}.log")
    with log.open("a") as out:
        process = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "rft_data.cli.app", "run", str(recipe), *changes],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            while look is not None and process.poll() is None:
                look()
                time.sleep(_LOOK_S)
            process.wait()
        finally:
            process.terminate()
            process.wait()
    if process.returncode:
        raise RuntimeError(f"{folder.name} ended with {process.returncode}:\n{log.read_text()[-3000:]}")
    if look is not None:
        look()
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def versions() -> dict[str, str]:
    """The versions of the packages with which the runs of a cell are made."""
    return {name: metadata.version(name) for name in ("rft-data", "trl", "torch")}
