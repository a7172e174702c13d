"""Sleep of a vLLM engine whose GPU a trainer uses between two rounds of rollouts.

Asleep, the weights are in the machine's memory and the key-value cache is gone; nothing is served. On a CPU
vLLM keeps both where they are, so only the order of calls is the same there.
"""

from __future__ import annotations

from collections.abc import Callable

from rft_data.core.errors import EngineError

LEVEL = 1
"""vLLM's level that keeps the weights, so that the version served before can be served again."""


class Rest:
    """Puts an engine to sleep and wakes it."""

    def __init__(
        self, in_flight: Callable[[], int], sleep: Callable[[int], object], wake: Callable[[], object]
    ) -> None:
        """Awake. `in_flight`: the engine's requests; `sleep`, `wake`: vLLM's own; `sleep` takes the level."""
        self._in_flight = in_flight
        self._sleep = sleep
        self._wake = wake
        self._asleep = False

    def sleep(self) -> None:
        """Free the GPUs for a trainer; idempotent.

        Raises: EngineError while requests are in flight.
        """
        if waiting := self._in_flight():
            raise EngineError(f"the engine cannot sleep with {waiting} requests in flight; wait for them.")
        if not self._asleep:
            self._asleep = True
            self._sleep(LEVEL)

    def wake(self) -> None:
        """Take the GPUs back, with the weights of before; idempotent."""
        if self._asleep:
            self._wake()
            self._asleep = False

    def check_awake(self) -> None:
        """Raises: EngineError while it sleeps."""
        if self._asleep:
            raise EngineError("the engine sleeps while a trainer uses its GPUs; call wake first.")
