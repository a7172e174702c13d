"""Child processes: they answer, are late, end, and take what they started with them."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rft_data.core.children import Child, how_it_ended
from tests.processes import runs

ACTS = "tests.rft_data.core.child_acts"
Start = Callable[..., Child]


@pytest.fixture
def start() -> Iterator[Start]:
    """Children, closed at the end."""
    children: list[Child] = []

    def begin(act: str, **settings: object) -> Child:
        children.append(Child(ACTS, act, **settings))
        return children[-1]

    yield begin
    for child in children:
        child.close()


def gone(pid: int) -> bool:
    end = time.monotonic() + 30
    while runs(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not runs(pid)


@pytest.mark.slow
def test_lines_larger_than_any_socket_come_back_whole_and_in_order(start: Start) -> None:
    child = start("echo")
    lines = [b"x" * 3_000_000, b"", "é".encode()]
    child.send(b"".join(line + b"\n" for line in lines))
    assert [child.line(60.0) for _ in lines] == lines


@pytest.mark.slow
def test_a_late_child_is_told_from_one_that_hung_up(start: Start) -> None:
    child = start("hang")
    child.send(b"a\nb\n")
    assert child.line(60.0) == b"a"
    with pytest.raises(TimeoutError, match="did not answer in time"):
        child.line(0.2)
    assert child.wait(0.0) is None
    child.kill()
    with pytest.raises(EOFError, match="hung up"):
        child.line(60.0)
    assert child.close() == -signal.SIGKILL
    assert child.close() == -signal.SIGKILL
    child.kill()  # nothing is there any more


@pytest.mark.slow
def test_what_a_child_writes_comes_line_by_line_and_its_exit_status_too(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    child = start("write", environment={"CHILD_ACTS": "ours"}, on_line=lines.append)
    assert child.end(60.0) == 3
    assert lines == ["on stdout", "x" * 100_000, "ours on stderr, no newline"]
    assert start("write").end(60.0) == 3
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "on stdout\n" in shown.err


@pytest.mark.parametrize("by_itself", [False, True])
@pytest.mark.parametrize("act", ["start", "detach"])
def test_what_a_child_started_ends_with_it_whatever_its_session(
    start: Start, act: str, by_itself: bool
) -> None:
    child = start(act)
    started = int(child.line(60.0))
    assert runs(started)
    if by_itself:
        os.kill(child.pid, signal.SIGKILL)
    child.end(60.0 if by_itself else 0.0)
    assert gone(started)


@pytest.mark.slow
def test_a_signal_reaches_what_a_child_started(start: Start) -> None:
    child = start("start")
    started = int(child.line(60.0))
    assert os.getsid(child.pid) == child.pid
    child.kill(signal.SIGTERM)
    assert gone(started)
    assert child.wait(60.0) == -signal.SIGTERM


def test_a_child_of_this_processes_group_is_killed_alone(start: Start) -> None:
    child = start("echo", own_session=False)
    assert os.getpgid(child.pid) == os.getpgid(0)
    child.send(b"a\n")
    assert child.line(60.0) == b"a"
    assert child.end() == -signal.SIGKILL


def test_what_a_child_started_without_its_environment_ends_with_it_while_it_lives(start: Start) -> None:
    child = start("escape", own_session=False)
    escaped = int(child.line(60.0))
    child.close()
    assert gone(escaped)


@pytest.mark.slow
def test_a_process_without_mark_and_parent_survives_and_does_not_keep_the_reader_of_lines(
    start: Start,
) -> None:
    child = start("escape", on_line=print)
    reader = f"lines-{child.pid}"
    assert reader in {thread.name for thread in threading.enumerate()}
    escaped = int(child.line(60.0))
    try:
        os.kill(child.pid, signal.SIGKILL)
        child.wait(60.0)
        child.close()
        assert runs(escaped)
        assert reader not in {thread.name for thread in threading.enumerate()}
    finally:
        os.kill(escaped, signal.SIGKILL)


@pytest.mark.slow
def test_a_child_of_a_child_takes_what_it_started_along(start: Start) -> None:
    child = start("nest")
    detached = int(child.line(60.0))
    os.kill(child.pid, signal.SIGKILL)
    child.end(60.0)
    assert gone(detached)


@pytest.mark.slow
def test_memory_beyond_the_limit_is_refused(start: Start) -> None:
    lines: list[str] = []
    assert start("leak", on_line=lines.append).end(60.0) == 1
    assert lines[-1] == "MemoryError"


@pytest.mark.parametrize(
    ("status", "words"), [(0, "exit code 0"), (3, "exit code 3"), (-9, "signal SIGKILL"), (-99, "signal 99")]
)
def test_exit_statuses_in_words(status: int, words: str) -> None:
    assert how_it_ended(status) == words


OWNER = """
import os, signal, time
from rft_data.core.children import Child
child = Child("tests.rft_data.core.child_acts", "hang")
child.send(b"a\\n")
child.line(60.0)
os.kill(child.pid, signal.SIGSTOP)
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a process may outlive its parent elsewhere")
def test_a_stopped_child_ends_with_its_parent() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert runs(pid)
        owner.kill()
    assert gone(pid)


def test_a_child_of_another_parent_ends_at_once() -> None:
    parent = 1 if os.getpid() != 1 else 2
    done = subprocess.run([sys.executable, "-m", ACTS, "0", str(parent), "echo"], timeout=60)
    assert done.returncode == 1
