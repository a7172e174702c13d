"""The model's reply to a workflow, and the typed ends of a rollout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rft_data.core.errors import BudgetSpent, ContextOverflow
from rft_data.core.rows import Message

__all__ = ["BudgetSpent", "ContextOverflow", "Reply", "ToolCall"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that the model asks for."""

    id: str
    name: str
    """Empty when the sampled text does not name a tool."""
    arguments: Mapping[str, object] | None
    """Arguments of the call; None: the sampled text is no valid call, and `text` has it."""
    text: str
    """The call as it was sampled."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One sampled turn."""

    content: str
    """The visible answer: without thinking, tool calls and special tokens."""
    reasoning: str | None
    """The model's thinking before its answer; None when there is none."""
    tool_calls: tuple[ToolCall, ...]
    """Calls in the order they were sampled, malformed ones included."""
    finish_reason: str
    """A `FinishReason`, or another word of the engine."""
    message: Message
    """The message to append to the conversation: role, content, and where there are
    any, reasoning_content and tool_calls (the valid ones)."""
    prompt_tokens: int | None = None
    """Tokens that it was sampled after; None where an endpoint does not say it."""
    sampled_tokens: int | None = None
