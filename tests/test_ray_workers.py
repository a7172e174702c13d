"""Workers of Ray nodes that are forked: what Ray sees of them is what it sees of those that it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ray_worker
from tests.processes import runs
from tests.ray_workers import workers_environment
from tests.waiting import wait_for

SCRIPT = """\
import os, sys, time
print(os.getpid(), os.getpgid(0), os.getcwd(), os.environ["OF_JOB"], sys.argv[1], end=" ")
print("torch" in sys.modules, flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(7)
"""


def started(folder: Path, seconds: int, **more: str) -> subprocess.Popen[str]:
    """What a raylet starts; the worker sleeps so long and ends with code 7."""
    (folder / "worker.py").write_text(SCRIPT)
    context = f'{{"env_vars": {{"OF_JOB": "yes-$HOME"}}, "command_prefix": ["cd {folder} &&"]}}'
    words = [str(folder / "worker.py"), str(seconds), "--language=PYTHON"]
    return subprocess.Popen(
        [sys.executable, ray_worker.__file__, *words, f"--serialized-runtime-env-context={context}"],
        env={**os.environ, **workers_environment(), "HOME": "here", **more},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(autouse=True)
def forked() -> None:
    if not workers_environment():
        pytest.skip("children of the tests are not forked here")


@pytest.mark.heavy
@pytest.mark.parametrize("more", [{}, {"HF_HOME": "elsewhere"}], ids=["forked", "as ever"])
def test_a_worker_is_of_its_job_and_its_exit_code_is_known(tmp_path: Path, more: dict[str, str]) -> None:
    node = started(tmp_path, 0, **more)
    said = node.communicate(timeout=60)[0].split()
    assert said[1:] == [said[0] if not more else said[1], str(tmp_path), "yes-here", "0", str(not more)]
    assert (int(said[0]) == node.pid) == bool(more)
    assert node.returncode == 7


@pytest.mark.slow
def test_a_worker_is_killed_with_what_was_started_for_it(tmp_path: Path) -> None:
    node = started(tmp_path, 600)
    assert node.stdout is not None
    worker = int(node.stdout.readline().split()[0])
    assert runs(worker)
    node.send_signal(signal.SIGKILL)
    wait_for(lambda: not runs(worker))
    node.communicate()


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_what_was_started_for_it(tmp_path: Path) -> None:
    node = started(tmp_path, 600)
    assert node.stdout is not None
    os.kill(int(node.stdout.readline().split()[0]), signal.SIGKILL)
    assert node.wait(60) == 128 + signal.SIGKILL
    node.stdout.close()
