"""One program in a sandbox: what it says and how it ends; what becomes of it when others end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.sandbox.battery import HOST
from explorers.sandbox import Program, Sandbox, SandboxLimits
from rft_data.core.errors import RecipeError, SandboxError, UnknownComponentError
from rft_data.core.words import ProgramEnd, SandboxKind
from tests.processes import children_of, runs
from tests.waiting import wait_for


@pytest.mark.slow
def test_a_program_reads_stdin_and_writes(sandbox: Sandbox) -> None:
    source = "import sys\nprint(input()[::-1])\nprint('no', file=sys.stderr)\nsys.exit(3)"
    ran = sandbox.run(Program("python", source, "hello\n"))
    assert (ran.end, ran.status, ran.stdout, ran.stderr) == (ProgramEnd.EXITED, 3, "olleh\n", "no\n")
    assert not ran.succeeded


def test_a_shell_has_its_commands(sandbox: Sandbox) -> None:
    ran = sandbox.run(Program("bash", "read x; echo $x | tr a-z A-Z > out; cat out", "hello\n"))
    assert (ran.stdout, ran.succeeded) == ("HELLO\n", True), ran.stderr


@pytest.mark.slow
def test_a_program_may_be_given_less_time(sandbox: Sandbox) -> None:
    ran = sandbox.run(Program("bash", "echo 1; while :; do :; done", seconds=2))
    assert (ran.end, ran.stdout) == (ProgramEnd.TIMEOUT, "1\n")
    assert ran.seconds < SandboxLimits().seconds


def test_input_that_is_not_read_does_no_harm(sandbox: Sandbox) -> None:
    ran = sandbox.run(Program("python", "print(1)", "x" * 1_000_000))
    assert (ran.stdout, ran.succeeded) == ("1\n", True)


def test_long_input_and_output_meet(sandbox: Sandbox) -> None:
    text = "0123456789" * 20_000
    ran = sandbox.run(Program("python", "print(input())", text))
    assert ran.stdout == text + "\n"


def test_text_that_is_no_unicode_goes_through(sandbox: Sandbox) -> None:
    ran = sandbox.run(Program("python", "print(len(input()))  # \udcff", "a\udcffb\n"))
    assert ran.end == ProgramEnd.EXITED


def test_programs_share_nothing(sandbox: Sandbox) -> None:
    sandbox.run(Program("python", "open('left', 'w').write('x')"))
    ran = sandbox.run(Program("python", "import os; print(os.listdir('.'))"))
    assert ran.stdout == "[]\n"


@pytest.mark.slow
def test_a_language_that_is_not_known_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError, match="language 'pythn' is not known; did you mean 'python'"):
        sandbox.run(Program("pythn", ""))
    assert sandbox.run(Program("python", "print(1)")).stdout == "1\n"


@pytest.mark.parametrize(("name", "value"), [("seconds", 0), ("memory_mb", "1G"), ("processes", 1.5)])
def test_limits_out_of_range_are_refused(name: str, value: object) -> None:
    with pytest.raises(RecipeError, match=f"sandbox limit '{name}' is"):
        SandboxLimits(**{name: value})  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_host_that_dies_costs_its_program_only() -> None:
    with children_of(HOST) as hosts, Sandbox(SandboxKind.NONE) as sandbox, ThreadPoolExecutor(1) as threads:
        running = threads.submit(sandbox.run, Program("python", "import time; time.sleep(60)"))
        wait_for(lambda: [pid for pid in hosts if _folders(pid)])
        os.kill(hosts[0], signal.SIGKILL)
        with pytest.raises(SandboxError, match=r"the process of a sandbox ended \(signal SIGKILL"):
            running.result()
        assert sandbox.run(Program("python", "print(1)")).stdout == "1\n"
    with pytest.raises(SandboxError, match="closed"):
        sandbox.run(Program("python", ""))


_OWNER = """
import sys
import psutil
from explorers.sandbox import Program, Sandbox
source = '''
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/usr/bin/sleep", ["sleep", SECONDS], {})
    os._exit(0)
os.wait()
time.sleep(77.5)
'''.replace("SECONDS", repr(sys.argv[2]))
sandbox = Sandbox(sys.argv[1])
sandbox.run(Program("python", "pass"))
print(*[child.pid for child in psutil.Process().children()], flush=True)
sandbox.run(Program("python", source))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(SandboxKind))
def test_what_a_program_started_ends_with_the_process_that_asked(kind: SandboxKind) -> None:
    from tests.explorers.sandbox.conftest import skip_without

    if kind != SandboxKind.NONE:
        skip_without(kind)
    seconds = f"77.{os.getpid()}"  # another worker may have the same test with another kind of sandbox
    command = [sys.executable, "-c", _OWNER, kind, seconds]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout:
        host = int(owner.stdout.readline())
    wait_for(lambda: _sleepers(seconds))
    owner.kill()
    owner.wait()
    wait_for(lambda: not runs(host) and not _sleepers(seconds))
    assert list(Path(tempfile.gettempdir()).glob(f"rft-sandbox-{host}-*")) == []


def _sleepers(seconds: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if entry.read_bytes() == f"sleep\0{seconds}\0".encode():
                found.append(str(entry))
        except OSError:
            continue
    return found


def test_an_unknown_language_names_the_known() -> None:
    from explorers.sandbox.languages import find_interpreter

    with pytest.raises(UnknownComponentError, match="Built in: bash, lua, perl, python, ruby"):
        find_interpreter("cobol")


@pytest.mark.slow
def test_what_a_killed_host_left_is_deleted_by_the_next() -> None:
    with children_of(HOST) as hosts, Sandbox(SandboxKind.NONE) as sandbox, ThreadPoolExecutor(1) as threads:
        running = threads.submit(
            sandbox.run, Program("python", "open('x', 'w')\nimport time; time.sleep(60)")
        )
        wait_for(lambda: [pid for pid in hosts if _folders(pid)])
        [host] = hosts
        os.kill(host, signal.SIGKILL)
        with pytest.raises(SandboxError):
            running.result()
        assert _folders(host)
        assert sandbox.run(Program("python", "print(1)")).stdout == "1\n"
        assert not _folders(host)


def _folders(host: int) -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"rft-sandbox-{host}-*"))
