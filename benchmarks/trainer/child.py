"""`python -m benchmarks.trainer.child JSON FILE`: one contender's turn in a process of its own.

Its peak of resident memory is then that contender's alone, imports and loading included.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.child import Tasks, answer


def peak_mb() -> float:
    """Highest resident memory of this process so far, MB."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1e3


def _prepare(size: str, folder: str) -> dict[str, Any]:
    from benchmarks.trainer.case import SIZES, write_case

    return write_case(SIZES[size], Path(folder)).facts()


def _turn(contender: str, folder: str, steps: int) -> dict[str, Any]:
    from benchmarks.trainer.case import Case
    from benchmarks.trainer.contenders import CONTENDERS

    with tempfile.TemporaryDirectory() as output:
        turn = CONTENDERS[contender](Case(Path(folder)), steps, Path(output))
    return {**asdict(turn), "peak_mb": peak_mb()}


def _packing(folder: str, rows: int) -> dict[str, Any]:
    from benchmarks.trainer.case import Case
    from benchmarks.trainer.packing import obstacle, tokens_per_s

    case = Case(Path(folder))
    reason = obstacle(case)
    found: dict[str, Any] = {"obstacle": reason, "padded": tokens_per_s(case, rows, "padded")}
    if not reason:
        found["packed"] = tokens_per_s(case, rows, "packed")
    return found


TASKS: Tasks = {"prepare": _prepare, "turn": _turn, "packing": _packing}


if __name__ == "__main__":
    answer(TASKS)
