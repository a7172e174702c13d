"""How every benchmark prints: a table for people, then one line of JSON with its bars."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Bar:
    """A measured ratio and the least it should be."""

    name: str
    value: float
    bound: float

    @property
    def holds(self) -> bool:
        """Whether the ratio reaches its bound."""
        return self.value >= self.bound


def finish(bars: Sequence[Bar], versions: dict[str, str]) -> None:
    """Print the bars, then the JSON line."""
    for bar in bars:
        print(f"{bar.name:<44}{bar.value:>9.2f}  (bar {bar.bound:g}: {'holds' if bar.holds else 'MISSED'})")
    machine = {"cores": os.cpu_count(), "processor": platform.machine(), "python": platform.python_version()}
    rows = [{**asdict(bar), "value": round(bar.value, 3), "holds": bar.holds} for bar in bars]
    print(json.dumps({"bars": rows, "machine": machine, "versions": versions}))
