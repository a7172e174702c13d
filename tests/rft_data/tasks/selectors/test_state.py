"""Every selector: what is saved decides the next choices, whatever happened before."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rft_data.core.errors import ResumeError
from rft_data.tasks.selectors import SELECTORS, make_selector
from tests.rft_data.tasks.selectors.pool import ARGUMENTS, make_task, make_tasks, outcome

REWARDS = st.sampled_from([0.0, 0.25, 1.0, None])
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("play"), st.integers(1, 30), st.lists(REWARDS, min_size=1, max_size=5)),
        st.tuples(st.just("fail"), st.integers(1, 3), st.just([])),
        st.tuples(st.just("retire"), st.integers(0, 90), st.just([])),
        st.tuples(st.just("revive"), st.integers(0, 90), st.just([])),
        st.tuples(st.just("add"), st.integers(1, 4), st.just([])),
    ),
    max_size=12,
)


def first_tasks():
    return [*make_tasks(3, 20), *make_tasks(2, 15, taskset="b")]


def happen(selector, events, tasks) -> None:
    """Let a selector live through a run; tasks it gets are appended to `tasks`."""
    for version, (what, n, rewards) in enumerate(events):
        if what == "play":
            keys = selector.select(n)
            rolled = [np.roll(np.array(rewards, object), i).tolist() for i in range(len(keys))]
            selector.observe([outcome(k, r, version=version) for k, r in zip(keys, rolled, strict=True)])
        elif what == "fail":
            selector.observe([outcome(key, (1.0,), "failed", version) for key in selector.select(n)])
        elif what == "add":
            more = [make_task("ab"[i % 2], i % 5, 1000 + len(tasks) + i) for i in range(n)]
            selector.add(more)
            tasks += more
        else:
            first = tasks[n % len(tasks)]
            getattr(selector, what)([task.key for task in tasks if task.difficulty == first.difficulty][:n])


def go_on(selector, choices: int) -> list:
    """The next selections, with results that depend on what is selected."""
    chosen = []
    while len(chosen) < choices:
        keys = selector.select(25)
        chosen += keys
        selector.observe(
            [outcome(k, (float(k.task_id[0] < "8"), float(k.task_id[1] < "8")), version=99) for k in keys]
        )
    return chosen


def test_every_selector_is_tested() -> None:
    assert {use for use, _ in ARGUMENTS.values()} == set(SELECTORS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ARGUMENTS)
@settings(max_examples=3)
@given(events=EVENTS)
def test_restored_selector_makes_the_same_next_thousand_choices(name: str, events) -> None:
    use, args = ARGUMENTS[name]
    tasks = first_tasks()
    straight = make_selector(use, args, tasks, 7)
    happen(straight, events, tasks)
    saved = json.loads(json.dumps(straight.state_dict(), allow_nan=False))
    given_again = tasks if use == "sequential" else tasks[::-1]
    restored = make_selector(use, args, given_again, 7)
    restored.load_state_dict(saved)
    assert json.dumps(restored.state_dict()) == json.dumps(saved)
    assume(straight.in_play)  # the events may have retired every task
    assert go_on(straight, 1000) == go_on(restored, 1000)
    assert json.dumps(restored.metrics()) == json.dumps(straight.metrics())


@pytest.mark.parametrize("name", ARGUMENTS)
def test_tasks_that_come_back_later_find_their_place_again(name: str) -> None:
    use, args = ARGUMENTS[name]
    tasks = first_tasks()
    straight = make_selector(use, args, tasks, 7)
    happen(straight, [("play", 20, [1.0, 0.0]), ("add", 4, []), ("play", 30, [0.0])], tasks)
    saved = json.loads(json.dumps(straight.state_dict()))
    restored = make_selector(use, args, first_tasks(), 7)
    restored.add(tasks[len(first_tasks()) :])
    restored.load_state_dict(saved)
    assert go_on(straight, 200) == go_on(restored, 200)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_state_loads_when_tasks_are_gone_and_others_are_new(name: str) -> None:
    use, args = ARGUMENTS[name]
    selector = make_selector(use, args, first_tasks(), 7)
    go_on(selector, 100)
    saved = json.loads(json.dumps(selector.state_dict()))
    others = [*first_tasks()[10:], *make_tasks(3, 5, first=500)]
    restored = make_selector(use, args, others, 7)
    restored.load_state_dict(saved)
    assert set(go_on(restored, 300)) <= {task.key for task in others}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_state_of_another_selector_is_refused(name: str) -> None:
    use, args = ARGUMENTS[name]
    with pytest.raises(ResumeError, match="saved state is"):
        make_selector(use, args, first_tasks(), 7).load_state_dict({"selector": "other"})


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ARGUMENTS if name not in ("mixture", "staged")])
def test_state_takes_at_most_200_bytes_per_visited_task(name: str) -> None:
    use, args = ARGUMENTS[name]
    tasks = make_tasks(4, 500)
    selector = make_selector(use, args, tasks, 7)
    before = len(json.dumps(selector.state_dict()))
    selector.observe([outcome(task.key, (1.0, 0.0), version=1) for task in tasks])
    fixed = 12_000  # the reliability table and the last 512 predictions
    assert len(json.dumps(selector.state_dict())) - before - fixed <= 200 * len(tasks)
