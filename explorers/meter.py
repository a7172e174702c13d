"""Counts events and times phases of an explorer. All callers are in one event loop."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeGuard

import numpy as np

from explorers import clock
from explorers.engines.images import accepted
from explorers.ledger import Ledger, RequestCost, new_request
from explorers.rewards.unscored import stated_cause
from rft_data.core.engine import ChatCompletion, ChatEngine, Completion, Engine, Sampling
from rft_data.core.rows import Experience, WeightRef
from rft_data.core.words import UnscoredCause

log = logging.getLogger(__name__)

_COUNTS = (
    "rollouts_started",
    "rollouts_arrived",
    "rollouts_failed",
    "rollouts_cancelled",
    "rollouts_surplus",
    "rollouts_retried",
    "rollouts_unscored",
    "groups_salvaged",
    "rows",
    "turns_masked",
    "turns_forked",
    "tokens",
)
RETRIED = "rewards_retried"
"""Calls of rewards that were made again; reported where there were any, as the causes of failures are."""
_PHASES = ("playing", "generating", "rewarding", "loading")
_SAMPLE = 100_000


class Meter:
    """Counts, wall-clock seconds per phase (see `Phases`), and the first reason for each kind of failure."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self._phases = clock.Phases()
        self._restart(time.monotonic())

    def count(self, name: str, n: int = 1) -> None:
        """Add to one of the counts."""
        self._counts[name] += n

    def trouble(self, name: str, why: str, cause: UnscoredCause) -> None:
        """Count a rollout that failed or was not scored; `take` logs the first reason of each name."""
        self._counts[name] += 1
        self._counts[f"{name}/{cause}"] += 1
        self._reasons.setdefault(name, why)

    def unscored(self, rows: Sequence[Experience]) -> None:
        """Count a rollout, if one of its rows says why it has no reward."""
        why = next((row.unscored_reason for row in rows if row.unscored_reason), None)
        if why:
            self.trouble("rollouts_unscored", why, stated_cause(why))

    def reward_took(self, seconds: float) -> None:
        """Note the time of one call of one reward."""
        if len(self._reward_s) < _SAMPLE:
            self._reward_s.append(seconds)

    def during(self, phase: str) -> AbstractContextManager[None]:
        """Count the time of a `with` block as time in `phase`."""
        return self._phases.during(phase)

    def take(self) -> dict[str, float]:
        """Return all counts and times since the last call, and reset them.

        `idle_s`: no rollout was under way; `bubble_ratio`: share of the time in which the engine sampled
        nothing; `rows_per_rollout`: rows of an arrived rollout (0 when none arrived); `reward_p50_s`,
        `reward_p95_s`: seconds per call of a reward (0 without calls); `rollouts_failed/CAUSE`,
        `rollouts_unscored/CAUSE`, `rewards_retried`: only where there were any; and what `Ledger.take` gives.
        """
        end = time.monotonic()
        seconds = {**dict.fromkeys(_PHASES, 0.0), **self._phases.take(end)}
        elapsed = max(end - self._since, 1e-9)
        p50, p95 = np.percentile(self._reward_s, [50, 95]) if self._reward_s else (0.0, 0.0)
        for name, why in self._reasons.items():
            log.warning("%d %s, the first: %s", self._counts[name], name.replace("_", " "), why)
        numbers = {
            **{name: float(self._counts[name]) for name in _COUNTS},
            **{name: float(n) for name, n in self._counts.items() if name == RETRIED or "/" in name},
            **{f"{phase}_s": spent for phase, spent in seconds.items()},
            "rows_per_rollout": self._counts["rows"] / max(1, self._counts["rollouts_arrived"]),
            "elapsed_s": elapsed,
            "idle_s": max(0.0, elapsed - seconds["playing"]),
            "bubble_ratio": min(1.0, max(0.0, 1.0 - seconds["generating"] / elapsed)),
            "reward_p50_s": float(p50),
            "reward_p95_s": float(p95),
            **self.ledger.take(),
        }
        self._restart(end)
        return numbers

    def _restart(self, now: float) -> None:
        self._since = now
        self._counts: Counter[str] = Counter()
        self._reasons: dict[str, str] = {}
        self._reward_s: list[float] = []


class MeteredEngine:
    """The engine that workflows get: it passes calls on and meters sampling."""

    def __init__(self, engine: Engine, meter: Meter) -> None:
        self._engine = engine
        self._meter = meter

    @property
    def metered(self) -> Engine:
        """The engine itself."""
        return self._engine

    @property
    def version(self) -> int:
        """`Engine.version`."""
        return self._engine.version

    @property
    def max_model_len(self) -> int | None:
        """`Engine.max_model_len`; None for an engine that does not say it."""
        return getattr(self._engine, "max_model_len", None)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, images: Sequence[str] = ()
    ) -> Completion:
        """`Engine.generate`."""
        given = accepted(self._engine, images)
        with self.sampling() as request:
            completion = await self._engine.generate(prompt_ids, sampling, **given)
            request.tokens = len(completion.token_ids)
        return completion

    @contextmanager
    def sampling(self) -> Iterator[RequestCost]:
        """Meter what is sampled in the block, which says its tokens."""
        request = new_request()
        try:
            with self._meter.during("generating"), clock.during("generating"):
                yield request
        finally:
            self._meter.count("tokens", request.tokens)
            self._meter.ledger.sampled(request.tokens)

    def load_weights(self, ref: WeightRef) -> float:
        """`Engine.load_weights`."""
        return self._engine.load_weights(ref)

    def close(self) -> None:
        """`Engine.close`."""
        self._engine.close()


class _Talking(Engine, ChatEngine, Protocol):
    """An engine that takes messages."""


def _talks(engine: Engine) -> TypeGuard[_Talking]:
    return hasattr(engine, "chat")


class MeteredChatEngine(MeteredEngine):
    """The same for an engine that takes messages (`ChatEngine`)."""

    def __init__(self, engine: _Talking, meter: Meter) -> None:
        super().__init__(engine, meter)
        self._chats: ChatEngine = engine

    @property
    def endpoint(self) -> Mapping[str, str]:
        """`ChatEngine.endpoint`."""
        return self._chats.endpoint

    async def chat(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] | None,
        sampling: Sampling,
    ) -> ChatCompletion:
        """`ChatEngine.chat`."""
        with self._meter.during("generating"), clock.during("generating"):
            completion = await self._chats.chat(messages, tools, sampling)
        self._meter.count("tokens", completion.completion_tokens)
        self._meter.ledger.sampled(completion.completion_tokens)
        return completion


def metered(engine: Engine, meter: Meter) -> MeteredEngine:
    """The engine, with its sampling metered."""
    return MeteredChatEngine(engine, meter) if _talks(engine) else MeteredEngine(engine, meter)
