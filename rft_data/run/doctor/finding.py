"""One thing that was looked at."""

from __future__ import annotations

from dataclasses import dataclass

from rft_data.core.words import Health


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check, with its remedy."""

    about: str
    """The thing that was checked, in a word or two."""
    health: Health
    found: str
    fix: str = ""
    """Remedy; empty where nothing is to be done."""
