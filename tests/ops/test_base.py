"""Both ways in: Data-Juicer's batch methods call the same Arrow core.

Ray Data (runtime/test_on_ray.py) and dj-process (lance, runtime/test_equivalence.py) do so too.
"""

import pyarrow as pa
import pytest

from ops.base import ArrowMapper
from ops.runtime.hygiene import registry
from ops.runtime.pipeline import OperatorPipeline
from rft_data.core.errors import RecipeError

ROWS = [
    {"text": f"answer {i}", "group_id": f"g{i % 3}", "reward": reward, "tokens": [i, i + 1]}
    for i, reward in enumerate([0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, -2.0])
]


def test_batch_methods_of_a_row_filter_judge_like_its_core(operator):
    op = operator("reward_range_filter", min_reward=0)
    columns = pa.Table.from_pylist(ROWS).to_pydict()
    assert op.process(op.compute_stats(columns)) == [True] * 8 + [False]
    assert op.process({"reward": [None]}) == [False]


def test_batch_method_of_a_row_mapper_keeps_the_other_columns(operator):
    op = operator("fails_on_bad_text_mapper")
    out = op.process({"completion_text": ["abc"], "reward": [1.0]})
    assert out == {"completion_text": ["abc"], "reward": [1.0], "length": [3]}


def test_filter_keeps_all_rows_for_the_analyzer(operator):
    from datasets import Dataset

    dataset = Dataset.from_list(ROWS)
    op = operator("reward_variance_filter")
    assert op.run(dataset, reduce=False) is dataset
    assert op.run(dataset)["text"][:] == [row["text"] for row in ROWS if row["group_id"] != "g1"]


def test_mapper_replaces_a_column_in_its_place(operator):
    from data_juicer.core.data import NestedDataset
    from datasets import Dataset

    dataset = NestedDataset(Dataset.from_list([{"advantage": [9.0], **row} for row in ROWS]))
    out = operator("grpo_advantage_mapper", scale="none").run(dataset)
    assert out.column_names == ["advantage", "text", "group_id", "reward", "tokens"]
    assert out[0]["advantage"] == pytest.approx([-1 / 3])
    assert [row["tokens"] for row in out] == [row["tokens"] for row in ROWS]


@pytest.fixture(scope="module")
def reader():
    """A registered operator that reads stored rows; `built` on it is the last one made."""
    registry()
    from data_juicer.ops.base_op import OPERATORS, Pipeline

    @OPERATORS.register_module("needs_store_mapper")
    class _NeedsStore(ArrowMapper, Pipeline):
        needs_store = True
        whole_batch = True
        built = None

        def __init__(self, buffer: str | None = None, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.buffer = buffer
            type(self).built = self

    return _NeedsStore


def test_pipeline_gives_an_operator_the_runs_buffer_unless_it_names_its_own(reader):
    store = object()
    OperatorPipeline([{"needs_store_mapper": {}}], name="ops", allow_unsafe=True, store=store)
    assert reader.built.store is store
    own = [{"needs_store_mapper": {"buffer": "some/where"}}]
    OperatorPipeline(own, name="ops", allow_unsafe=True, store=store)
    assert reader.built.store is None
    message = r"'needs_store_mapper' of 'ops' reads stored rows .* set its argument 'buffer'"
    with pytest.raises(RecipeError, match=message):
        OperatorPipeline([{"needs_store_mapper": {}}], name="ops", allow_unsafe=True)


def test_operators_that_must_see_groups_or_batches_whole_tell_data_juicer(operator, reader):
    assert not operator("reward_range_filter").is_global_operation
    assert operator("reward_variance_filter").is_global_operation
    assert reader().is_global_operation
