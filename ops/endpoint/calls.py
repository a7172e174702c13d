"""Limits and costs of calls to an endpoint, and the ways in which a call ends without an answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from ops.endpoint.pace import Pace


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits of calls, in time, number and tokens."""

    concurrency: int = 16
    """Calls at a time, waits between tries included."""
    retries: int = 3
    """Further tries of a call after status 408, 409, 429 or 5xx, a time-out, a broken connection or an answer
    that is no chat completion. A pause that the endpoint asks for is kept, up to two minutes."""
    timeout_s: float = 60.0
    """Longest time without data from the endpoint within one call."""
    deadline_s: float = 600.0
    """For a batch of prompts, with waits between tries. A prompt that has no reply by then has failed."""
    max_calls: int | None = None
    """Calls of this process, tries included; None: no bound."""
    max_total_tokens: int | None = None
    """Tokens (prompt and reply) of this process, as the endpoint counts them, or estimated from the length of
    the text where it counts none; calls in flight may go over."""
    requests_per_minute: int | None = None
    """Tries of this process in any minute; None: no bound."""
    tokens_per_minute: int | None = None
    """Tokens (prompt and reply) of this process in any minute. Those of a call are estimated before it is
    made, and corrected by what the endpoint counts."""

    def __post_init__(self) -> None:
        """Raises: ValueError for limits under which nothing could be asked."""
        if self.concurrency < 1 or self.retries < 0 or not (self.timeout_s > 0 and self.deadline_s > 0):
            raise ValueError(
                f"limits are {self}; wanted concurrency >= 1, retries >= 0, timeout_s and deadline_s > 0"
            )
        rates = (self.requests_per_minute, self.tokens_per_minute)
        if any(rate is not None and rate < 1 for rate in rates):
            raise ValueError(
                f"limits are {self}; wanted requests_per_minute and tokens_per_minute >= 1, or none"
            )


@dataclass(slots=True)
class Spending:
    """Calls and tokens of this process so far."""

    limits: CallLimits
    calls: int = 0
    """Calls made, tries included."""
    tokens: int = 0
    """Tokens they took."""
    pace: Pace = field(init=False)
    """Spreads the calls over time as the limits say."""

    def __post_init__(self) -> None:
        self.pace = Pace(self.limits.requests_per_minute, self.limits.tokens_per_minute)

    def refusal(self) -> str:
        """Reason against a further call; empty if one is."""
        calls, tokens = self.limits.max_calls, self.limits.max_total_tokens
        if calls is not None and self.calls >= calls:
            return f"the budget of {calls} calls is spent"
        if tokens is not None and self.tokens >= tokens:
            return f"the budget of {tokens} tokens is spent"
        return ""


class NoAnswer(Exception):
    """A call ended without an answer; the text says why, without the key."""


class EndpointDown(NoAnswer, ConnectionError):
    """The endpoint could not be reached, was overloaded or sent no completion, in every try."""


class EndpointLate(NoAnswer, TimeoutError):
    """The endpoint sent no answer in time, in every try."""


class EndpointRefusal(NoAnswer):
    """The endpoint refused the call: asking again would change nothing."""

    def __init__(self, why: str, status: int) -> None:
        super().__init__(why)
        self.status = status


class BudgetGone(NoAnswer):
    """`max_calls` or `max_total_tokens` allow no further call."""


def without_key(text: str, key: str | None) -> str:
    """`text` with *** for the key, which an endpoint may echo and a library may quote."""
    return text.replace(key, "***") if key else text
