"""A tool for models: run Python in a sandbox and read what it prints."""

from __future__ import annotations

import functools

from explorers.sandbox.limits import SandboxLimits
from explorers.sandbox.probe import choose
from explorers.sandbox.program import Program, Ran
from explorers.sandbox.sandbox import Sandbox
from rft_data.core.words import ProgramEnd

_AT_ONCE = 4
"""Programs at a time in one process, for all rollouts together."""


class PythonTool:
    """Tools of one rollout. Every call is a program of its own: nothing of an earlier call is left."""

    def __init__(self, sandbox: str = "auto", seconds: float = 5.0, longest: int = 4000) -> None:
        """Args: sandbox: as `explorer.sandbox`. seconds: of one call. longest: characters that are shown.

        Raises: SandboxError when no sandbox holds.
        """
        self._sandbox = _shared_sandbox(sandbox, seconds)
        self._longest = longest

    def python(self, code: str) -> str:
        """Run a Python program and return what it prints, and its error if it fails.

        Args:
            code: The whole program. It has no network and keeps nothing for the next call.
        """
        return _shown(self._sandbox.run(Program("python", code)), self._longest)


@functools.cache
def _shared_sandbox(setting: str, seconds: float) -> Sandbox:
    """One for all rollouts of a process; its children end with the process."""
    return Sandbox(choose(setting).kind, SandboxLimits(seconds=seconds), at_once=_AT_ONCE)


def _shown(ran: Ran, longest: int) -> str:
    text = ran.stdout + ran.stderr
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
    if ran.end != ProgramEnd.EXITED:
        text += f"\n[the program was stopped: {_WHY[ran.end]}]"
    elif ran.status:
        text += f"\n[exit status {ran.status}]"
    return text.strip() or "[no output]"


_WHY = {
    ProgramEnd.TIMEOUT: "it ran too long",
    ProgramEnd.KILLED: "it crashed or needed too much memory",
    ProgramEnd.OUTPUT: "it printed too much",
    ProgramEnd.DISK: "it wrote too much to the disk",
}
