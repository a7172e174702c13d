"""`python -m benchmarks.trainer.child JSON FILE`: one contender's turn in a process of its own.

Its peak of resident memory is then that contender's alone, imports and loading included.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any


def in_child(what: str, threads: int, **given: Any) -> dict[str, Any]:
    """Do one of TASKS with `threads` CPU threads in a new process; what it found.

    Raises: RuntimeError with the end of its output when it fails.
    """
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "CUDA_VISIBLE_DEVICES": "",  # contenders are compared on the CPU, wherever this runs
        "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        order = json.dumps({"what": what, **given})
        command = [sys.executable, "-m", "benchmarks.trainer.child", order, str(answer)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)  # noqa: S603
        if done.returncode:
            raise RuntimeError(f"'{what}' of {given} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        found: dict[str, Any] = json.loads(answer.read_text())
        return found


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


TASKS: Mapping[str, Callable[..., dict[str, Any]]] = {"prepare": _prepare, "turn": _turn, "packing": _packing}


def main() -> None:
    """Do what the command line says and write what was found."""
    order, answer = json.loads(sys.argv[1]), Path(sys.argv[2])
    answer.write_text(json.dumps(TASKS[order.pop("what")](**order)))


if __name__ == "__main__":
    main()
