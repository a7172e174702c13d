"""The choice of a sandbox: the first that holds, else none at all."""

from __future__ import annotations

import pytest

from explorers.sandbox.box import Folders
from explorers.sandbox.bubblewrap import bubblewrap_arguments
from explorers.sandbox.limits import SandboxLimits
from explorers.sandbox.probe import choose, probe
from explorers.sandbox.seccomp import seccomp_program
from rft_data.core.errors import SandboxError
from rft_data.core.words import SandboxKind


@pytest.mark.slow
def test_the_probe_sees_that_no_sandbox_holds_nothing() -> None:
    reason = probe(SandboxKind.NONE)
    for could in (
        "read a file outside",
        "write a file outside",
        "connect by TCP",
        "send by UDP",
        "more processes",
    ):
        assert could in reason


def test_none_is_taken_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose("none").kind == SandboxKind.NONE
    monkeypatch.setattr("explorers.sandbox.probe.probe", lambda kind: f"{kind} is broken.")
    with pytest.raises(
        SandboxError, match=r"no sandbox holds.*bubblewrap is broken.*landlock is broken.*sandbox: none"
    ):
        choose("auto")


@pytest.mark.slow
def test_a_kind_that_was_asked_for_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxError, match="bwrap is not installed"):
        choose("bubblewrap")


def test_auto_takes_the_first_that_holds_and_says_why_not_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = {SandboxKind.BUBBLEWRAP: "it is not there.", SandboxKind.LANDLOCK: ""}
    monkeypatch.setattr("explorers.sandbox.probe.probe", reasons.__getitem__)
    found = choose("auto")
    assert found.kind == SandboxKind.LANDLOCK
    assert str(found) == "landlock, asked for auto (bubblewrap: it is not there.)"


def test_bubblewrap_shares_nothing_and_may_not_be_written_to(tmp_path: object) -> None:
    folders = Folders(tmp_path, tmp_path, ("/opt/python",))  # type: ignore[arg-type]
    given = bubblewrap_arguments(folders, SandboxLimits(disk_mb=3), 9)
    for option in ("--unshare-all", "--clearenv", "--die-with-parent", "--new-session", "--disable-userns"):
        assert option in given
    places = [
        given[place : place + 3] for place, word in enumerate(given) if word in ("--bind", "--dev-bind")
    ]
    assert all(source.startswith("/dev/") for _, source, _ in places)
    assert given[given.index("--size") + 1] == str(3 << 20)
    assert given.index("--remount-ro") > given.index("--tmpfs")
    assert given[given.index("/opt/python") - 1 :][:3] == ["--ro-bind", "/opt/python", "/opt/python"]


def test_the_filter_kills_other_architectures_and_refuses_numbers() -> None:
    program = seccomp_program(0xC000003E, (319, 29))
    assert _run(program, 0x40000003, 1) == "kill"
    assert _run(program, 0xC000003E, 319) == _run(program, 0xC000003E, 29) == "refuse"
    assert _run(program, 0xC000003E, 425) == "refuse"
    assert _run(program, 0xC000003E, 0x40000000 + 1) == "refuse"
    assert _run(program, 0xC000003E, 1) == _run(program, 0xC000003E, 318) == "allow"


def _run(program: bytes, architecture: int, number: int) -> str:
    """What the kernel would do: an interpreter of the instructions that the filter has."""
    import struct

    instructions = list(struct.iter_unpack("=HBBI", program))
    place, value = 0, 0
    while True:
        code, if_true, if_false, operand = instructions[place]
        place += 1
        if code == 0x20:
            value = architecture if operand == 4 else number
        elif code == 0x06:
            return {0x7FFF0000: "allow", 0x00050001: "refuse", 0x80000000: "kill"}[operand]
        else:
            holds = value == operand if code == 0x15 else value >= operand
            place += if_true if holds else if_false
