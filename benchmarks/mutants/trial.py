"""One mutant's trial: a forked child runs the tests of its module until one fails.

Libraries are imported before the fork, this repository's own modules after it, from the sandbox.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import Phase, settings

OURS = ("rft_data", "ops", "explorers", "trainers", "recipes", "tests", "docs", "benchmarks")
CPU_S = 90
WALL_S = 600
TEST_S = 150
MEMORY = 8 << 30
ENVIRONMENT = {
    # As tests/conftest.py and rft_data/run/build.py set it: read by libraries when they are imported.
    "HF_HUB_OFFLINE": "1",
    "OMP_THREAD_LIMIT": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


class Outcome(StrEnum):
    """Fate of a mutant."""

    KILLED = "killed"
    TIMEOUT = "timeout"
    """Killed too: a test waited or computed without end."""
    SURVIVED = "survived"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a trial ended."""

    outcome: Outcome
    killer: str
    """The test that failed; empty when a test file could not even be imported, or none failed."""
    cpu_s: float


def preload(libraries: Sequence[str]) -> None:
    """Import libraries once, for all children."""
    os.environ.update(ENVIRONMENT)
    for name in libraries:
        importlib.import_module(name)


def run_tests(
    folder: Path, tests: Sequence[str], first: Sequence[str] = (), only: Collection[str] | None = None
) -> Verdict:
    """Run test files in `folder`: the tests named `first` before others, slow ones last, until one fails."""
    report = folder.parent / "verdict.json"
    report.unlink(missing_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _be_the_child(folder, tests, report, _Order(first, only))
    ended, cpu_s = _wait(child)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not ended or not report.exists():
        return Verdict(Outcome.TIMEOUT if not ended else Outcome.KILLED, "", cpu_s)
    said = json.loads(report.read_text())
    return Verdict(Outcome(said["outcome"]), said["killer"], cpu_s)


def _wait(child: int) -> tuple[bool, float]:
    """Whether the child ended by itself, in time; and its seconds of CPU with those of its children."""
    deadline = time.monotonic() + WALL_S
    stopped = False
    while True:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            out_of_time = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU
            return not (stopped or out_of_time), usage.ru_utime + usage.ru_stime
        if time.monotonic() > deadline:
            stopped = True
            os.kill(child, signal.SIGKILL)
        time.sleep(0.02)


def _be_the_child(folder: Path, tests: Sequence[str], report: Path, order: _Order) -> None:
    """Never returns."""
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 5))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        log = os.open(folder.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(folder)
        os.environ["PYTHONPATH"] = str(folder)
        sys.path[:] = [str(folder), *(entry for entry in sys.path if entry and Path(entry) != Path.cwd())]
        for name in [name for name in sys.modules if name.split(".")[0] in OURS]:
            del sys.modules[name]
        importlib.invalidate_caches()
        options = [
            "-x",
            "-q",
            "--no-header",
            "-p",
            "no:xdist",
            "-p",
            "no:cacheprovider",
            f"--timeout={TEST_S}",
        ]
        code = pytest.main([*options, f"--basetemp={folder.parent / 'tmp'}", *tests], plugins=[order])
        report.write_text(json.dumps(order.verdict(int(code))))
    except BaseException:  # noqa: BLE001  a forked child must not go on in its parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(0)


class _Order:
    """A pytest plugin: puts likely killers first and slow tests last, and remembers the first failure."""

    def __init__(self, first: Sequence[str], only: Collection[str] | None) -> None:
        self._rank = {test: place for place, test in enumerate(first)}
        self._only = only
        self._failed: list[str] = []
        self._timeout = False

    def pytest_collection(self) -> None:
        """Once tests/conftest.py has its profile: a failure is enough, no smaller one is sought."""
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", settings(), phases=phases, report_multiple_bugs=False)
        settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._only is not None:
            items[:] = [item for item in items if item.nodeid in self._only]
        last = len(self._rank)
        items.sort(
            key=lambda item: (self._rank.get(item.nodeid, last), item.get_closest_marker("slow") is not None)
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.append(report.nodeid)
            self._timeout |= "Timeout (>" in report.longreprtext

    def verdict(self, code: int) -> dict[str, str]:
        if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return {"outcome": Outcome.SURVIVED, "killer": ""}
        outcome = Outcome.TIMEOUT if self._timeout else Outcome.KILLED
        return {"outcome": outcome, "killer": self._failed[0] if self._failed else ""}
