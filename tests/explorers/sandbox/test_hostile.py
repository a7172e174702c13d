"""The battery: no hostile program does anything outside or leaves anything behind, and costs only itself."""

from __future__ import annotations

import pytest

from benchmarks.sandbox.battery import HOST, LIMITS, Hostile, Outside, escapes, hostile_programs, outside
from explorers.sandbox import Program, Sandbox
from rft_data.core.words import SandboxKind
from tests.explorers.sandbox.conftest import KINDS, skip_without
from tests.processes import children_of

PROGRAMS = hostile_programs()


def test_the_battery_has_every_kind_of_attack() -> None:
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS) >= 30


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_programs_cost_only_themselves(kind: SandboxKind) -> None:
    skip_without(kind)
    found = {}
    with outside() as out, children_of(HOST) as hosts, Sandbox(kind, LIMITS) as sandbox:
        for program in PROGRAMS:
            _, could = escapes(sandbox, program, out)
            after = sandbox.run(Program("python", "print(6 * 7)"))
            found[program.name] = could + ([] if after.stdout == "42\n" else [f"the next program: {after}"])
    assert len(hosts) == 1
    assert {name: could for name, could in found.items() if could} == {}


@pytest.mark.slow
def test_the_battery_notices_what_gets_out() -> None:
    """Programs that do no harm without a sandbox: each must be found out."""
    names = (
        "TCP",
        "UDP",
        "abstract unix sockets",
        "modes, owners and times",
        "other processes",
    )
    with Sandbox(SandboxKind.NONE, LIMITS) as sandbox:
        for program in PROGRAMS:
            if program.name in names:
                with outside() as out:
                    assert _could(sandbox, program, out), program.name


def _could(sandbox: Sandbox, program: Hostile, out: Outside) -> list[str]:
    return escapes(sandbox, program, out)[1]
