"""A part of a benchmark in a process of its own: its peak of memory and its imports are then its alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_ON_GPUS = "RFT_BENCH_GPUS"
Tasks = Mapping[str, Callable[..., dict[str, Any]]]


def on_gpus(use: bool) -> dict[str, str]:
    """The environment of a process that sees the GPUs of this one, or none; its own children are told.

    Without this contenders are compared on the CPU, wherever a benchmark runs.
    """
    if use:
        return {**os.environ, _ON_GPUS: "1"}
    return {**os.environ, _ON_GPUS: "0", "CUDA_VISIBLE_DEVICES": ""}


def in_child(module: str, what: str, threads: int, **given: Any) -> dict[str, Any]:
    """Do `what`, one of the tasks of a module that calls `answer`, with `threads` CPU threads; what it found.

    Raises: RuntimeError with the end of its output when it fails.
    """
    environment = {
        **on_gpus(os.environ.get(_ON_GPUS) == "1"),
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "answer.json"
        order = json.dumps({"what": what, **given})
        command = [sys.executable, "-m", module, order, str(found)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)  # noqa: S603
        if done.returncode:
            raise RuntimeError(f"'{what}' of {given} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        figures: dict[str, Any] = json.loads(found.read_text())
        return figures


def answer(tasks: Tasks) -> None:
    """In the child: do what the command line says and write what was found."""
    order, found = json.loads(sys.argv[1]), Path(sys.argv[2])
    found.write_text(json.dumps(tasks[order.pop("what")](**order)))
