"""Operators on Ray: over Ray Data, and in workers. All in one file, so that they share one Ray."""

import os
from dataclasses import replace

import pyarrow as pa
import pytest

from ops.runtime import passage
from ops.runtime.hygiene import registry
from ops.runtime.limits import Limits
from ops.runtime.pipeline import OperatorPipeline
from tests.ops.runtime.test_equivalence import EXAMPLES, experience_table
from tests.ops.runtime.test_workers import pids, pipeline, slow_operators  # noqa: F401
from tests.ops.test_base import ROWS

pytestmark = pytest.mark.slow
CLEANING = [
    {"whitespace_normalization_mapper": {}},
    {"special_characters_filter": {"max_ratio": 0.45}},
    {"text_length_filter": {"max_len": 33}},
    {"document_deduplicator": {}},
    {"text_length_filter": {"min_len": 28}},
]
"""Three change or drop rows one by one, in one pass; one compares all rows, in the command's own process."""


def expected():
    """Kept texts and their advantages, computed by hand: g1 varies in no reward, row 8 is below 0."""
    kept = {"answer 0": 0.0, "answer 3": 1.0, "answer 6": 0.0, "answer 2": 1.0, "answer 5": 0.0}
    means = {"answer 0": 1 / 3, "answer 3": 1 / 3, "answer 6": 1 / 3, "answer 2": 0.5, "answer 5": 0.5}
    return {text: pytest.approx([kept[text] - means[text]], abs=1e-6) for text in kept}


@pytest.mark.heavy
def test_ray_data_runs_groups_whole(operator, ray_core):
    dataset = ray_core.data.from_arrow([pa.Table.from_pylist(ROWS[:4]), pa.Table.from_pylist(ROWS[4:])])
    for name, args in (
        ("reward_range_filter", {"min_reward": 0}),
        ("reward_variance_filter", {}),
        ("grpo_advantage_mapper", {"scale": "none"}),
    ):
        dataset = operator(name, **args).run(dataset)
    rows = dataset.take_all()
    assert {row["text"]: list(row["advantage"]) for row in rows} == expected()


def test_ray_data_gives_an_operator_on_the_whole_batch_all_rows(ray_core):
    """Blocks would each be scaled by a std of their own."""
    name = "reinforce_baseline_advantage_mapper"
    table = experience_table().select(["seq", "group_id", "reward"])
    dataset = ray_core.data.from_arrow([table.slice(0, 17), table.slice(17)])
    rows = registry().modules[name]().run(dataset).take_all()
    mine = OperatorPipeline(EXAMPLES[name], name="ops").run_tasks(table).table
    found = {row["seq"]: None if row["advantage"] is None else list(row["advantage"]) for row in rows}
    assert found == dict(zip(mine["seq"].to_pylist(), mine["advantage"].to_pylist(), strict=True))


def test_a_list_over_ray_data_keeps_and_loses_what_it_does_here(ray_core, monkeypatch):
    texts = [f"How many are {n} and {n % 7} apples" + "? " * (n % 5) + "!@#" * (n % 11) for n in range(120)]
    table = pa.table({"text": [*texts, None, *texts], "row": list(range(241))})
    ran, chained = [], passage.chained
    monkeypatch.setattr(
        passage, "chained", lambda stages, rows: ran.append(len(stages)) or chained(stages, rows)
    )
    found = {}
    for spread in (0, 2):
        run = OperatorPipeline(CLEANING, name="task_ops", text_column="text", spread=spread)
        done = run.run_tasks(table)
        run.close()
        found[spread] = ([replace(one, seconds=0) for one in done.reports], done.table)
        assert all(one.seconds > 0 for one in done.reports)
    assert found[2] == found[0]
    assert ran == [3]
    lost = [(len(one.quarantined), len(one.dropped) > 0) for one in found[0][0]]
    assert lost == [(1, False), (0, True), (0, True), (0, True), (0, True)]
    assert found[0][1].num_rows


@pytest.mark.heavy
def test_workers_on_ray_do_the_same(experiences, ray_core):
    run = pipeline([{"told_by_text_mapper": {}}], Limits(workers=1, where="ray", budget_s=2.0))
    try:
        out = run.run(experiences(["g"] * 3, [1.0] * 3))
        assert out["verdict"].to_pylist() == ["kept"] * 3
        assert set(pids(out)) != {os.getpid()}
        late = run.run(experiences(["g"] * 2, [1.0] * 2, ["hang", "b"]))
        assert late["reason"].to_pylist() == ["told_by_text_mapper: over its budget of 2 s"] * 2
    finally:
        run.close()
