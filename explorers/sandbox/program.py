"""A program to run in a sandbox, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rft_data.core.words import ProgramEnd, member


@dataclass(frozen=True, slots=True)
class Program:
    """One program of one file."""

    language: str
    """A name in `explorers.sandbox.languages.LANGUAGES`."""
    source: str
    stdin: str = ""
    """Text that it reads; then stdin ends."""
    seconds: float | None = None
    """Wall time, if less than the sandbox allows."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended, and what it wrote. Bytes that are no UTF-8 are replaced."""

    end: ProgramEnd
    status: int
    """Its exit status; 0 if it did not end by itself."""
    stdout: str
    stderr: str
    seconds: float
    """Wall time, with its start."""

    @property
    def succeeded(self) -> bool:
        """Whether it ended by itself with status 0."""
        return self.end == ProgramEnd.EXITED and self.status == 0

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Ran:
        """From plain values, as a host sends them."""
        return cls(**{**values, "end": member(ProgramEnd, values["end"])})
