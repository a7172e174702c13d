"""Starts of a run that a failpoint ends by SIGKILL, or that end by themselves, each in a process of its own.

`python -m tests.rft_data.run.killing` imports the libraries and uses none of them, and then forks a child for
each order: so a start costs no imports, and no thread or lock of another start is copied.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from rft_data.core import failpoints
from rft_data.recipe import load_recipe
from rft_data.run.build import prepare_process
from rft_data.run.start import run_recipe

ROOT = Path(__file__).parents[3]
LIBRARIES = (
    "trainers.policy.grpo",
    "trainers.offline.offline_stage",
    "trainers.offline.sft",
    "explorers.engines.{engine}_engine",
    "ops.runtime.pipeline",
    "lance",
)


class Starts:
    """The process that starts runs."""

    def __init__(self, engine: str, log: Path) -> None:
        """`log`: what the runs say."""
        self._log = log
        with log.open("w") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, engine],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )

    def start(self, recipe: Path, changes: list[str], point: str, at: int) -> int:
        """Start a run, or go on with it, with a failpoint that kills; its exit code (-N: signal N)."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps([str(recipe), changes, f"{point}:{at}:kill"]), file=process.stdin, flush=True)
        answer = process.stdout.readline()
        assert answer, self._log.read_text()
        return int(answer)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


@contextmanager
def starts(engine: str, log: Path) -> Iterator[Starts]:
    """The process for a `with` block."""
    process = Starts(engine, log)
    try:
        yield process
    finally:
        process.close()


def forked(recipe: Path, changes: list[str], armed: str) -> int:
    """The exit code of a start in a child."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        os.dup2(2, 1)
        os.environ["RFT_FAILPOINT"] = armed  # for the processes of its roles
        failpoints._armed = failpoints._from_environment()
        run_recipe(load_recipe(recipe, changes))
    except BaseException:  # noqa: BLE001 - a forked child must never run its parent's code
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def serve(engine: str) -> None:
    """Carry out orders until the input ends."""
    prepare_process()
    for name in LIBRARIES:
        import_module(name.format(engine=engine))
    gc.freeze()
    for line in sys.stdin:
        recipe, changes, armed = json.loads(line)
        sys.stdout.write(f"{forked(Path(recipe), changes, armed)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
