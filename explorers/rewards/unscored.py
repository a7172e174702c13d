"""Reason why a rollout has no reward, as the text that rows hold, and back.

The text of a failure of the world begins with its cause: `timeout: reward 'x': took longer than 10 s`.
"""

from __future__ import annotations

from rft_data.core.words import WORLD_FAILURES, UnscoredCause
from rft_data.core.workflow import Unscored


def reason_text(what: str, unscored: Unscored) -> str:
    """Text in a row about a reward, or another part, that gave no score; empty for one to come later."""
    if not unscored.reason:
        return ""
    prefix = f"{unscored.cause}: " if unscored.cause in WORLD_FAILURES else ""
    return f"{prefix}{what}: {unscored.reason}"


def stated_cause(reason: str) -> UnscoredCause:
    """The cause that a row's `unscored_reason` begins with."""
    word = reason.partition(": ")[0]
    return UnscoredCause(word) if word in WORLD_FAILURES else UnscoredCause.REWARD


def asked_again(cause: UnscoredCause) -> bool:
    """Whether another try may give a score."""
    return cause in WORLD_FAILURES
