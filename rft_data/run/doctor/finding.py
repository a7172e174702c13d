"""One thing that was looked at."""

from __future__ import annotations

from dataclasses import dataclass

from rft_data.core.words import Health


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found, and what to do about it."""

    about: str
    """What was looked at, in a word or two."""
    health: Health
    found: str
    fix: str = ""
    """What to do; empty where nothing is to be done."""
