"""The cost of rollouts, and of those that came to nothing: tokens and seconds by cause.

It also notices when the rollouts that are kept have other lengths than those that were started.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict, deque
from contextvars import ContextVar
from dataclasses import dataclass, field

from rft_data.core.words import BurnCause

log = logging.getLogger(__name__)

_KEPT = "kept"
_FINISHED = (BurnCause.SURPLUS, BurnCause.GROUP_FAILED, None)
"""Fates of rollouts whose length is known; the others were ended before they were finished."""
_WINDOW, _ENOUGH = 512, 64
"""Newest rollouts that lengths are compared over, and how many a warning needs."""
_LOW, _HIGH = 0.8, 1.25
"""Bounds of `kept_length_ratio` beyond which a warning is logged."""


@dataclass(slots=True)
class Cost:
    """Tokens and seconds of one rollout so far."""

    tokens: int = 0
    """Sampled tokens, also those of requests that were cancelled."""
    seconds: float = 0.0
    """Wall seconds, its waits included; known at its end."""
    closed_as: str = ""
    """Reason for which it is over; empty while it is not."""
    _began: float = field(default_factory=time.monotonic)

    def begin(self) -> None:
        """Make this the running rollout of the present asyncio task and of those that it starts."""
        self._began = time.monotonic()
        _ROLLOUT.set(self)

    def end(self) -> None:
        """Stop its clock."""
        self.seconds = time.monotonic() - self._began


@dataclass(slots=True)
class RequestCost:
    """Tokens of one call of an engine."""

    tokens: int = 0


_ROLLOUT: ContextVar[Cost | None] = ContextVar("rollout cost", default=None)
_REQUEST: ContextVar[RequestCost | None] = ContextVar("request cost", default=None)


def new_request() -> RequestCost:
    """The cost of the request that this asyncio task makes next."""
    request = RequestCost()
    _REQUEST.set(request)
    return request


def note_unfinished(tokens: int) -> None:
    """Called by an engine in `generate`, before it raises: what it had sampled for this request."""
    if (request := _REQUEST.get()) is not None:
        request.tokens = tokens


class Ledger:
    """Sums of tokens and rollout seconds by cause. All callers are in one event loop."""

    def __init__(self) -> None:
        self._tokens: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._lengths: deque[tuple[int, BurnCause | None]] = deque(maxlen=_WINDOW)
        self._warned = False

    def sampled(self, tokens: int) -> None:
        """Add tokens to the running rollout; to its cause if it is over and its workflow runs on."""
        cost = _ROLLOUT.get()
        if cost is None:
            return
        if cost.closed_as:
            self._tokens[cost.closed_as] += tokens
        else:
            cost.tokens += tokens

    def retried(self) -> None:
        """The running rollout begins again: what it has cost was for nothing."""
        cost = _ROLLOUT.get()
        if cost is not None:
            cost.end()
            self._add(cost, BurnCause.RETRIED)
            cost.tokens = 0
            cost.begin()

    def close(self, cost: Cost, cause: BurnCause | None, *, compared: bool) -> None:
        """Account for a rollout that is over.

        Args:
            cause: None: it is kept.
            compared: whether its length counts in `kept_length_ratio`.
        """
        cost.closed_as = cause or _KEPT
        self._add(cost, cost.closed_as)
        if compared:
            self._lengths.append((cost.tokens, cause))

    def take(self) -> dict[str, float]:
        """The cost of what ended since the last call: `kept_tokens`, `burned_tokens/CAUSE`, `burned_s/CAUSE`
        where there were any (seconds of each rollout, added up), and `kept_length_ratio` of the newest
        rollouts.
        """
        numbers = {"kept_tokens": float(self._tokens.pop(_KEPT, 0))}
        self._seconds.pop(_KEPT, 0.0)
        numbers |= {f"burned_tokens/{cause}": float(n) for cause, n in sorted(self._tokens.items()) if n}
        numbers |= {f"burned_s/{cause}": seconds for cause, seconds in sorted(self._seconds.items())}
        self._tokens.clear()
        self._seconds.clear()
        ratio = self.kept_length_ratio()
        if ratio is not None:
            numbers["kept_length_ratio"] = ratio
            self._warn(ratio)
        return numbers

    def kept_length_ratio(self) -> float | None:
        """Mean length of kept rollouts over the mean length of all that were started.

        A rollout that was ended early is longer than its tokens say. So the mean over all is not the plain
        one, but all tokens over the number of rollouts that finished: the estimate of a mean life from a
        test that is stopped early (Epstein and Sobel, "Life Testing", JASA 48, 1953), exact where a rollout
        is as likely to end at any token. 1: no bias; below: long rollouts are lost. None: nothing was kept.
        """
        kept = [tokens for tokens, cause in self._lengths if cause is None]
        finished = sum(cause in _FINISHED for _, cause in self._lengths)
        if not sum(kept):
            return None
        return (sum(kept) / len(kept)) / (sum(tokens for tokens, _ in self._lengths) / finished)

    def _add(self, cost: Cost, cause: str) -> None:
        self._tokens[cause] += cost.tokens
        self._seconds[cause] += cost.seconds

    def _warn(self, ratio: float) -> None:
        if self._warned or len(self._lengths) < _ENOUGH or _LOW <= ratio <= _HIGH:
            return
        self._warned = True
        log.warning(
            "the rollouts that are kept have %.2f times the length of those that were started (metric "
            "kept_length_ratio, wanted %g to %g): training sees too many %s ones; lower "
            "explorer.limits.extra, raise explorer.limits.rollout_deadline_s, or see what fails",
            ratio,
            _LOW,
            _HIGH,
            "short" if ratio < 1 else "long",
        )
