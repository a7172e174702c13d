"""Operators in processes of their own: parts of a batch, budgets, deaths."""

import json
import os
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from ops.runtime.hygiene import registry
from ops.runtime.limits import Limits
from ops.runtime.pipeline import OperatorPipeline
from ops.runtime.stage import ROW
from ops.runtime.workers import make_worker, packed, unpacked
from rft_data.core.errors import OperatorError, RecipeError

pytestmark = pytest.mark.slow
BUDGET_S = 4.0
"""Enough for a batch that takes milliseconds, on any machine."""


@pytest.fixture(scope="module", autouse=True)
def slow_operators():
    """Registers the operators; the folder is on the path, which workers are given."""
    registry()
    sys.path.insert(0, str(Path(__file__).parent))
    import slow_operators

    yield slow_operators
    sys.path.remove(str(Path(__file__).parent))


def pipeline(operators, limits, **options):
    return OperatorPipeline(
        operators,
        name="experience_ops",
        allow_unsafe=True,
        limits={name: limits for [name] in operators},
        **options,
    )


@pytest.fixture(scope="module")
def told():
    """One list with two workers for several tests: starting them takes seconds."""
    run = pipeline([{"told_by_text_mapper": {}}], Limits(workers=2, budget_s=BUDGET_S))
    yield run
    run.close()


def pids(out):
    return [json.loads(text).get("pid") for text in out["stats"].to_pylist()]


@pytest.mark.heavy
def test_rows_are_shared_out_and_come_back_in_order(told, experiences):
    table = experiences(["g"] * 7, [1.0] * 7)
    out = told.run(table)
    assert out["verdict"].to_pylist() == ["kept"] * 7
    assert out["seq"].to_pylist() == table["seq"].to_pylist()
    found = pids(out)
    assert found == sorted(found, key=found.index)
    assert len(set(found)) == 2
    assert os.getpid() not in found


def test_row_that_fails_in_a_worker_is_quarantined_alone(told, experiences):
    out = told.run(experiences(["g"] * 6, [1.0] * 6, ["a", "b", "c", "d", "fail", "f"]))
    assert [v == "quarantined" for v in out["verdict"].to_pylist()] == [i == 4 for i in range(6)]
    assert out["reason"][4].as_py() == "told_by_text_mapper: KeyError: 'told to'"


def test_worker_that_dies_loses_its_part_and_is_replaced(told, experiences):
    table = experiences(["g"] * 4, [1.0] * 4, ["a", "b", "die", "d"])
    out = told.run(table)
    assert out["verdict"].to_pylist() == ["kept", "kept", "quarantined", "quarantined"]
    assert "signal SIGKILL" in out["reason"][2].as_py()
    again = told.run(experiences(["g"] * 4, [1.0] * 4))
    assert again["verdict"].to_pylist() == ["kept"] * 4
    assert pids(again)[0] == pids(out)[0]


def test_worker_over_its_budget_is_ended_and_replaced(told, experiences):
    began = time.monotonic()
    out = told.run(experiences(["g"] * 4, [1.0] * 4, ["a", "b", "c", "hang"]))
    assert time.monotonic() - began < 300  # it would hang for 600
    assert out["verdict"].to_pylist() == ["kept", "kept", "quarantined", "quarantined"]
    assert out["reason"][3].as_py() == f"told_by_text_mapper: over its budget of {BUDGET_S:g} s"
    again = told.run(experiences(["g"] * 4, [1.0] * 4))
    assert again["verdict"].to_pylist() == ["kept"] * 4
    assert pids(again)[0] == pids(out)[0]


def test_a_text_that_stalls_a_native_operator_fails_its_batch_at_the_budget(experiences):
    run = pipeline([{"clean_copyright_mapper": {}}], Limits(workers=1, budget_s=BUDGET_S))
    texts = ["fine", "/*\n" * 40_000]  # minutes of work
    assert run.run(experiences(["g"] * 2, [1.0] * 2, ["a", "b"]))["verdict"].to_pylist() == ["kept"] * 2
    out = run.run(experiences(["g"] * 2, [1.0] * 2, texts))
    run.close()
    assert set(out["reason"].to_pylist()) == {f"clean_copyright_mapper: over its budget of {BUDGET_S:g} s"}


@pytest.mark.heavy
def test_groups_stay_whole_and_a_native_selector_sees_all_rows(experiences):
    groups = [f"g{i % 5}" for i in range(40)]
    operators = [
        {"first_of_group_filter": {}},
        {"topk_specified_field_selector": {"field_key": "reward", "topk": 2}},
    ]
    table = experiences(groups, [float(i) for i in range(40)])
    limits = {"first_of_group_filter": Limits(workers=2), "topk_specified_field_selector": Limits(workers=1)}
    run = OperatorPipeline(operators, name="experience_ops", allow_unsafe=True, limits=limits)
    try:
        out = run.run(table)
    finally:
        run.close()
    plain = pipeline(operators, Limits()).run(table)
    assert out["verdict"].to_pylist() == plain["verdict"].to_pylist()
    assert out["reason"].to_pylist() == plain["reason"].to_pylist()
    assert out["verdict"].to_pylist().count("kept") == 2


def worker(name, **args):
    """What runs in a worker's process, here."""
    given = {"label": name, "module": "slow_operators", "name": name, "args": args}
    return make_worker(buffer=None, text_column="completion_text", **given)


def test_worker_raises_what_stops_a_run_and_answers_what_blames_no_row(experiences):
    rows = packed(experiences(["g"] * 3, [1.0] * 3).append_column(ROW, pa.array([5, 6, 7])))
    with pytest.raises(OperatorError, match="'breaks_contract_mapper' turned 3 rows into 2"):
        worker("breaks_contract_mapper").attempt(rows)
    answer = worker("topk_specified_field_selector", field_key="no_such_column", topk=1).attempt(rows)
    assert "no_such_column" in answer.batch_error
    answer = worker("reward_range_filter", min_reward=2).attempt(rows)
    assert (unpacked(answer.rows).num_rows, answer.dropped.keys()) == (0, {5, 6, 7})


@pytest.mark.parametrize("module", ["no_such_module", "json"])
def test_operator_a_worker_does_not_know_is_named(module):
    message = f"'no_such_mapper' is defined in '{module}', which its workers cannot import"
    with pytest.raises(OperatorError, match=message):
        make_worker(buffer=None, label="x", module=module, name="no_such_mapper", args={}, text_column="text")


def test_operator_on_the_runs_buffer_gets_no_workers(slow_operators, monkeypatch):
    monkeypatch.setattr(slow_operators.ToldByText, "needs_store", True)
    with pytest.raises(RecipeError, match="its workers cannot share the run's; set its argument 'buffer'"):
        pipeline([{"told_by_text_mapper": {}}], Limits(workers=1), store=object())


def test_packed_rows_come_back_the_same(experiences):
    table = experiences(["g", "h"], [None, 1.0])
    assert unpacked(packed(table.slice(1))).equals(table.slice(1))


@pytest.mark.heavy
def test_operator_of_ones_own_runs_in_workers_from_its_file(experiences):
    path = f"{Path(__file__).parent / 'own_operators.py'}:PidMapper"
    run = pipeline([{path: {}}], Limits(workers=1))
    try:
        [pid] = pids(run.run(experiences(["g"], [1.0])))
    finally:
        run.close()
    assert pid != os.getpid()
