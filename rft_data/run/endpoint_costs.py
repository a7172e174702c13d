"""Tokens and cost of a run's calls of an endpoint, summed over its explorers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rft_data.loop.fleet import Fleet

_COST = "endpoint_cost"
_OURS = "endpoint_"


class EndpointCosts:
    """Sums since the start of this process; those of an explorer that died, up to when it was last asked."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._sums: Counter[str] = Counter()

    def text(self) -> str:
        """The sums so far in a few words; never waits."""
        for numbers in self._fleet.metrics().values():
            self._add(numbers)
        tokens = self._sums["endpoint_prompt_tokens"] + self._sums["endpoint_completion_tokens"]
        cost = f", cost {self._sums[_COST]:.4g}" if _COST in self._sums else ""
        return f"{self._sums['endpoint_calls']:g} calls, {tokens:g} tokens{cost}"

    def summary(self) -> dict[str, float]:
        """All sums, at the end of a run; waits for the explorers."""
        for numbers in self._fleet.last_metrics():
            self._add(numbers)
        return {name: float(value) for name, value in sorted(self._sums.items())}

    def _add(self, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            if name.startswith(_OURS):
                self._sums[name] += value  # type: ignore[assignment]  # counts are floats here
