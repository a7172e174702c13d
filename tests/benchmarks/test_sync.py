"""The waits of the benchmark's slow environment are what they are said to be, and so are its figures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.sync.__main__ import bars
from benchmarks.sync.runs import MODES, Outcome, Setting, hub_cpu_s, read, tail_share
from benchmarks.sync.scripted import GROUPS, MEMBERS, conduct
from benchmarks.sync.slow import rollout_latency_s
from rft_data.buffer import Buffer
from rft_data.core.canonical import content_id
from rft_data.core.groups import GroupResult, Ticket
from rft_data.core.rows import TaskKey
from rft_data.sampler.ledger import Ledger
from rft_data.weights.versions import VersionRegistry

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
    """The same in every process too: Python's `hash` of a text would not be."""
    half = "7fffffffffff" + "0" * 20
    assert rollout_latency_s(half, "lognormal", 0.5) == pytest.approx(0.5)
    assert rollout_latency_s("0" * 32, "bimodal", 0.5) == 0.5
    assert rollout_latency_s("e6" + "0" * 30, "bimodal", 0.5) == 0.5  # 0.8984
    assert rollout_latency_s("e7" + "0" * 30, "bimodal", 0.5) == 5.0  # 0.9023
    low, high = (rollout_latency_s(start + "0" * 28, "lognormal", 2.0) for start in ("28a0", "d760"))
    assert (low, high) == (pytest.approx(2 / np.e, rel=0.01), pytest.approx(2 * np.e, rel=0.01))


def test_tail_share_falls_when_slow_groups_are_lost() -> None:
    seconds = np.random.default_rng(0).lognormal(0, 1, 4000)
    assert tail_share(seconds, seconds) == 1.0
    kept = np.sort(seconds)[:-100]  # half of the slowest 5 % never trained
    assert tail_share(seconds, kept) == pytest.approx(0.5, abs=0.02)
    assert tail_share(seconds[:19], seconds) is None
    assert tail_share([2.0] * 100, [2.0] * 7) == 1.0


STEPS = 8
METRICS: dict[tuple[str, str], list[float]] = {
    ("loop", "elapsed_s"): [10.0, 11.0, 12.0, 14.0, 16.0, 18.0, 20.0, 22.0],
    ("loop", "cpu_s"): [9.0, 9.0, 9.0, 0.1, 0.2, 0.3, 0.4, 0.5],
    ("trainer", "tokens"): [1e9, 1e9, 1e9, 10.0, 20.0, 30.0, 40.0, 50.0],
    ("trainer", "busy_s"): [9.0, 9.0, 9.0, 1.0, 1.0, 1.0, 1.0, 2.0],
    ("explorer/0", "busy_s"): [9.0, 9.0, 9.0, 0.5, 0.5, 0.5, 0.5, 0.5],
    ("trainer", "reward"): [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.25, 0.75],
    ("seconds", "idle"): [9.0, 9.0, 9.0, 0.5, 0.1, 0.3, 0.2, 0.4],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder: 24 groups of version 0, one leased at every step; each publishes every other number."""
    root = tmp_path_factory.mktemp("run")
    with Buffer(root / "buffer") as buffer:
        versions = VersionRegistry(buffer, "run", root)
        ledger = Ledger(buffer, "run", 0)
        versions.issue(0)
        groups = [group(number) for number in range(24)]
        for step in range(STEPS):
            ledger.grant("trainer", step, versions.latest, [groups[3 * step]])
            versions.issue(step)  # numbers have gaps, steps have none
            versions.issue(step + 1)
        ledger.retire("trainer", ["run/0-00000001"], "stale")
        buffer.add_rows("groups", [stored(one) for one in groups])
        rows = [
            {"run_id": "run", "role": role, "step": step, "key": key, "value": value}
            for (role, key), values in METRICS.items()
            for step, value in enumerate(values)
        ]
        buffer.add_rows("metrics", rows[::-1])
    return root


def group(number: int) -> GroupResult:
    """The slowest task of three is leased at every step."""
    ticket = Ticket(f"run/0-{number:08d}", number, 0)
    task_id = ("f" if number % 3 == 0 else "1") + "0" * 31
    return GroupResult(ticket, TaskKey("a", task_id), (1.0,), "arrived", 0, (number,))


def stored(one: GroupResult) -> dict[str, Any]:
    return {
        "group_id": one.ticket.group_id,
        "run_id": "run",
        "ordinal": one.ticket.ordinal,
        "round": 0,
        "attempt": 0,
        "taskset": one.task.taskset,
        "task_id": one.task.task_id,
        "version": 0,
        "version_min": 0,
        "outcome": "arrived",
        "rewards": [1.0],
        "seqs": list(one.seqs),
        "dropped_by": "",
        "error": "",
    }


@pytest.mark.slow
def test_figures_of_a_run_are_those_of_its_tables_after_the_warm_up(folder: Path) -> None:
    found = read(Setting("asynchronous", 0, STEPS, "bimodal"), folder)
    assert found.steps_per_s == 5 / 10
    assert found.tokens_per_s == 150 / 10
    assert found.busy == {"trainer": 0.6, "explorer/0": 0.25}
    assert found.reward == 0.5
    assert (found.hub_cpu, found.idle_s) == (0.1, 0.3)  # the last four steps explore nothing
    assert found.lag == dict.fromkeys(range(STEPS), 1)
    assert found.violations == 4  # past a staleness of 3
    assert found.tail == pytest.approx(3.0)  # all that trained was slow, a third of what started
    plain = read(Setting("synchronous", 0, STEPS), folder)
    assert (plain.tail, plain.violations) == (None, 7)


def outcome(mode: str, seed: int, rate: float, reward: float, **changes: Any) -> Outcome:
    named = {"tokens_per_s": 1.0, "busy": {}, "lag": {0: 5}, "hub_cpu": 0.1, "idle_s": 0.01, "tail": None}
    setting = Setting(mode, seed, 40, changes.pop("distribution", ""))
    return Outcome(setting=setting, steps_per_s=rate, reward=reward, **{**named, **changes})


def test_bars_are_ratios_of_medians_and_the_worst_of_tails_and_bounds() -> None:
    rates = {"synchronous": (1.0, 2.0, 9.0), "one-step": (3.0, 4.0, 0.0), "asynchronous": (5.0, 1.0, 6.0)}
    rewards = {"synchronous": (0.5, 0.6, 0.7), "one-step": (0.5, 0.5, 0.5), "asynchronous": (0.1, 0.3, 0.5)}
    fast = [
        outcome(mode, seed, rates[mode][seed], rewards[mode][seed]) for mode in MODES for seed in range(3)
    ]
    slow = [
        outcome(mode, 0, rate, 0.5, distribution=kind, tail=tail, lag={0: 1, 2: 3, 4: 1})
        for kind, tail, pace in (("lognormal", 0.99, 2.0), ("bimodal", 1.02, 3.0))
        for mode, rate in zip(MODES, (1.0, 1.5, pace), strict=True)
    ]
    found = {bar.name: bar for bar in bars(fast, slow)}
    assert found["async_vs_sync_steps_per_s"].value == 5.0 / 2.0
    assert found["one_step_vs_sync_steps_per_s"].value == 3.0 / 2.0
    assert found["slow_env_async_vs_sync"].value == 2.0
    lost = found["reward_lost_by_async"]
    assert lost.value == pytest.approx(0.3)
    assert lost.bound == pytest.approx(2 * np.std([0.1, 0.3, 0.5]))
    assert found["staleness_bound_violations"].value == 2 * (4 + 4 + 1)
    assert (found["tail_share"].value, found["tail_share_most"].value) == (0.99, 1.02)
    waits = [bar for bar in found.values() if bar.bound == 0.03]
    assert [bar.value for bar in waits] == [pytest.approx(0.05)]  # 0.01 s a step, 5 steps/s
    missed = {name for name, bar in found.items() if not bar.holds}
    assert missed == {waits[0].name, "staleness_bound_violations"}


def test_bars_name_what_the_trainer_waits_and_what_the_hub_costs() -> None:
    fast = [outcome(mode, 0, 1.0, 0.5) for mode in MODES if mode != "asynchronous"]
    measured = enumerate(((0.2, 0.02), (0.1, 0.1), (0.13, 0.1)))
    fast += [outcome("asynchronous", n, 0.6, 0.5, hub_cpu=cpu, idle_s=idle) for n, (cpu, idle) in measured]
    slow = [outcome(mode, 0, 1.0, 0.5, distribution="lognormal", tail=1.0) for mode in MODES]
    found = {bar.name: bar for bar in bars(fast, slow)}
    assert found["trainer_wait_fraction"].value == pytest.approx(0.06)
    assert not found["trainer_wait_fraction"].holds
    assert (found["hub_cpu_s_per_step"].value, found["hub_cpu_s_per_step"].bound) == (0.13, 0.12)
    assert not found["hub_cpu_s_per_step"].holds


def test_what_the_hub_costs_leaves_out_the_start_and_the_end_but_no_merge_of_tables() -> None:
    assert hub_cpu_s([9.0, 9.0, 9.0, 0.1, 0.1, 0.4, *[0.0] * 4]) == pytest.approx(0.2)
    assert hub_cpu_s([9.0, 9.0, 9.0, 0.1, 0.3]) == pytest.approx(0.2)


@pytest.mark.slow
def test_a_scripted_run_shares_its_commits(tmp_path: Path) -> None:
    numbers = conduct(tmp_path, 6, 0.3)
    assert len(numbers["loop/cpu_s"]) == 6
    assert numbers["sampler/trained"][-1] == 6 * GROUPS
    with Buffer(tmp_path / "buffer", read_only=True) as buffer:
        assert len(buffer) >= 6 * GROUPS * MEMBERS
        for name in ("experiences", "annotations", "groups"):
            assert buffer.lance(name).version < 4 * 6, "about two commits a step, not one a group"
