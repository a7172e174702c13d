"""Puts clients of a served run into groups: those whose trajectories begin with the same request.

Which group a client belongs to is known only from its first request, not when it opens its trajectory.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeVar

from explorers.conversations.model_app import request_object

_MOST_GROUPS = 4096
_SAID = ("messages", "prompt", "tools")
V = TypeVar("V")


@dataclass(slots=True)
class Arrival:
    """A trajectory whose client has asked for nothing yet."""

    name: str
    choosing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Its first requests choose a rollout one after another: the first one does."""
    used: float = field(default_factory=monotonic)
    """`monotonic()` of its last request."""


@dataclass(frozen=True, slots=True)
class Said:
    """The first request of a trajectory."""

    text: str
    words: frozenset[str]

    @classmethod
    def of(cls, raw: bytes) -> Said:
        """Of a request's body: messages, prompt and tools. Raises: RowError for no JSON object."""
        body = request_object(raw)
        text = json.dumps({name: body.get(name) for name in _SAID}, sort_keys=True)
        return cls(text, frozenset(_words(body)))

    def likeness(self, other: Said) -> float:
        """1 for the same request, else the share of words that both have (Jaccard), below 1."""
        if self.text == other.text:
            return 1.0
        either = len(self.words | other.words)
        return min(len(self.words & other.words) / either, 0.999) if either else 0.0


class Openings:
    """The trajectories without a request yet, and what each group is about."""

    def __init__(self, least: float) -> None:
        """`least`: likeness with the first of a group, from which on a trajectory belongs to it."""
        self._least = least
        self._groups: dict[str, Said] = {}
        self.arrivals: dict[str, Arrival] = {}

    def arrive(self, made: Arrival, idle_s: float) -> None:
        """Take in a new trajectory; those that were left alone for `idle_s` are forgotten."""
        late = monotonic() - idle_s
        self.arrivals = {name: one for name, one in self.arrivals.items() if one.used >= late}
        self.arrivals[made.name] = made

    def choose(self, said: Said, waiting: Iterable[V], group: Callable[[V], str]) -> V | None:
        """The rollout for a first request: of a group that is about it, or else of one about nothing yet."""
        free: V | None = None
        for one in waiting:
            about = self._groups.get(group(one))
            if about is None:
                free = one if free is None else free
            elif said.likeness(about) >= self._least:
                return one
        if free is not None:
            self._groups[group(free)] = said
            while len(self._groups) > _MOST_GROUPS:
                del self._groups[next(iter(self._groups))]
        return free


def _words(value: object) -> Iterable[str]:
    """All words that a request says, in lower case."""
    if isinstance(value, Mapping):
        for name in ("messages", "prompt", "content", "text"):
            yield from _words(value.get(name))
    elif isinstance(value, list):
        for one in value:
            yield from _words(one)
    elif isinstance(value, str):
        yield from value.lower().split()
