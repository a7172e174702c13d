"""Roles as Ray actors: what is particular to Ray."""

import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rft_data.core.errors import (
    BusyError,
    MissingExtraError,
    RecipeError,
    RftError,
    RoleDiedError,
    StalledError,
)
from rft_data.core.roles import Role, RoleSpec
from rft_data.placement.calls import Patience, RoleSetup
from rft_data.placement.ray import RayPlacement, connect
from rft_data.placement.ray_role import RoleActor
from tests.ports import free_port
from tests.processes import runs
from tests.rft_data.placement.conftest import pid_of, spec, wait_for

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_where_no_cluster_listens_is_said_at_once(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # tests beside this one have a cluster
    address, began = f"{scheme}127.0.0.1:{free_port()}", time.monotonic()
    with pytest.raises(
        RftError, match=rf"at '{address}': .* Connection refused; start one .*placement\.addr"
    ):
        connect(address)
    assert time.monotonic() - began < 10


@pytest.fixture(scope="module")
def placement(cluster: None) -> Iterator[RayPlacement]:
    made = RayPlacement("run-1", None, {"TOY_SETTING": "ours"}, Patience(start_s=60, close_s=10))
    made.preflight([spec("toy-0"), spec("toy-1")])
    yield made
    made.close()


@pytest.fixture(scope="module")
def started(placement: RayPlacement) -> Role:
    return placement.start(spec("toy-0"))


@pytest.mark.heavy
def test_an_actor_has_its_name_its_share_and_its_environment(
    toy: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {"name": "toy-0", "namespace": "run-1"} in ray.util.list_named_actors(all_namespaces=True)
    facts = toy.call("facts", dict[str, str], deadline_s=30).result()
    assert (facts["OMP_NUM_THREADS"], facts["TOY_SETTING"]) == ("1", "ours")
    for stream in ("stdout", "stderr"):  # an actor masks those of its process
        monkeypatch.setattr(sys, stream, getattr(sys, stream))
    assert repr(RoleActor(RoleSetup("x", "toy:refuses", {}, None, [], {}).encode(), {}, 1)) == "x"


def test_a_node_with_another_version_of_this_package_is_refused(
    placement: RayPlacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = RoleSetup.of(spec("toy-1"), None)
    monkeypatch.setattr(RoleSetup, "of", lambda *_: replace(made, version="0.1.0"))
    there = rf"role 'toy-1' .* {re.escape(socket.gethostname())}, which has rft-data .*the run is of 0\.1\.0"
    with pytest.raises(MissingExtraError, match=there):
        placement.start(spec("toy-1"))


def test_coroutines_run_beside_each_other_and_beside_one_plain_method(toy: Role) -> None:
    meeting = [toy.call("meet", str, deadline_s=60) for _ in range(50)]
    holding = toy.call("hold", str, deadline_s=60)
    alone = [toy.call("alone", bool, deadline_s=60) for _ in range(5)]
    toy.call("release", None, deadline_s=60).result()
    assert [met.result() for met in meeting] == ["met"] * 50
    assert not holding.done()
    toy.call("let_go", None, deadline_s=60).result()
    assert holding.result() == "held"
    assert all(call.result() for call in alone)


def test_a_large_argument_passes(toy: Role) -> None:
    text = "x" * (20 << 20)
    assert toy.call("repeat", str, deadline_s=60, text=text, times=1).result() == text


def test_values_that_do_not_fit_are_named(toy: Role) -> None:
    with pytest.raises(RftError, match="argument 'a' of 'add' of role 'toy-0' is not int"):
        toy.call("add", int, deadline_s=30, a="x").result()
    with pytest.raises(RftError, match="cannot be written as JSON"):
        toy.call("add", int, deadline_s=30, a=object()).result()


def test_a_killed_actor_fails_its_calls_and_may_be_restarted(toy: Role) -> None:
    pid, before = pid_of(toy), toy.incarnation
    call = toy.call("sleep", None, deadline_s=600, seconds=600.0)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RoleDiedError, match=r"role 'toy-0' \(a Ray actor\) is gone; .* Ray reports: "):
        call.result(timeout=60)
    with pytest.raises(RoleDiedError):
        toy.call("pid", int, deadline_s=60).result()
    toy.restart().result()
    assert toy.incarnation == before + 1
    assert pid_of(toy) != pid


def test_a_stopped_actor_is_past_its_deadline_and_may_be_restarted(toy: Role) -> None:
    pid = pid_of(toy)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(StalledError, match="'toy-0'"):
        toy.call("pid", int, deadline_s=1).result(timeout=30)
    toy.restart().result()
    assert pid_of(toy) != pid
    wait_for(lambda: not runs(pid), 60)


def test_a_birth_that_fails_says_why(placement: RayPlacement) -> None:
    with pytest.raises(RoleDiedError, match="role 'toy-1'"):
        placement.start(spec("toy-1", "dies"))
    role = placement.start(spec("toy-1"))
    role.close()


def test_a_role_that_cannot_start_in_time_is_stalled(placement: RayPlacement) -> None:
    impatient = RayPlacement("run-2", patience=Patience(start_s=3))
    with pytest.raises(StalledError, match="waited 3 s for role 'toy-2'"):
        impatient.start(spec("toy-2", "hangs"))
    impatient.close()


def test_a_name_that_another_process_uses_is_refused(toy: Role) -> None:
    other = RayPlacement("run-1", patience=Patience(close_s=0.5))
    with pytest.raises(BusyError, match="namespace 'run-1' of this Ray cluster has an actor 'toy-0' already"):
        other.start(spec("toy-0"))
    other.close()
    assert pid_of(toy)


def test_what_never_fits_is_refused_at_once(cluster: None) -> None:
    placement = RayPlacement("run-3")
    before = time.monotonic()
    with pytest.raises(RecipeError, match=r"too few CPUs; no node is large enough for 'trainer'"):
        placement.preflight([spec("toy"), RoleSpec("trainer", "toy:toy", {}, cpus=64)])
    assert time.monotonic() - before < 20
    placement.close()


def test_what_others_hold_is_named_after_the_deadline(placement: RayPlacement, toy: Role) -> None:
    late = RayPlacement("run-4", patience=Patience(place_s=2))
    with pytest.raises(StalledError, match="1 of 2 CPUs are free; placement group 'run-1/") as caught:
        late.preflight([RoleSpec("trainer", "toy:toy", {}, cpus=2)])
    assert "'toy-0' of 'run-1'" in str(caught.value)
    late.close()


def test_closing_ends_its_own_actors_only(toy: Role) -> None:
    other = RayPlacement("run-5", patience=Patience(close_s=10))
    role = other.start(spec("mine"))
    pid = pid_of(role)
    other.close()
    other.close()
    wait_for(lambda: not runs(pid), 30)
    assert ray.is_initialized(), "it did not start Ray"
    assert pid_of(toy)
    wait_for(lambda: ray.available_resources().get("CPU", 0) == 1, 30)
    with pytest.raises(RoleDiedError):
        role.call("pid", int, deadline_s=30).result()
