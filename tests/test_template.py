"""What comes from the template is a child like any other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import template
from tests.processes import runs
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(
    subprocess._fork_exec is template._real,  # type: ignore[attr-defined]
    reason="every child starts afresh here (RFT_TEST_FRESH, or another system than Linux)",
)
RFT = [sys.executable, "-m", template.COMMAND]


@pytest.mark.slow
def test_a_child_has_the_folder_environment_and_streams_that_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def graded(task, completion): return 1.0\n")
    (tmp_path / "mine.yaml").write_text("recipe: 1\nname: ${env:RFT_NAMED}\n")
    given = {**os.environ, "RFT_NAMED": "there was no such mode"}
    done = subprocess.run(
        [*RFT, "recipe", "validate", "mine.yaml"], cwd=tmp_path, env=given, capture_output=True, text=True
    )
    afresh = subprocess.run(
        ["env", *RFT, "recipe", "validate", "mine.yaml"],
        cwd=tmp_path,
        env=given,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (afresh.returncode, afresh.stdout, afresh.stderr)
    assert done.returncode == 2
    assert "mine.yaml" in done.stderr


def test_it_is_a_child_of_this_process_and_ends_as_it_is_told(tmp_path: Path) -> None:
    command = [*RFT, "view", str(tmp_path)]
    env = template._environment_here  # without what tests before this one have set
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        process = psutil.Process(child.pid)
        assert process.ppid() == os.getpid()
        assert any(word == str(template.PROCESS) for word in process.cmdline())
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL


SAYS = (
    f"{template.FORK}import os, sys; print(os.getpid(), os.getppid(), 'torch' in sys.modules, *sys.argv[1:])"
)
CALLS = f"""{template.FORK}
import os, subprocess, sys
print(os.getpid(), os.getppid(), "torch" in sys.modules, flush=True)
subprocess.run([sys.executable, *sys.argv[1:]], check=True)
print("ended", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_code_that_may_be_forked_is_and_so_is_what_it_starts() -> None:
    command = [sys.executable, "-c", CALLS, "-c", SAYS, "given"]
    env = template._environment_here  # as above
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline().split() == [str(child.pid), str(os.getpid()), "True"]
        assert child.stdout.readline().split()[1:] == [str(child.pid), "True", "given"]
        assert child.stdout.readline() == "ended\n"
        beside = psutil.Process(child.pid).children()
        assert len(beside) == 1, "the copy of the template"
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    wait_for(lambda: not runs(beside[0].pid))


@pytest.mark.parametrize(
    ("name", "suits"),
    [("RFT_ANY", True), ("HF_ENDPOINT", False), ("PYTHONPATH", True)],
)
def test_a_variable_that_imports_read_needs_a_process_of_its_own(name: str, suits: bool) -> None:
    assert template.suits({**template._environment_here, name: "other"}) is suits
