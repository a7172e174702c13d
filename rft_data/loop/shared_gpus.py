"""GPUs that engines and the trainer use in turns: the engines sleep while the trainer works."""

from __future__ import annotations

from contextlib import suppress

from rft_data.core.errors import RoleDiedError
from rft_data.loop.fleet import Fleet


class SharedGpus:
    """Gives the GPUs to the trainer before a step, and back to the engines after it."""

    def __init__(self, fleet: Fleet, deadline_s: float) -> None:
        """`deadline_s`: longest an engine may take to fall asleep or to wake up."""
        self._fleet = fleet
        self._deadline_s = deadline_s

    def to_trainer(self) -> None:
        """Have every engine sleep, and wait for it.

        One that is being started again is waited for first: its engine would come up beside the trainer.
        Raises: what an engine raises.
        """
        self._fleet.settle()
        self._ask("sleep")

    def to_engines(self) -> None:
        """Have every engine wake up, and wait for it. Raises: what an engine raises."""
        self._ask("wake")

    def _ask(self, method: str) -> None:
        roles = [member.role for member in self._fleet.members]
        calls = [role.call(method, None, deadline_s=self._deadline_s) for role in roles]
        for call in calls:
            with suppress(RoleDiedError):  # it holds no GPU; the fleet starts it again when it has to load
                call.result()
