"""The seconds of a rollout by phase, as the bar that the page shows.

Its explorer stored them in the metadata of its last row.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from rft_data.core.words import ROLLOUT_SECONDS

WIDTH = 600
_WORDS = {
    "waiting": "waiting for an environment",
    "generating": "generating",
    "acting": "tools and environment",
    "rewarding": "rewards",
}


@dataclass(frozen=True, slots=True)
class Share:
    """Seconds of one phase."""

    phase: str
    what: str
    """The phase in words."""
    seconds: float
    x: float
    """Its place in the picture."""
    width: float


def shares(metadata: str | None) -> list[Share]:
    """The phases of a rollout, in a fixed order; empty where a row has none, or something else there.

    Args: metadata: of its last row, as JSON.
    """
    found = json.loads(metadata or "{}").get(ROLLOUT_SECONDS)
    if not isinstance(found, dict) or not all(map(_is_time, found.values())) or not found.get("all"):
        return []
    spent = {phase: float(found[phase]) for phase in _WORDS if phase in found}
    spent["rest"] = max(0.0, found["all"] - sum(spent.values()))
    whole, x = sum(spent.values()), 0.0
    made = []
    for phase, seconds in spent.items():
        width = WIDTH * seconds / whole
        made.append(Share(phase, _WORDS.get(phase, "the rest"), seconds, round(x, 1), round(width, 1)))
        x += width
    return made


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0
