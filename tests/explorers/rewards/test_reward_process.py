"""Rewards in child processes: what they say, and what becomes of the calls when one misbehaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from explorers.rewards.reward_calls import Scored
from explorers.rewards.reward_pool import RewardPool
from rft_data.core.errors import RecipeError, RftError, UnknownComponentError
from rft_data.core.rows import Task
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored
from tests.processes import children_of, runs

ACT = "tests.explorers.toys:Act"
CHILD = "explorers.rewards.reward_child"
TASK = Task("toys", ({"role": "user", "content": "?"},), answer="1", metadata={"a": [1, None]}, tags=("x",))
Make = Callable[..., RewardPool]


@pytest.mark.slow
def test_a_child_starts_without_what_few_rewards_need() -> None:
    code = (
        "import sys, explorers.rewards.reward_child;"
        "needless = {'numpy', 'pyarrow', 'pydantic', 'openai', 'torch'} & set(sys.modules);"
        "assert not needless, needless"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


@pytest.fixture(scope="module")
def pool() -> Iterator[RewardPool]:
    """One child, two seconds for each call; what a test kills is started again for the next."""
    pool = RewardPool(
        [{"use": ACT, "args": {"value": 0.5}}], processes=1, deadline_s=2.0, memory_bytes=2 << 30
    )
    yield pool
    pool.close()


@pytest.fixture
def make() -> Iterator[Make]:
    """Pools of one child unless asked for more, closed at the end."""
    pools: list[RewardPool] = []

    def build(
        *components: dict[str, Any], deadline_s: float = 60.0, memory_mb: int = 2048, processes: int = 1
    ):
        settings = {"processes": processes, "deadline_s": deadline_s, "memory_bytes": memory_mb << 20}
        pools.append(RewardPool(components or ({"use": ACT, "args": {}},), **settings))
        return pools[-1]

    yield build
    for pool in pools:
        pool.close()


def ask(pool: RewardPool, *completions: str) -> list[float | Unscored]:
    """What the reward says of each, all asked at once."""
    sent: list[Future[Scored]] = [pool.submit(ACT, TASK, text) for text in completions]
    return [future.result(timeout=60).value for future in sent]


def wait_until(gone: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not gone() and time.monotonic() < end:
        time.sleep(0.02)
    return gone()


@pytest.mark.slow
def test_whatever_a_reward_does_short_of_ending_its_process_is_a_value_or_a_reason(pool: RewardPool) -> None:
    wanted = {
        "good": 0.5,
        "returns true": 1.0,
        "away": Unscored("the judge is away"),
        "returns nan": Unscored("returned nan; wanted a finite number or Unscored(reason)"),
        "returns inf": Unscored("returned inf; wanted a finite number or Unscored(reason)"),
        "returns none": Unscored("returned None; wanted a finite number or Unscored(reason)"),
        "returns text": Unscored("returned '1.0'; wanted a finite number or Unscored(reason)"),
        "raises \ud800": Unscored(r"raised KeyError: '\ud800'"),
        "exits": Unscored("raised SystemExit: 3"),
        "alarm": 0.5,
    }
    restarts = pool.restarts
    assert dict(zip(wanted, ask(pool, *wanted), strict=True)) == wanted
    assert pool.restarts == restarts


@pytest.mark.slow
def test_what_a_reward_prints_or_reads_never_reaches_the_channel(
    make: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ask(make(), "prints", "good") == [0.0, 1.0]
    out, err, end = "", "", time.monotonic() + 60
    while err.count('{"value": 0.0') < 2 and time.monotonic() < end:  # another thread passes the lines on
        more = capfd.readouterr()
        out, err = out + more.out, err + more.err
    assert (out, err.count('{"value": 0.0')) == ("", 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "reason", "cause"),
    [
        ("hangs", "took longer than 2 s and was stopped", "timeout"),
        ("hangs_in_c", "took longer than 2 s and was stopped", "timeout"),
        ("crashes", "crashed its process (SIGSEGV)", "infrastructure"),
        ("vanishes", "ended its process (exit code 3)", "infrastructure"),
        ("leaks 4000", "needed more than the 2048 MiB of memory that its process may use", "reward"),
    ],
)
def test_a_killed_reward_loses_one_reward_only(pool: RewardPool, act: str, reason: str, cause: str) -> None:
    restarts = pool.restarts
    (before,) = ask(pool, "pid")
    first = ask(pool, *["good"] * 200)  # so quick that many are sent ahead from now on
    values = ask(pool, *["good"] * 20, act, *["good"] * 20, "pid")
    assert first == [0.5] * 200
    assert values[20] == Unscored(reason, cause)
    assert values[:20] + values[21:41] == [0.5] * 40
    assert pool.restarts == restarts + 1
    assert values[41] != before
    assert not runs(int(before))


@pytest.mark.slow
def test_a_reward_that_forks_and_returns_twice_gives_no_other_call_its_answer(make: Make) -> None:
    pool = make({"use": ACT, "args": {"value": 1.0}})
    ask(pool, *["good"] * 100)  # so quick that many are sent ahead from now on
    acts = [*["good"] * 3, *["forks", "good"] * 10]
    assert ask(pool, *acts) == [0.5 if act == "forks" else 1.0 for act in acts]
    assert pool.restarts == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "no JSON",
        "[" * 100_000,
        '{"value": 0.0, "seconds": 0.0}',
        '{"number": 0, "value": 0.0, "seconds": 0.0}',
        '{"number": NUMBER, "value": "1.0", "seconds": 0.0}',
        '{"number": NUMBER, "value": NaN, "seconds": 0.0}',
        '{"number": NUMBER}',
    ],
)
def test_an_answer_without_its_calls_number_or_form_scores_no_call(pool: RewardPool, line: str) -> None:
    restarts = pool.restarts
    (before,) = ask(pool, "pid")
    number = next(pool._numbers) + 1
    values = ask(pool, f"says {line.replace('NUMBER', str(number))}", "pid")
    assert isinstance(values[0], Unscored)
    assert values[0].reason.startswith("answered with something that is no answer to this call: ")
    assert len(values[0].reason) < 300
    assert values[1] != before
    assert pool.restarts == restarts + 1


@pytest.mark.slow
def test_memory_that_rewards_leak_little_by_little_is_given_back_by_a_new_process(make: Make) -> None:
    pool = make(memory_mb=300)
    values = ask(pool, *["leaks 50"] * 12)
    assert values.count(1.0) >= 10
    assert {v.reason for v in values if isinstance(v, Unscored)} == {
        "needed more than the 300 MiB of memory that its process may use"
    }
    assert pool.restarts >= 1


@pytest.mark.slow
def test_the_deadline_is_for_each_call_not_for_those_waiting(pool: RewardPool) -> None:
    ask(pool, *["good"] * 100)
    assert ask(pool, *["naps 0.5"] * 6) == [0.5] * 6


@pytest.mark.slow
def test_calls_larger_than_any_pipe_arrive_whole(make: Make) -> None:
    sizes = [3_000_000, 1, 2_000_000, 0]
    pool = make()  # with a deadline that a busy machine meets
    ask(pool, *["good"] * 100)
    assert ask(pool, *[f"length {'é' * size}" for size in sizes]) == [float(size) for size in sizes]


@pytest.mark.slow
def test_a_large_call_to_a_child_that_hangs_ends_at_its_deadline(pool: RewardPool) -> None:
    ask(pool, *["good"] * 100)
    hung, large = (pool.submit(ACT, TASK, text) for text in ("hangs", f"length {'x' * 3_000_000}"))
    assert hung.result(timeout=60).value == Unscored(
        "took longer than 2 s and was stopped", UnscoredCause.TIMEOUT
    )
    assert large.result(timeout=60).seconds < 60


@pytest.mark.slow
@pytest.mark.parametrize("act", ["hangs_with_child", "hangs_with_detached"])
def test_what_a_reward_started_is_killed_with_it(pool: RewardPool, tmp_path: Path, act: str) -> None:
    note = tmp_path / "pid"
    (value,) = ask(pool, f"{act} {note}")
    assert isinstance(value, Unscored)
    assert wait_until(lambda: not runs(int(note.read_text())))


@pytest.mark.slow
def test_what_a_reward_started_in_a_session_of_its_own_ends_when_the_pool_closes(
    make: Make, tmp_path: Path
) -> None:
    note, pool = tmp_path / "pid", make(deadline_s=600)
    pool.submit(ACT, TASK, f"hangs_with_detached {note}")
    assert wait_until(lambda: note.is_file() and bool(note.read_text()))
    started = int(note.read_text())
    assert runs(started)
    pool.close()
    assert wait_until(lambda: not runs(started))


@pytest.mark.slow
def test_two_children_share_the_calls(make: Make) -> None:
    with children_of(CHILD) as started:
        pool = make(processes=2)
    assert len(started) == 2
    slow = pool.submit(ACT, TASK, "naps 20")
    assert ask(pool, *["good"] * 10) == [1.0] * 10
    assert not slow.done()


@pytest.mark.slow
def test_close_does_not_wait_for_a_reward_that_hangs(make: Make) -> None:
    with children_of(CHILD) as started:
        pool = make()
    [pid] = started
    hung, waiting = (pool.submit(ACT, TASK, text) for text in ("hangs", "good"))
    time.sleep(0.2)
    pool.close()
    for future in (hung, waiting):
        with pytest.raises(RftError, match="closed"):
            future.result(timeout=20)
    with pytest.raises(RftError, match="closed"):
        pool.submit(ACT, TASK, "good")
    assert not runs(pid)
    pool.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("component", "error", "match"),
    [
        ({"use": "exact_answr", "args": {}}, UnknownComponentError, "did you mean 'exact_answer'"),
        ({"use": "tests.explorers.toys:Missing", "args": {}}, UnknownComponentError, "has no 'Missing'"),
        (
            {"use": "tests.explorers.toys:Act", "args": {"vlaue": 1}},
            RecipeError,
            "reward 'tests.explorers.toys:Act' cannot be built.*vlaue",
        ),
        (
            {"use": "tests.explorers.toys:Unbuildable", "args": {"how": "raise"}},
            RecipeError,
            "no model at hand",
        ),
        (
            {"use": "tests.explorers.toys:Unbuildable", "args": {"how": "exit"}},
            RftError,
            "did not start.*exit code 5",
        ),
    ],
)
def test_a_reward_that_cannot_be_built_is_an_error_at_the_start(
    make: Make, component: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        make(component, processes=2)


@pytest.mark.slow
def test_a_child_that_cannot_be_started_again_is_an_error_not_a_reason(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make()
    monkeypatch.setenv("RFT_TOY_REWARD", "away")
    assert ask(pool, "vanishes") == [
        Unscored("ended its process (exit code 3)", UnscoredCause.INFRASTRUCTURE)
    ]
    with pytest.raises(RecipeError, match="the model of the reward is away"):
        ask(pool, "good")


_OWNER = """
import time
import psutil
from explorers.rewards.reward_pool import RewardPool
from rft_data.core.rows import Task
act = {"use": "tests.explorers.toys:Act", "args": {}}
pool = RewardPool([act], processes=2, deadline_s=600, memory_bytes=2 << 30)
pool.submit(act["use"], Task("t", ()), "hangs_in_c")
time.sleep(0.5)
print(*[child.pid for child in psutil.Process().children()], flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a process may outlive its parent elsewhere")
def test_children_end_with_their_owner_even_in_the_middle_of_a_call() -> None:
    path = os.pathsep.join(sys.path)
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    pids = [int(word) for word in owner.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(runs, pids))
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    assert wait_until(lambda: not any(map(runs, pids)))
