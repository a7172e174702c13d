"""The rollout on whose behalf an engine is asked, so that its turns can go to one engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Conversation:
    """One rollout at play."""

    def __init__(self) -> None:
        self.ended = False
        self.at_end: list[Callable[[], None]] = []
        """Called once, when the rollout is over: arrived, failed or cancelled."""


_PRESENT: ContextVar[Conversation | None] = ContextVar("conversation", default=None)


@contextmanager
def conversation() -> Iterator[None]:
    """The block, and the asyncio tasks that it starts, are one conversation; it ends with the block."""
    one = Conversation()
    _PRESENT.set(one)
    try:
        yield
    finally:
        one.ended = True
        for call in one.at_end:
            call()


def present() -> Conversation | None:
    """The conversation of the running asyncio task; None outside of one, and after its end."""
    one = _PRESENT.get()
    return None if one is None or one.ended else one
