"""GPUs that engines and the trainer use in turns: the engines sleep while the trainer works."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from rft_data.core.errors import RoleDiedError
from rft_data.core.protocols import Role


class SharedGpus:
    """Gives the GPUs to the trainer before a step, and back to the engines after it."""

    def __init__(self, explorers: Sequence[Role], deadline_s: float) -> None:
        """`deadline_s`: longest an engine may take to fall asleep or to wake up."""
        self._explorers = explorers
        self._deadline_s = deadline_s

    def to_trainer(self) -> None:
        """Have every engine sleep, and wait for it. Raises: what an engine raises."""
        self._ask("sleep")

    def to_engines(self) -> None:
        """Have every engine wake up, and wait for it. Raises: what an engine raises."""
        self._ask("wake")

    def _ask(self, method: str) -> None:
        calls = [role.call(method, None, deadline_s=self._deadline_s) for role in self._explorers]
        for call in calls:
            with suppress(RoleDiedError):  # it holds no GPU; the fleet starts it again when it has to load
                call.result()
