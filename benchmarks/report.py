"""How every benchmark prints: a table for people, then one line of JSON with its bars."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Bar:
    """A measured ratio and what it should be: at least `bound`, or at most when `ceiling`."""

    name: str
    value: float | None
    """None, which fails: records that it is read from are missing, or were made by other code."""
    bound: float
    ceiling: bool = False

    @property
    def holds(self) -> bool:
        """Whether the ratio keeps its bound."""
        if self.value is None:
            return False
        return self.value <= self.bound if self.ceiling else self.value >= self.bound


def finish(bars: Sequence[Bar], versions: dict[str, str], figures: Mapping[str, Any] | None = None) -> None:
    """Print the bars, then the JSON line; `figures` are numbers behind them."""
    for bar in bars:
        sign = "<=" if bar.ceiling else ">="
        verdict = "holds" if bar.holds else "MISSED"
        value = "missing" if bar.value is None else f"{bar.value:.2f}"
        print(f"{bar.name:<44}{value:>9}  (bar {sign} {bar.bound:g}: {verdict})")
    machine = {"cores": os.cpu_count(), "processor": platform.machine(), "python": platform.python_version()}
    rows = [
        {"name": b.name, "value": b.value and round(b.value, 3), "bound": b.bound, "holds": b.holds}
        for b in bars
    ]
    print(json.dumps({"bars": rows, "figures": figures or {}, "machine": machine, "versions": versions}))
