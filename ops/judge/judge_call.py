"""Limits, costs and results of calls to a judge."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits of calls, in time, number and tokens."""

    concurrency: int = 16
    """Prompts asked at a time, waits between tries included."""
    retries: int = 3
    """Further tries of a call after status 408, 409, 429 or 5xx, a time-out, a broken connection or an answer
    that is no chat completion. A pause that the endpoint asks for is kept, up to two minutes."""
    timeout_s: float = 60.0
    """Longest time without data from the endpoint within one call."""
    deadline_s: float = 600.0
    """For one batch of prompts, with waits between tries. A prompt without a reply by then has failed."""
    max_calls: int | None = None
    """Calls of this process, tries included; None: no bound."""
    max_total_tokens: int | None = None
    """Tokens (prompt and reply) of this process, as the endpoint counts them; calls in flight may go over."""

    def __post_init__(self) -> None:
        """Raises: ValueError for limits under which nothing could be asked."""
        if self.concurrency < 1 or self.retries < 0 or not (self.timeout_s > 0 and self.deadline_s > 0):
            raise ValueError(
                f"limits are {self}; wanted concurrency >= 1, retries >= 0, timeout_s and deadline_s > 0"
            )


@dataclass(slots=True)
class Spending:
    """Calls and tokens of this process so far."""

    limits: CallLimits
    calls: int = 0
    """Calls made, tries included."""
    tokens: int = 0
    """Tokens they took."""

    def refusal(self) -> str:
        """Why no further call is allowed; empty if one is."""
        calls, tokens = self.limits.max_calls, self.limits.max_total_tokens
        if calls is not None and self.calls >= calls:
            return f"the budget of {calls} calls is spent"
        if tokens is not None and self.tokens >= tokens:
            return f"the budget of {tokens} tokens is spent"
        return ""


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to one prompt, or its error."""

    text: str
    """The reply; empty when it failed."""
    error: str = ""
    """Why there is no reply; empty when there is one."""


def without_key(text: str, key: str | None) -> str:
    """`text` with *** for the key, which an endpoint may echo and a library may quote."""
    return text.replace(key, "***") if key else text
