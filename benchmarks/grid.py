"""Running a grid of recorded cells: each is `rft run` in a process of its own, and a line in the records.

It knows nothing of what a cell changes or what its numbers mean.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from benchmarks.selectors.records import RecordedCell, Records

_SECONDS = 300.0
"""A cell takes this long where no record says better; so does what prepares it."""


class Scale(Protocol):
    """How large the runs of a cell are."""

    @property
    def name(self) -> str:
        """As records have it."""


class GridCell(RecordedCell, Protocol):
    """A run of a grid."""

    @property
    def name(self) -> str:
        """Of its folder."""

    @property
    def scale(self) -> Scale:
        """How large it is."""


C = TypeVar("C", bound=GridCell)


def run_cells(
    wanted: Sequence[C], records: Records, play: Callable[[C], Mapping[str, Any]], minutes: float
) -> list[str]:
    """Run what is missing; a cell is started only if one as slow as the slowest so far would end in time.

    Returns: names of the cells that failed.
    """
    ends, failed = time.monotonic() + 60 * minutes, []
    for cell in records.missing(wanted):
        took = [
            row["seconds"] + row["prepare_s"] for row in records.rows() if row["scale"] == cell.scale.name
        ]
        slowest = max(took, default=_SECONDS)
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
        start, end, seconds = (record[key] for key in ("start", "end", "seconds"))
        print(f"{cell.name}: {start:.1%} -> {end:.1%} in {seconds:.0f} s", flush=True)
    return failed


def rft_run(recipe: Path, changes: Sequence[str], folder: Path) -> dict[str, Any]:
    """`rft run` of a recipe with `changes`, which put it into `folder`; its summary.

    Raises: RuntimeError with the end of its log when it fails.
    """
    log = folder.with_name(f"{folder.name}.log")
    code = "from rft_data.cli.app import main; main()"
    command = [sys.executable, "-c", code, "run", str(recipe), *changes]
    with log.open("a") as out:
        done = subprocess.run(  # noqa: S603 - our own command
            command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    if done.returncode:
        raise RuntimeError(f"{folder.name} ended with {done.returncode}:\n{log.read_text()[-3000:]}")
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary
