"""The child's own side: it ends with its line, whatever it is doing."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic_core import from_json

from rft_data.placement.calls import RoleSetup, encode_call
from rft_data.placement.channel import HEARTBEAT, Line
from tests.rft_data.placement.conftest import spec


def child(parent: int) -> tuple[subprocess.Popen, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    command = [sys.executable, "-m", "rft_data.placement.child", str(theirs.fileno()), str(parent)]
    started = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stderr=subprocess.DEVNULL)
    theirs.close()
    return started, ours


def test_a_child_ends_when_its_line_does_though_its_role_is_busy(tmp_path: Path) -> None:
    started, ours = child(os.getpid())
    line = Line(ours)
    received = line.received()
    line.send(1, RoleSetup.of(spec(folder=str(tmp_path)), None).encode())
    number, answer = next(message for message in received if message[0] != HEARTBEAT)
    assert (number, from_json(answer)) == (1, {"result": None})
    line.send(2, encode_call("toy", "block", {"seconds": 600.0}))
    line.send(3, encode_call("toy", "pid", {}))  # behind it
    ours.shutdown(socket.SHUT_WR)  # the line ends as it does when a parent is killed; we look on
    assert started.wait(timeout=30) == 1
    assert [number for number, _ in received if number != HEARTBEAT] == []
    assert not (tmp_path / "closed").exists(), "it was not asked to close"


@pytest.mark.slow
def test_a_child_of_another_parent_ends_at_once() -> None:
    started, ours = child(parent=1 if os.getpid() != 1 else 2)
    with ours:
        assert started.wait(timeout=30) == 1
