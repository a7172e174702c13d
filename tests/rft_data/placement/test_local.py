"""Roles in child processes: their ends above all."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from io import StringIO
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import RftError, RoleDiedError, StalledError
from rft_data.core.roles import Role, RoleSpec
from rft_data.placement import process
from rft_data.placement.calls import Patience
from rft_data.placement.hub import HubServer
from rft_data.placement.hub.access import HubAccess
from rft_data.placement.local import LocalPlacement
from tests.processes import runs
from tests.rft_data.conftest import make_experience
from tests.rft_data.placement.conftest import HERE, pid_of, spec, wait_for
from tests.template import FORK


@pytest.fixture(scope="module")
def placement() -> Iterator[LocalPlacement]:
    given = {"TOY_SETTING": "ours", "TOY_KEPT": "ours"}
    os.environ["TOY_KEPT"] = "theirs"
    made = LocalPlacement(None, given, Patience(start_s=60, close_s=20))
    yield made
    made.close()
    del os.environ["TOY_KEPT"]


@pytest.fixture(scope="module")
def started(placement: LocalPlacement) -> Role:
    return placement.start(spec("toy-0"))


# --- calls ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_child_has_its_share_and_its_environment(toy: Role) -> None:
    facts = toy.call("facts", dict[str, str], deadline_s=30).result()
    assert facts["OMP_NUM_THREADS"] == "1"
    assert facts["CUDA_VISIBLE_DEVICES"] == ""
    assert (facts["TOY_SETTING"], facts["TOY_KEPT"]) == ("ours", "theirs")
    assert facts["buffer"] == "NoneType"
    assert facts["PYTHONPATH"] == os.environ.get("PYTHONPATH", ""), (
        "programs that a role starts find other code"
    )


def test_coroutines_run_beside_each_other_and_beside_one_plain_method(toy: Role) -> None:
    meeting = [toy.call("meet", str, deadline_s=60) for _ in range(50)]
    holding = toy.call("hold", str, deadline_s=60)
    toy.call("release", None, deadline_s=60).result()
    assert [met.result() for met in meeting] == ["met"] * 50
    assert not holding.done()
    toy.call("let_go", None, deadline_s=60).result()
    assert holding.result() == "held"


def test_plain_methods_run_one_at_a_time(toy: Role) -> None:
    calls = [toy.call("alone", bool, deadline_s=60) for _ in range(10)]
    assert all(call.result() for call in calls)


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("add", {"a": "x"}, "argument 'a' of 'add' of role 'toy-0' is not int: Input should be"),
        ("add", {"c": 1}, r"'add' of role 'toy-0' takes \(a, b\); missing or unknown: a, c"),
        ("turn", {"tasks": [{"taskset": 3}]}, r"argument 'tasks' .* is not list\[.*Task\]: 0: taskset"),
        ("add", {"a": object()}, "argument of 'add' for role 'toy-0' cannot be written as JSON"),
        ("promise_broken", {}, "what role 'toy-0' returned from 'promise_broken' is not int"),
        ("not_plain", {}, "what role 'toy-0' returned from 'not_plain' cannot be written as JSON"),
        ("pid", {}, "what role 'toy-0' returned from 'pid' is not list"),
        ("cancels", {}, "role 'toy-0' failed in 'cancels': CancelledError"),
        ("odd", {}, r"file \\udc80"),
    ],
)
def test_values_that_do_not_fit_are_named(toy: Role, method: str, arguments: dict, message: str) -> None:
    returns = list[int] if method == "pid" else int
    with pytest.raises(RftError, match=message):
        toy.call(method, returns, deadline_s=30, **arguments).result()


@pytest.mark.slow
def test_a_large_argument_and_a_large_result_pass(toy: Role) -> None:
    text = "é" * (32 << 20)
    assert toy.call("repeat", str, deadline_s=120, text=text, times=1).result() == text


def test_a_call_above_the_cap_is_refused(toy: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rft_data.placement.calls.MAX_BYTES", 1000)
    with pytest.raises(
        RftError, match=r"a call of 'repeat' of role 'toy-0' has 10.. bytes; at most 1000 pass"
    ):
        toy.call("repeat", str, deadline_s=30, text="x" * 1000, times=1).result()


def test_a_role_cannot_be_waited_for_in_a_callback(toy: Role) -> None:
    raised = []

    def close(_: object) -> None:
        try:
            toy.close()
        except RftError as err:
            raised.append(str(err))

    held = toy.call("hold", str, deadline_s=60)
    held.add_done_callback(close)
    toy.call("let_go", None, deadline_s=60).result()
    held.result()
    wait_for(lambda: bool(raised), 10)
    assert "cannot be started or closed in a callback" in raised[0]


def test_what_a_child_writes_passes_with_its_name(toy: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    said = StringIO()  # pytest's own capture loses what is written while it is read
    monkeypatch.setattr("sys.stderr", said)
    toy.call("say", None, deadline_s=30, text="hello").result()
    wait_for(lambda: said.getvalue().count("x") >= 200_000, 30)
    lines = said.getvalue().splitlines()
    assert "[toy-0] hello" in lines
    assert "[toy-0] hello on stdout" in lines
    assert all(line.startswith("[toy-0] ") for line in lines)


@pytest.mark.slow
def test_a_role_reads_the_buffer_through_the_hub(tmp_path: Path) -> None:
    with Buffer(tmp_path / "buffer") as buffer, HubServer(buffer) as hub:
        buffer.append([make_experience(n) for n in range(3)])
        placement = LocalPlacement(HubAccess(hub.address, hub.token))
        try:
            role = placement.start(spec("reader"))
            assert role.call("rows", int, deadline_s=60).result() == 3
            facts = role.call("facts", dict[str, str], deadline_s=30).result()
            assert facts["buffer"] == "HubClient"
            assert hub.token not in facts["argv"]
            assert hub.token.encode() not in Path(f"/proc/{pid_of(role)}/environ").read_bytes()
        finally:
            placement.close()


# --- ends ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_child_fails_its_calls_at_once_and_may_be_restarted(toy: Role) -> None:
    pid, before = pid_of(toy), toy.incarnation
    calls = [toy.call("hold", str, deadline_s=600), toy.call("sleep", None, deadline_s=600, seconds=600.0)]
    os.kill(pid, signal.SIGKILL)
    assert not wait(calls, timeout=30).not_done
    for call in calls:
        with pytest.raises(RoleDiedError, match=rf"'toy-0' \(pid {pid}\) ended by itself: signal SIGKILL"):
            call.result()
    with pytest.raises(RoleDiedError, match="SIGKILL"):
        toy.call("pid", int, deadline_s=30).result(timeout=10)
    toy.restart().result()
    assert toy.incarnation == before + 1
    assert pid_of(toy) != pid


@pytest.mark.slow
def test_an_exit_code_and_the_last_lines_are_told(toy: Role) -> None:
    with pytest.raises(RoleDiedError, match=r"exit code 7; .*Its last lines:[\s\S]*\n  about to die"):
        toy.call("die", None, deadline_s=30, code=7).result()


@pytest.mark.slow
def test_what_a_role_started_ends_with_it(toy: Role) -> None:
    grandchild = toy.call("grandchild", int, deadline_s=30).result()
    assert runs(grandchild)
    os.kill(pid_of(toy), signal.SIGKILL)
    wait_for(lambda: not runs(grandchild), 30)


@pytest.mark.slow
def test_a_stopped_child_is_noticed_and_killed_but_a_busy_one_is_not() -> None:
    placement = LocalPlacement(patience=Patience(silent_s=4))
    role = placement.start(spec("toy"))
    pid = pid_of(role)
    role.call("block", None, deadline_s=60, seconds=6.0).result()
    call = role.call("sleep", None, deadline_s=600, seconds=600.0)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(RoleDiedError, match="sent no heartbeat for 4 s and was killed: signal SIGKILL"):
        call.result(timeout=60)
    assert not runs(pid)
    placement.close()


@pytest.mark.slow
def test_a_restart_ends_what_hangs(toy: Role) -> None:
    pid = pid_of(toy)
    call = toy.call("hold", str, deadline_s=600)
    toy.restart().result()
    with pytest.raises(RoleDiedError, match="was restarted: signal SIGTERM"):
        call.result(timeout=10)
    assert not runs(pid)


def test_an_interrupt_is_not_for_children(toy: Role) -> None:
    pid = pid_of(toy)
    os.kill(pid, signal.SIGINT)
    assert pid_of(toy) == pid
    assert os.getpgid(pid) != os.getpgid(0), "Ctrl-C at a terminal would reach it"


@pytest.mark.slow
def test_a_role_that_will_not_close_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "TERMINATE_S", 0.5)
    placement = LocalPlacement(patience=Patience(close_s=1.0))
    role = placement.start(spec("stubborn", "stubborn"))
    pid = pid_of(role)
    call = role.call("sleep", None, deadline_s=600, seconds=600.0)
    placement.close()
    assert not runs(pid)
    with pytest.raises(RoleDiedError, match="was closed: signal SIGKILL"):
        call.result(timeout=0)
    with pytest.raises(RoleDiedError, match="role 'stubborn' is closed"):
        role.call("pid", int, deadline_s=30).result(timeout=0)


@pytest.mark.slow
def test_closed_now_a_role_is_not_asked_first() -> None:
    placement = LocalPlacement(patience=Patience(close_s=600.0))
    role = placement.start(spec("stubborn", "stubborn"))
    pid = pid_of(role)
    call = role.call("sleep", None, deadline_s=600, seconds=600.0)
    placement.close(now=True)
    assert not runs(pid)
    with pytest.raises(RoleDiedError, match="was closed"):
        call.result(timeout=0)


@pytest.mark.slow
def test_a_birth_that_fails_leaves_no_process_and_no_claim(capfd: pytest.CaptureFixture[str]) -> None:
    placement = LocalPlacement()
    with pytest.raises(RoleDiedError, match=r"exit code 9[\s\S]*dying at birth"):
        placement.start(spec("toy", "dies"))
    placement.close()
    placement = LocalPlacement(patience=Patience(start_s=1.0))
    with pytest.raises(
        StalledError, match=r"waited 1 s for role 'toy' \(pid \d+\) to answer '\(start\)'"
    ) as at:
        placement.start(spec("toy", "hangs"))
    pid = int(str(at.value).split("pid ")[1].split(")")[0])
    assert not runs(pid)
    placement.close()


@pytest.mark.heavy
def test_roles_start_at_the_same_time_from_several_threads(placement: LocalPlacement) -> None:
    with ThreadPoolExecutor(3) as pool:
        roles = list(pool.map(placement.start, [spec(f"threaded-{n}") for n in range(3)]))
    assert len({pid_of(role) for role in roles}) == 3
    for role in roles:
        role.close()


def test_two_roles_of_one_name_are_refused(placement: LocalPlacement, toy: Role) -> None:
    with pytest.raises(RftError, match="there is a role 'toy-0' already"):
        placement.start(spec("toy-0"))


CONDUCTOR = """
    import os, signal, sys, time
    sys.path.insert(0, sys.argv[1])
    from rft_data.placement.local import LocalPlacement
    from rft_data.core.roles import RoleSpec

    placement = LocalPlacement()
    roles = [placement.start(RoleSpec(f"toy-{n}", "toy:toy", {})) for n in range(2)]
    pids = [role.call("pid", int, deadline_s=60).result() for role in roles]
    roles[0].call("hog", int, deadline_s=600)
    time.sleep(0.5)
    os.kill(pids[1], signal.SIGSTOP)
    print(*pids, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_children_end_when_their_conductor_is_killed() -> None:
    conductor = subprocess.Popen(
        [sys.executable, "-c", FORK + textwrap.dedent(CONDUCTOR), str(HERE)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert conductor.stdout is not None
    pids = [int(pid) for pid in conductor.stdout.readline().split()]
    assert len(pids) == 2
    assert all(runs(pid) for pid in pids)
    conductor.kill()
    conductor.wait()
    started = time.monotonic()
    wait_for(lambda: not any(runs(pid) for pid in pids), 30)
    assert time.monotonic() - started < 20


@pytest.mark.slow
def test_gpus_are_shared_out_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    placement = LocalPlacement()
    wanted = RoleSpec("trainer", "toy:toy", {}, gpus=2)
    placement.preflight([wanted])
    with pytest.raises(RftError, match="role 'explorer' needs 1 GPUs; this machine shows 2"):
        placement.preflight([wanted, RoleSpec("explorer", "toy:toy", {}, gpus=1)])
    role = placement.start(wanted)
    facts = role.call("facts", dict[str, str], deadline_s=30).result()
    assert facts["CUDA_VISIBLE_DEVICES"] == "4,7"
    with pytest.raises(RftError, match="'trainer' has 1 of GPU 4"):
        placement.start(RoleSpec("explorer", "toy:toy", {}, gpus=0.5))
    role.close()
    placement.preflight([RoleSpec("explorer", "toy:toy", {}, gpus=0.5)])
    assert placement._devices.reserve("explorer", 0.5) == ["4"]
    placement.close()
