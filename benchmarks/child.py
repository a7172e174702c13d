"""A part of a benchmark in a process of its own: its peak of memory and its imports are then its alone.

`in_child` asks once. A `Contender` stays and is asked again and again, so that two of them can take turns of
seconds: what else the machine does then meets both.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

_ON_GPUS = "RFT_BENCH_GPUS"
Tasks = Mapping[str, Callable[..., dict[str, Any]]]
Turn = Callable[..., dict[str, Any]]
"""Takes one turn of a contender, by what is asked, and says what it found."""
Contenders = Mapping[str, Callable[..., AbstractContextManager[Turn]]]


def on_gpus(use: bool) -> dict[str, str]:
    """The environment of a process that sees the GPUs of this one, or none; its own children are told.

    Without this contenders are compared on the CPU, wherever a benchmark runs.
    """
    if use:
        return {**os.environ, _ON_GPUS: "1"}
    return {**os.environ, _ON_GPUS: "0", "CUDA_VISIBLE_DEVICES": ""}


def end_with_children() -> None:
    """From now on SIGTERM ends this process like an error, so that what it has started is ended too."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)


def in_child(module: str, what: str, threads: int, **given: Any) -> dict[str, Any]:
    """Do `what`, one of the tasks of a module that calls `answer`, with `threads` CPU threads; what it found.

    Raises: RuntimeError with the end of its output when it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "answer.json"
        order = json.dumps({"what": what, **given})
        command = [sys.executable, "-m", module, order, str(found)]
        done = subprocess.run(command, capture_output=True, text=True, env=_environment(threads))  # noqa: S603
        if done.returncode:
            raise RuntimeError(f"'{what}' of {given} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        figures: dict[str, Any] = json.loads(found.read_text())
        return figures


def _environment(threads: int) -> dict[str, str]:
    return {
        **on_gpus(os.environ.get(_ON_GPUS) == "1"),
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }


@contextmanager
def contender(module: str, what: str, threads: int, **given: Any) -> Iterator[Turn]:
    """A child with `what`, one of the contenders of a module that calls `take_turns`; it idles between turns.

    Raises: RuntimeError, at a turn, with the end of its output when it has failed.
    """
    reading, writing = os.pipe()
    command = [sys.executable, "-m", module, json.dumps({"what": what, **given}), str(writing)]
    with (
        tempfile.TemporaryFile("w+") as said,
        open(reading) as found,
        subprocess.Popen(  # noqa: S603 - a module of ours, no shell
            command,
            stdin=-1,
            stdout=said,
            stderr=said,
            text=True,
            env=_environment(threads),
            pass_fds=[writing],
        ) as process,
    ):
        os.close(writing)
        orders = cast("IO[str]", process.stdin)

        def turn(**asked: Any) -> dict[str, Any]:
            with suppress(BrokenPipeError):  # it has ended: what it said last is told below
                print(json.dumps(asked), file=orders, flush=True)
            if line := found.readline():
                figures: dict[str, Any] = json.loads(line)
                return figures
            said.seek(0)
            raise RuntimeError(f"'{what}' of {given} ended with {process.wait()}:\n{said.read()[-3000:]}")

        yield turn


def answer(tasks: Tasks) -> None:
    """In the child: do what the command line says and write what was found."""
    order, found = json.loads(sys.argv[1]), Path(sys.argv[2])
    found.write_text(json.dumps(tasks[order.pop("what")](**order)))


def take_turns(contenders: Contenders) -> None:
    """In the child of a `contender`: make what the command line says and take turns until the last."""
    order = json.loads(sys.argv[1])
    with open(int(sys.argv[2]), "w") as found, contenders[order.pop("what")](**order) as turn:
        for line in sys.stdin:
            print(json.dumps(turn(**json.loads(line))), file=found, flush=True)
