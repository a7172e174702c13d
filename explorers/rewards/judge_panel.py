"""The judges of a reward: one language model or several behind OpenAI-compatible endpoints."""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from rft_data.core.lookup import need
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored

if TYPE_CHECKING:
    from ops.judge.judge_asker import JudgeAsker

T = TypeVar("T")
Read: TypeAlias = Callable[[str], T | str]
"""Reads a reply: its content, or as a text why there is none."""

_SAMPLING: Mapping[str, object] = {"temperature": 0.0, "max_tokens": 1024}
_KNOWN = {"base_url", "model", "api_key_env"}


class JudgePanel:
    """Asks every judge the same; more than half of them must give a usable answer."""

    def __init__(
        self,
        judges: Sequence[Mapping[str, object]],
        *,
        sampling: Mapping[str, object] | None,
        limits: Mapping[str, object] | None,
        cache: str | None,
    ) -> None:
        """Read the keys; nothing is asked yet.

        Args:
            judges: `{"base_url", "model"}` each, and `api_key_env`: NAME of the variable that holds the key.
            sampling: further fields of requests (default: temperature 0, max_tokens 1024).
            limits: fields of `ops.endpoint.calls.CallLimits`. cache: path of a SQLite file for replies.
        Raises: ValueError for no judge or an unknown key; OperatorError without a key; MissingExtraError.
        """
        if not judges or any(set(judge) - _KNOWN for judge in judges):
            raise ValueError(f"judges are {[sorted(one) for one in judges]}; wanted {sorted(_KNOWN)} in each")
        asker = need("ops.judge.judge_asker", "ops", "a judge's reward")
        client = need("ops.judge.judge_client", "ops", "a judge's reward").JudgeClient
        call = need("ops.endpoint.calls", "ops", "a judge's reward")
        replies = need("ops.judge.judge_cache", "ops", "a judge's reward").JudgeCache(cache)
        self._askers = [
            asker.JudgeAsker(
                client(
                    str(judge.get("base_url", "")),
                    str(judge.get("model", "")),
                    sampling={**_SAMPLING, **(sampling or {})},
                    limits=call.CallLimits(**(limits or {})),
                    cache=replies,
                    api_key_env=judge.get("api_key_env"),
                )
            )
            for judge in judges
        ]

    async def ask(self, questions: Sequence[tuple[str, Read[T]]]) -> list[T | str]:
        """Every judge's verdict on every prompt, or as a text why it says nothing.

        Args: questions: a prompt each, and how its replies are read: a text says why one is of no use.
        """
        asked = (_read(asker, *question) for asker in self._askers for question in questions)
        return list(await asyncio.gather(*asked))


async def _read(asker: JudgeAsker, prompt: str, read: Read[T]) -> T | str:
    reply = await asker.ask(prompt, lambda text: not isinstance(read(text), str))
    return reply.error or read(reply.text)


def usable(readings: Sequence[T | str]) -> list[T] | Unscored:
    """The readings that are no reason, if they are more than half of all; else the first reason.

    Args: readings: what each reply says, or as a text why it says nothing.
    """
    found = [one for one in readings if not isinstance(one, str)]
    if 2 * len(found) > len(readings):
        return found
    reasons = [one for one in readings if isinstance(one, str)]
    return Unscored(f"{len(reasons)} of {len(readings)} judgements failed: {reasons[0]}", UnscoredCause.JUDGE)


def agreement(scores: Sequence[float]) -> float:
    """1 minus the mean distance of two scores in [0, 1]; 1 for a single one."""
    pairs = [abs(one - other) for one, other in itertools.combinations(scores, 2)]
    return 1.0 - statistics.fmean(pairs) if pairs else 1.0
