"""First admitted, first trained, each group once: no group overtakes another."""

from __future__ import annotations

from rft_data.sampler.windowed import Windowed


def fifo() -> Windowed:
    """Order of admission, without overtaking."""
    return Windowed(window=0)
