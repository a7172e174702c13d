"""What is out of the ordinary is said, and nothing else."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from rft_data.core.words import RunState
from rft_data.run.status import RunStatus, run_status
from rft_data.web.alarms import alarms


@pytest.fixture(scope="module")
def calm(runs: Path) -> RunStatus:
    return replace(run_status(runs / "run"), disk_free=5, disk_total=10)


def said(status: RunStatus, **numbers: list[float]) -> list[str]:
    frame = pd.DataFrame({name.replace("__", "/"): values for name, values in numbers.items()})
    return [one.what for one in alarms(status, frame)]


@pytest.mark.slow
def test_a_calm_run_has_no_alarm(calm: RunStatus) -> None:
    steady = [0.4, 0.5, 0.6, 0.5] * 6
    share = [0.3] * 24
    assert alarms(calm, None) == []
    assert not said(
        calm,
        trainer__reward=steady,
        loop__frac_solved_all=share,
        loop__frac_solved_none=share,
        **{"trainer__completions/mean_length": [100.0] * 12 + [190.0] * 12},
    )


def test_each_alarm_has_its_number(calm: RunStatus) -> None:
    rise_and_fall = [0.1] * 5 + [0.8] * 5 + [0.39] * 5
    assert said(calm, trainer__reward=rise_and_fall) == ["the reward collapsed"]
    assert not said(calm, trainer__reward=[0.1] * 5 + [0.8] * 5 + [0.41] * 5)
    assert said(calm, loop__frac_solved_all=[0.0] + [0.8] * 5) == ["most groups are solved by every rollout"]
    assert said(calm, loop__frac_solved_none=[1.0] * 5) == ["most groups are solved by no rollout"]
    assert not said(calm, loop__frac_solved_none=[1.0] * 10 + [0.79] * 5)
    for last in (201.0, 49.0):
        lengths = [100.0] * 10 + [last] * 10
        assert said(calm, **{"trainer__completions/mean_length": lengths}) == ["answers changed their length"]
    found = alarms(replace(calm, disk_free=9, disk_total=100), None)
    assert [(one.what, one.number) for one in found] == [("the disk is nearly full", "9% free")]
    silent = replace(calm.standing, state=RunState.SILENT, why="no word for 60 s")
    assert [one.number for one in alarms(replace(calm, standing=silent), None)] == ["no word for 60 s"]


def test_old_groups_and_a_starving_taskset_are_said(calm: RunStatus) -> None:
    bound = replace(calm, max_staleness=2)
    assert said(bound, sampler__lag_mean=[0.5, 1.8, 1.8, 1.8, 1.8, 1.8]) == ["staleness is at its bound"]
    assert not said(bound, sampler__lag_mean=[1.8, 1.7, 1.8, 1.8, 1.8])
    assert not said(replace(calm, max_staleness=0), sampler__lag_mean=[0.0] * 5)
    assert calm.progress is not None

    def tasksets(**counts: float) -> list[str]:
        numbers = {"sampler": {key.replace("__", "/"): n for key, n in counts.items()}}
        assert calm.progress is not None
        return said(replace(calm, progress=replace(calm.progress, numbers=numbers)))

    even = {"dispatched__sums": 50.0, "dispatched__words": 50.0}
    assert tasksets(**even, trained__sums=37.0, trained__words=3.0) == ["the taskset 'words' starves"]
    assert not tasksets(**even, trained__sums=35.0, trained__words=5.0)
    assert tasksets(**even, trained__sums=37.0) == ["the taskset 'words' starves"]
    assert not tasksets(dispatched__sums=50.0, dispatched__words=19.0, trained__sums=40.0)
    assert not tasksets(**even)
