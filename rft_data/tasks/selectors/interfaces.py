"""Calls that a run and other selectors make on a selector, beyond `core.protocols.Selector`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from rft_data.core.errors import RecipeError
from rft_data.core.protocols import Selector
from rft_data.core.rows import Task, TaskKey


class NoTasksError(RecipeError):
    """A selector was given no task; its arguments are valid."""


@runtime_checkable
class OpenSelector(Selector, Protocol):
    """A selector whose tasks may come and go during a run."""

    @property
    def in_play(self) -> int:
        """How many tasks may be selected."""
        ...

    def add(self, tasks: Sequence[Task]) -> None:
        """Bring new tasks into play; known tasks are unchanged."""
        ...

    def retire(self, keys: Iterable[TaskKey]) -> None:
        """Take tasks out of play: they are never selected until they are revived."""
        ...

    def revive(self, keys: Iterable[TaskKey]) -> None:
        """Bring retired tasks back into play, with what was learned about them."""
        ...


class SelectorMaker(Protocol):
    """Makes a selector by name; passed to selectors that contain other selectors."""

    def __call__(
        self, use: str, args: Mapping[str, object], tasks: Sequence[Task], seed: int
    ) -> OpenSelector: ...
