"""GPUs that engines and the trainer use in turns: while one works, the other keeps nothing there."""

from __future__ import annotations

from contextlib import suppress

from rft_data.core.errors import RoleDiedError
from rft_data.loop.fleet import Fleet
from rft_data.loop.training import Training


class SharedGpus:
    """Gives the GPUs to the trainer before a step, and back to the engines after it."""

    def __init__(self, fleet: Fleet, training: Training, deadline_s: float) -> None:
        """`deadline_s`: longest an engine may take to fall asleep or to wake up."""
        self._fleet = fleet
        self._training = training
        self._deadline_s = deadline_s

    def to_trainer(self) -> None:
        """Have every engine sleep, and wake the trainer.

        Raises: what an engine or the trainer raises; TrainerDiedError.
        """
        put_to_sleep(self._fleet, self._deadline_s)
        self._training.rest(asleep=False)

    def to_engines(self) -> None:
        """Have the trainer sleep, and wake every engine. Raises: as `to_trainer`."""
        self._training.rest(asleep=True)
        _ask(self._fleet, "wake", self._deadline_s)


def put_to_sleep(fleet: Fleet, deadline_s: float) -> None:
    """Have every engine sleep, and wait for it.

    One that is being started again is waited for first: it would come up beside the trainer.
    Raises: what an engine raises.
    """
    fleet.settle()
    _ask(fleet, "sleep", deadline_s)


def _ask(fleet: Fleet, method: str, deadline_s: float) -> None:
    calls = [member.role.call(method, None, deadline_s=deadline_s) for member in fleet.members]
    for call in calls:
        with suppress(RoleDiedError):  # it holds no GPU; the fleet starts it again when it has to load
            call.result()
