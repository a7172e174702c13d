import math
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft_data.buffer import Buffer
from rft_data.core.facts import (
    Window,
    bubble,
    ess_by_age,
    ess_fraction,
    lag_histograms,
    operator_facts,
    pass_rate_histogram,
    residual,
    share_ratios,
    window_facts,
)
from rft_data.run.watch.metrics_log import MetricsLog
from rft_data.run.watch.tracker_feed import Point

# --- facts -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_lag_is_split_into_flight_and_queue() -> None:
    found = lag_histograms(sampled=[5, 5, 3], arrived=[5, 6, 3], leased=[6, 6, 6])
    assert found == {
        "lag_mean": 5 / 3,
        "lag_max": 3.0,
        "lag_in_flight/0": 2.0,
        "lag_in_flight/1": 1.0,
        "lag_in_queue/0": 1.0,
        "lag_in_queue/1": 1.0,
        "lag_in_queue/3": 1.0,
        "lag/1": 2.0,
        "lag/3": 1.0,
    }


def test_lags_past_the_last_bucket_share_it() -> None:
    assert lag_histograms([0, 0], [0, 0], [8, 30])["lag_in_queue/8+"] == 2.0


def test_no_groups_have_no_lag() -> None:
    assert lag_histograms([], [], []) == {}


@pytest.mark.parametrize(
    ("sampled", "arrived", "leased"), [([2], [1], [3]), ([1], [3], [2]), ([1], [1, 2], [2])]
)
def test_lag_refuses_times_out_of_order(sampled: list[int], arrived: list[int], leased: list[int]) -> None:
    with pytest.raises(ValueError, match="sampled <= arrived <= leased"):
        lag_histograms(sampled, arrived, leased)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20)), min_size=1))
def test_lag_histograms_count_every_group_and_add_up(times: list[tuple[int, int, int]]) -> None:
    sampled, arrived, leased = (list(column) for column in zip(*map(sorted, times), strict=True))
    found = lag_histograms(sampled, arrived, leased)
    for name in ("lag_in_flight", "lag_in_queue", "lag"):
        assert sum(v for key, v in found.items() if key.startswith(f"{name}/")) == len(times)
    assert found["lag_mean"] == pytest.approx(sum(leased) / len(times) - sum(sampled) / len(times))


def test_bubble_is_the_idle_share() -> None:
    assert bubble(3.0, 4.0) == 0.25
    assert bubble(4.1, 4.0) == 0.0  # clocks of two processes never agree to the last digit
    assert bubble(1.0, 0.0) is None


def test_residual_is_what_no_state_holds() -> None:
    assert residual({"admitted": 7, "open": 2, "ready": 1, "trained": 4}) == 0
    assert residual({"admitted": 8, "open": 2, "ready": 1, "trained": 4}) == 1


def test_operators_are_measured_against_what_reached_them() -> None:
    counts = {
        "length/rows_in": 100.0,
        "length/rows_out": 80.0,
        "length/quarantined": 5.0,
        "length/seconds": 0.5,
        "variance/rows_in": 80.0,
        "variance/rows_out": 40.0,
        "variance/quarantined": 0.0,
        "variance/seconds": 0.25,
    }
    found = operator_facts(counts)
    assert found["filtered_fraction/length"] == 0.15
    assert found["quarantined_fraction/length"] == 0.05
    assert found["filtered_fraction/variance"] == 0.5
    assert (found["seconds/length"], found["seconds"]) == (0.5, 0.75)
    assert (found["filtered_fraction"], found["quarantined_fraction"]) == (0.55, 0.05)


def test_operators_that_saw_no_rows_have_seconds_only() -> None:
    assert operator_facts({}) == {"seconds": 0}
    idle = operator_facts({"length/rows_in": 0.0, "length/rows_out": 0.0, "length/seconds": 0.0})
    assert set(idle) == {"seconds/length", "seconds"}


def test_pass_rates_are_counted_by_group() -> None:
    groups = [
        (0, 0),
        (1, 1),
        (1, 0, 0, 0),
        (1, 1, 0, 0),
        (None, 1.0),
        (None, None),
        (0.1, 0.3),
        (-2, 0),
        (3, 1),
    ]
    found = pass_rate_histogram(groups)
    counts = {key.partition("/")[2]: n for key, n in found.items() if "/" in key}
    assert counts == {
        "0": 2,
        "0-0.25": 1,
        "0.25-0.5": 1,
        "0.5-0.75": 1,
        "0.75-1": 0,
        "1": 3,
        "unscored": 1,
    }
    assert (found["frac_solved_none"], found["frac_solved_all"]) == (2 / 8, 3 / 8)


@pytest.mark.slow
@given(st.lists(st.floats(-30, 30), min_size=1, max_size=50))
def test_ess_fraction_is_kishs_and_ignores_a_common_factor(logs: list[float]) -> None:
    weights = [math.exp(x) for x in logs]
    kish = math.fsum(weights) ** 2 / (len(logs) * math.fsum(w * w for w in weights))
    assert ess_fraction(logs) == pytest.approx(kish, rel=1e-9)
    assert ess_fraction(np.array(logs) + 5000) == pytest.approx(kish, rel=1e-9)


def test_ess_fraction_at_its_ends() -> None:
    assert ess_fraction([0.3] * 8) == pytest.approx(1.0)
    assert ess_fraction([0.0, -1000.0, -1000.0, -1000.0]) == pytest.approx(0.25)
    assert ess_fraction([]) is None


def test_ess_goes_by_lag_not_by_version() -> None:
    assert ess_by_age({12: 0.9, 15: 1.0, 16: 0.8}, {12: 3, 15: 1, 16: 1}) == {"ess/1": 0.9, "ess/3": 0.9}


def test_shares_compare_trained_with_dispatched() -> None:
    found = share_ratios({"easy": 50, "hard": 50}, {"easy": 30, "hard": 10}, "difficulty")
    assert found["trained_share/difficulty/easy"] == 1.5
    assert found["trained_share/difficulty/hard"] == 0.5
    assert found["trained_shift/difficulty"] == 0.25
    assert share_ratios({"easy": 3}, {}, "difficulty") == {}


def test_a_class_that_is_never_trained_shows() -> None:
    found = share_ratios({"a": 9, "b": 1}, {"a": 4}, "taskset")
    assert found["trained_share/taskset/b"] == 0.0
    assert found["trained_shift/taskset"] == pytest.approx(0.1)


def test_a_window_gives_numbers_by_role() -> None:
    found = window_facts(
        Window(
            elapsed_s=4.0,
            steps=2,
            busy_s={"trainer": 1.0, "explorer-0": 4.0},
            tokens={"generated": 800, "trained": 400},
            groups_by_state={"admitted": 5, "open": 1, "trained": 4},
            rewards=[(1.0, 0.0)],
            dispatched={"taskset": {"a": 1, "b": 1}},
            trained={"taskset": {"a": 1}},
        )
    )
    assert found["trainer"] == {"busy_s": 1.0, "bubble": 0.75}
    assert found["explorer-0"]["bubble"] == 0.0
    loop = found["loop"]
    assert (loop["steps_per_s"], loop["generated_tokens_per_s"], loop["trained_tokens_per_s"]) == (
        0.5,
        200,
        100,
    )
    assert (loop["residual"], loop["pass_rate_groups/0.5-0.75"], loop["trained_shift/taskset"]) == (
        0.0,
        1.0,
        0.5,
    )


# --- the log ---------------------------------------------------------------------------------------------


class Notebook:
    """A tracker that writes down what it is told."""

    name = "notebook"

    def __init__(self, fails_at: int | None = None, opens: threading.Event | None = None) -> None:
        self.steps: list[int] = []
        self.closed = False
        self._fails_at = fails_at
        self._opens = opens

    def log(self, point: Point) -> None:
        if self._opens is not None:
            self._opens.wait(60)
        if point.step == self._fails_at:
            raise OSError("no route to the tracker")
        self.steps.append(point.step)

    def close(self) -> None:
        self.closed = True


def test_a_step_is_one_commit_with_both_axes(buffer: Buffer) -> None:
    with MetricsLog(buffer, "run") as metrics:
        metrics.record(0, 3, {"trainer": {"reward": 0.5, "loss": math.nan}, "loop": {"groups": 2}})
        before = buffer.lance("metrics").version
        metrics.record(1, 4, {"trainer": {"reward": 0.75}})
        assert buffer.lance("metrics").version == before + 1
    rows = buffer.read("metrics").to_pylist()
    stored = {(row["step"], row["role"], row["key"]): row["value"] for row in rows}
    assert stored[0, "trainer", "reward"] == 0.5
    assert math.isnan(stored[0, "trainer", "loss"])
    assert (stored[0, "loop", "policy_version"], stored[1, "loop", "policy_version"]) == (3.0, 4.0)
    assert stored[0, "loop", "groups"] == 2.0
    assert 0 <= stored[0, "loop", "elapsed_s"] <= stored[1, "loop", "elapsed_s"]
    assert {row["run_id"] for row in rows} == {"run"}


def test_the_clock_goes_on_where_the_former_start_left_it(buffer: Buffer) -> None:
    row = {"run_id": "run", "role": "loop", "step": 4, "key": "elapsed_s", "value": 5000.0}
    buffer.add_rows("metrics", [row, {**row, "run_id": "other", "value": 9000.0}])
    assert 5000 <= MetricsLog(buffer, "run").elapsed_s < 5100
    assert MetricsLog(buffer, "new").elapsed_s < 100


def test_trackers_are_told_every_step_and_closed(buffer: Buffer) -> None:
    trackers = [Notebook(), Notebook()]
    with MetricsLog(buffer, "run", trackers) as metrics:
        for step in range(5):
            metrics.record(step, step, {"trainer": {"reward": 0.0}})
    assert [tracker.steps for tracker in trackers] == [[0, 1, 2, 3, 4]] * 2
    assert all(tracker.closed for tracker in trackers)


@pytest.mark.slow
def test_a_tracker_that_fails_is_named_once_and_ends_nothing(
    buffer: Buffer, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = Notebook(fails_at=2), Notebook()
    with MetricsLog(buffer, "run", [bad, good]) as metrics:
        for step in range(6):
            metrics.record(step, step, {"trainer": {"reward": 0.0}})
    assert (bad.steps, good.steps) == ([0, 1], [0, 1, 2, 3, 4, 5])
    told = [line for line in caplog.messages if "notebook" in line]
    assert len(told) == 1
    assert "switched off (OSError: no route to the tracker)" in told[0]
    assert max(buffer.read("metrics").column("step").to_pylist()) == 5


@pytest.mark.slow
def test_a_tracker_that_hangs_holds_nothing_up(
    buffer: Buffer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rft_data.run.watch.tracker_feed._BACKLOG", 3)
    monkeypatch.setattr("rft_data.run.watch.tracker_feed._PATIENCE_S", 0.2)
    opens = threading.Event()
    slow, waits = Notebook(opens=opens), Notebook(opens=opens)
    metrics = MetricsLog(buffer, "run", [slow])
    for step in range(8):
        metrics.record(step, step, {"trainer": {"reward": 0.0}})
    assert "3 steps behind" in caplog.text
    late = MetricsLog(buffer, "run", [waits])
    late.record(8, 8, {})
    began = time.monotonic()
    metrics.close()
    late.close()
    assert time.monotonic() - began < 30  # the trackers would have waited for 60
    assert "not done 0.2 s after the end of the run" in caplog.text
    opens.set()


def test_latest_is_the_last_point(tmp_path: Path) -> None:
    with Buffer(tmp_path / "b") as buffer:
        metrics = MetricsLog(buffer, "run")
        assert metrics.latest is None
        point = metrics.record(0, 0, {"trainer": {"reward": 1}})
        assert metrics.latest is point
        assert point.numbers["trainer"] == {"reward": 1.0}
