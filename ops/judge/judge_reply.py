"""A judge's answer to one prompt."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to one prompt, or its error."""

    text: str
    """The reply; empty when it failed."""
    error: str = ""
    """Error in place of a reply; empty when there is one."""
