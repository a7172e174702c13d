"""A selector without tasks, for runs that train on stored experiences only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rft_data.core.groups import GroupResult
from rft_data.core.rows import TaskKey


class Nothing:
    """Selects no task, learns nothing and has no state."""

    def select(self, n: int) -> list[TaskKey]:
        """Always empty."""
        return []

    def observe(self, results: Sequence[GroupResult]) -> None:
        """Does nothing."""

    def state_dict(self) -> dict[str, object]:
        """Always empty."""
        return {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Does nothing."""

    def metrics(self) -> dict[str, float]:
        """Always empty."""
        return {}
