"""Tokens and cost of a run's calls of an endpoint, summed over its explorers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

_COST = "endpoint_cost"
_OURS = "endpoint_"


class EndpointCosts:
    """Sums since the start of this process; those of an explorer that died, up to when it was last asked."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()

    def add(self, numbers: Mapping[str, float]) -> None:
        """Add what an explorer counted since it was asked before."""
        for name, value in numbers.items():
            if name.startswith(_OURS):
                self._sums[name] += value  # type: ignore[assignment]  # counts are floats here

    def __str__(self) -> str:
        """The sums in a few words."""
        tokens = self._sums["endpoint_prompt_tokens"] + self._sums["endpoint_completion_tokens"]
        cost = f", cost {self._sums[_COST]:.4g}" if _COST in self._sums else ""
        return f"{self._sums['endpoint_calls']:g} calls, {tokens:g} tokens{cost}"

    def summary(self) -> dict[str, float]:
        """All sums by name."""
        return {name: float(value) for name, value in sorted(self._sums.items())}
