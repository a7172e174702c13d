"""What a person should look at in a run, in words, with the number behind it and what to try."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from rft_data.core.words import RunState
from rft_data.run.status import RunStatus

_RECENT = 5
"""Steps that count as now."""
_MOST = 0.8
"""Share of groups from which nothing is learned."""
_LOW_DISK = 0.1


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something to look at."""

    what: str
    number: str
    advice: str


NUMBERS = (
    "trainer/reward",
    "loop/frac_solved_all",
    "loop/frac_solved_none",
    "trainer/completions/mean_length",
)
"""What is looked at."""


def alarms(status: RunStatus, numbers: pd.DataFrame | None) -> list[Alarm]:
    """Everything that is out of the ordinary now, gravest first."""
    found = list(_of_run(status))
    if numbers is not None:
        found += _of_rewards(numbers)
        found += _of_lengths(numbers)
    return found


def _of_run(status: RunStatus) -> Iterator[Alarm]:
    if status.residual:
        yield Alarm(
            "groups are not accounted for",
            f"{status.residual} groups in no state",
            "stop the run and count the rows: rft buffer books",
        )
    if status.standing.state == RunState.SILENT:
        yield Alarm(
            "the run is silent", status.standing.why, "read its log: rft logs, then stop and resume it"
        )
    free = status.disk_free / status.disk_total
    if free < _LOW_DISK:
        yield Alarm("the disk is nearly full", f"{free:.0%} free", "free some, or move the buffer")


def _of_rewards(numbers: pd.DataFrame) -> Iterator[Alarm]:
    rewards = _series(numbers, "trainer/reward")
    means = rewards.rolling(_RECENT).mean().dropna()
    if len(means) > _RECENT and means.max() > 0 and means.iloc[-1] < means.max() / 2:
        yield Alarm(
            "the reward collapsed",
            f"{means.iloc[-1]:.3g} over the last {_RECENT} steps, {means.max():.3g} at best",
            "read rollouts of both; a lower learning rate, a KL term, or a reward that can be gamed",
        )
    for name, what, advice in (
        ("loop/frac_solved_all", "solved by every rollout", "choose harder tasks: the selector 'difficulty'"),
        (
            "loop/frac_solved_none",
            "solved by no rollout",
            "choose easier tasks, warm up by SFT, or check the reward",
        ),
    ):
        share = _series(numbers, name).tail(_RECENT).mean()
        if share >= _MOST:
            yield Alarm(f"most groups are {what}", f"{share:.0%} of the last {_RECENT} steps' groups", advice)


def _of_lengths(numbers: pd.DataFrame) -> Iterator[Alarm]:
    lengths = _series(numbers, "trainer/completions/mean_length")
    if len(lengths) >= 4 * _RECENT:
        first, last = lengths.head(_RECENT).mean(), lengths.tail(_RECENT).mean()
        if not first / 2 < last < first * 2:
            yield Alarm(
                "answers changed their length",
                f"{last:.0f} tokens now, {first:.0f} at first",
                "read the longest and the shortest; a length-normalised loss, or a penalty",
            )


def _series(numbers: pd.DataFrame, name: str) -> pd.Series:
    return numbers[name].dropna() if name in numbers.columns else pd.Series(dtype=float)
