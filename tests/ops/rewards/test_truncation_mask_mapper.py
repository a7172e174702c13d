"""truncation_mask_mapper: completions that were cut off are masked, nothing else changes."""

import pyarrow as pa

from ops.runtime.pipeline import OperatorPipeline


def test_only_truncated_rows_are_masked(operator):
    table = pa.table({"finish_reason": ["stop", "length", "", "abort", None]})
    out = operator("truncation_mask_mapper").process_table(table)
    assert out["masked"].to_pylist() == [False, True, False, False, False]


def test_what_was_masked_stays_masked(operator):
    table = pa.table({"finish_reason": ["stop", "length", "stop"], "masked": [True, None, None]})
    out = operator("truncation_mask_mapper").process_table(table)
    assert out["masked"].to_pylist() == [True, True, False]
    assert out["masked"].null_count == 0


def test_masked_rows_keep_their_place_in_the_group(experiences):
    table = experiences(["g"] * 4, [0.0, 1.0, 0.0, 1.0])
    cut = pa.array(["length", "stop", "stop", "stop"])
    table = table.set_column(table.column_names.index("finish_reason"), "finish_reason", cut)
    mask, advantage = {"truncation_mask_mapper": {}}, {"grpo_advantage_mapper": {}}
    plain = OperatorPipeline([advantage], name="experience_ops").run_tasks(table)
    masked = OperatorPipeline([mask, advantage], name="experience_ops").run_tasks(table)
    assert masked.kept.tolist() == [0, 1, 2, 3]
    assert masked.table["advantage"].equals(plain.table["advantage"])
    assert masked.table["masked"].to_pylist() == [True, False, False, False]


def test_no_rows(operator):
    table = pa.table({"finish_reason": pa.array([], pa.string())})
    assert operator("truncation_mask_mapper").process_table(table)["masked"].to_pylist() == []


def test_the_mask_has_a_column_of_its_own_in_the_annotations(experiences):
    table = experiences(["g"] * 2, [0.0, 1.0])
    plain = OperatorPipeline([], name="experience_ops").run(table)
    masked = OperatorPipeline([{"truncation_mask_mapper": {}}], name="experience_ops").run(table)
    assert plain["masked"].to_pylist() == [None, None]
    assert masked["masked"].to_pylist() == [False, False]
    assert masked["stats"].to_pylist() == ["{}", "{}"]
