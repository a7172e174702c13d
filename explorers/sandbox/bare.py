"""The sandbox `none`: limits of resources, a folder of its own and an empty environment, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from explorers.sandbox.box import PROGRAM, Folders, Spawned, limited
from explorers.sandbox.limits import SandboxLimits
from rft_data.core.errors import SandboxError


class Bare:
    """Starts programs as this process starts any: they may read, write and reach what it may."""

    def __init__(self, limits: SandboxLimits) -> None:
        """For programs that are trusted."""
        self._limits = limits

    def start(self, command: Sequence[str], folders: Folders) -> Spawned:
        """See `Box`."""
        inner = limited([*command, str(folders.given / PROGRAM)], self._limits, memory=True, processes=False)
        try:
            return Spawned(inner, cwd=folders.work)
        except OSError as err:
            raise SandboxError(f"{command[0]} cannot be started: {err}") from err
