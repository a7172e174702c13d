"""The benchmark of draws measures what it says, on few tasks."""

from collections.abc import Sequence

import pytest

from benchmarks.selectors.draws import CONTENDERS, bytes_per_task, measure, numbered_tasks
from rft_data.core.rows import Task
from rft_data.tasks.selectors import SELECTORS


@pytest.fixture(scope="module")
def many_tasks() -> Sequence[Task]:
    return numbered_tasks(20_000)


def test_benchmark_covers_every_selector_but_the_one_made_of_others() -> None:
    assert {use for use, _ in CONTENDERS.values()} == set(SELECTORS) - {"staged"}


def test_numbered_tasks_have_ids_of_their_own() -> None:
    tasks = numbered_tasks(1000)
    assert len({task.key for task in tasks}) == 1000
    assert {len(task.task_id) for task in tasks} == {32}


@pytest.mark.slow
def test_measure_gives_the_bars_and_a_figure_for_every_selector(capsys) -> None:
    bars, figures = measure(2000, 2, ["hierarchical", "random"])
    assert [bar.name for bar in bars] == [
        "draw_256_of_1e6_ms",
        "observe_256_of_1e6_ms",
        "bytes_per_task",
        "state_bytes_per_visited",
    ]
    assert set(figures["selectors"]) == {"hierarchical", "random"}
    assert "softmax over all" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTENDERS)
def test_selector_holds_at_most_200_bytes_per_task(name: str, many_tasks: Sequence[Task]) -> None:
    assert bytes_per_task(*CONTENDERS[name], many_tasks) <= 200
