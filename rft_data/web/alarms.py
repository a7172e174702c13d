"""Alarms of a run that a person should look at, in words, with the number behind it and what to try."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from rft_data.core.words import MetricRole, RunState
from rft_data.run.status import RunStatus

_RECENT = 5
"""Steps that count as now."""
_MOST = 0.8
"""Share of groups from which nothing is learned."""
_LOW_DISK = 0.1
_AT_BOUND = 0.9
"""Share of the allowed staleness from which on groups are nearly too old."""
_STARVING, _FEW_GROUPS = 0.25, 20
"""A taskset starves whose groups are trained on a quarter as often as others', of at least so many drawn."""


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
    "sampler/lag_mean",
)
"""The metrics of the report, beside those that its caller names."""


def alarms(status: RunStatus, numbers: pd.DataFrame | None) -> list[Alarm]:
    """Everything that is out of the ordinary now, gravest first."""
    found = [*_of_run(status), *_of_tasksets(status)]
    if numbers is not None:
        found += _of_rewards(numbers)
        found += _of_lengths(numbers)
        found += _of_staleness(numbers, status.max_staleness)
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


def _of_tasksets(status: RunStatus) -> Iterator[Alarm]:
    """Tasksets that are drawn and hardly ever trained on."""
    counts = {} if status.progress is None else status.progress.numbers.get(MetricRole.SAMPLER, {})
    drawn = {key.partition("/")[2]: n for key, n in counts.items() if key.startswith("dispatched/")}
    trained = {name: counts.get(f"trained/{name}", 0.0) for name in drawn}
    if len(drawn) < 2 or not sum(trained.values()):
        return
    for name, number in drawn.items():
        share, used = number / sum(drawn.values()), trained[name] / sum(trained.values())
        if number >= _FEW_GROUPS and used < _STARVING * share:
            yield Alarm(
                f"the taskset '{name}' starves",
                f"{share:.0%} of the groups drawn, {used:.1%} of those trained on",
                "the page's flow and tasks say where its groups go: dropped, too hard, or too slow to arrive",
            )


def _of_staleness(numbers: pd.DataFrame, bound: int | None) -> Iterator[Alarm]:
    lags = _series(numbers, "sampler/lag_mean").tail(_RECENT)
    if bound and len(lags) == _RECENT and lags.mean() >= _AT_BOUND * bound:
        yield Alarm(
            "staleness is at its bound",
            f"groups are {lags.mean():.3g} steps old over the last {_RECENT} steps, {bound} are allowed",
            "exploring is far ahead of training: fewer rollouts in flight, a faster trainer, or a loss that "
            "corrects for old weights",
        )


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
