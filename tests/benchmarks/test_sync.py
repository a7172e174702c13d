"""The waits of the benchmark's slow environment are what they are said to be."""

import numpy as np
import pytest

from benchmarks.sync.runs import tail_share
from benchmarks.sync.slow import rollout_latency_s
from rft_data.core.rows import content_id

TASKS = [content_id(number) for number in range(4000)]


def test_lognormal_waits_have_the_median_and_the_spread_they_are_said_to_have() -> None:
    waits = np.log([rollout_latency_s(task, "lognormal", 0.5) for task in TASKS])
    assert np.exp(np.median(waits)) == pytest.approx(0.5, rel=0.05)
    assert waits.std() == pytest.approx(1.0, rel=0.05)


def test_a_tenth_of_the_bimodal_waits_is_ten_times_as_long() -> None:
    waits = np.array([rollout_latency_s(task, "bimodal", 0.5) for task in TASKS])
    assert set(waits) == {0.5, 5.0}
    assert (waits == 5.0).mean() == pytest.approx(0.1, abs=0.02)


def test_a_task_waits_as_long_in_every_run() -> None:
    assert rollout_latency_s(TASKS[0], "lognormal", 0.5) == rollout_latency_s(TASKS[0], "lognormal", 0.5)
    assert rollout_latency_s(TASKS[0], "lognormal", 1.0) == pytest.approx(
        2 * rollout_latency_s(TASKS[0], "lognormal", 0.5)
    )


def test_tail_share_falls_when_slow_groups_are_lost() -> None:
    seconds = np.random.default_rng(0).lognormal(0, 1, 4000)
    assert tail_share(seconds, seconds) == 1.0
    kept = np.sort(seconds)[:-100]  # half of the slowest 5 % never trained
    assert tail_share(seconds, kept) == pytest.approx(0.5, abs=0.02)
    assert tail_share(seconds[:19], seconds) is None
    assert tail_share([2.0] * 100, [2.0] * 7) == 1.0
