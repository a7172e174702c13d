"""The choice of held-out prompts: by a hash of the question, so it is held out everywhere or nowhere."""

from __future__ import annotations

from collections.abc import Sequence

from rft_data.core.canonical import content_id
from rft_data.core.rows import Message

_INSTRUCTIONS = ("system", "developer")
"""Roles of messages that say how to answer; the question is the same with them and without."""


def prompt_share(prompt: Sequence[Message]) -> float:
    """The hash of a prompt in [0, 1); the prompt is held out below the taskset's `heldout`.

    System messages do not count. A question is the same whether it is given as text or as one user message.
    """
    asked = question(prompt)
    named = asked[0]["content"] if len(asked) == 1 else [dict(one) for one in asked]
    return int(content_id("split", named)[:8], 16) / 0x1_0000_0000


def question(prompt: Sequence[Message]) -> list[Message]:
    """The prompt without its system messages; the whole prompt if it has no others."""
    return [one for one in prompt if one.get("role") not in _INSTRUCTIONS] or list(prompt)
