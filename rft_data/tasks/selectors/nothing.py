"""No tasks at all, for runs that train on what is stored already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rft_data.core.rows import GroupResult, TaskKey


class Nothing:
    """Chooses nothing and remembers nothing."""

    def select(self, n: int) -> list[TaskKey]:
        """There is no task."""
        return []

    def observe(self, results: Sequence[GroupResult]) -> None:
        """Nothing is learned."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Nothing."""

    def metrics(self) -> dict[str, float]:
        """Nothing."""
        return {}
