"""The operators' benchmark: the same rules on both sides, and bars made of what it measured."""

import pyarrow as pa
import pytest

from benchmarks import ops as benchmark
from benchmarks import ops_near_dup as near_dup
from benchmarks.ops_children import executor_seconds, peak_memory, start_up, write_rows
from benchmarks.ops_plain import RULES
from ops import OPERATOR_MODULES
from ops.runtime.pipeline import OperatorPipeline


@pytest.fixture(scope="module")
def rows():
    return benchmark.rows(4096)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RULES.keys() & OPERATOR_MODULES.keys()))
def test_plain_rule_gives_what_the_operator_gives(rows, name):
    operators = [{name: dict(benchmark.ARGUMENTS.get(name, {}))}]
    ours = OperatorPipeline(operators, name="benchmark").run_tasks(rows).table
    benchmark.compare(name, ours, RULES[name](rows))
    if name.endswith("filter"):
        assert 0 < ours.num_rows < rows.num_rows


@pytest.mark.slow
def test_rules_that_differ_are_told_apart(rows):
    with pytest.raises(RuntimeError, match="'x' and its plain rule"):
        benchmark.compare("x", rows, rows.slice(1))
    other = rows.set_column(rows.column_names.index("reward"), "reward", pa.array([7.0] * 4096, pa.float32()))
    with pytest.raises(RuntimeError, match="'x' and its plain rule"):
        benchmark.compare("x", rows, other)


def test_every_group_operator_on_rewards_is_measured():
    groups = {name for name in OPERATOR_MODULES if benchmark.is_group_operator(name)}
    on_texts = {name for name in groups if name.startswith("rollout_") or "diversity" in name}
    assert groups - on_texts <= RULES.keys()


def test_bars_are_the_slowest_and_the_worst():
    operators = {
        "slow": {"ours": 60_000.0, "annotated": 40_000.0, "x_plain": 1.5, "group": 1.0},
        "fast": {"ours": 90_000.0, "annotated": 80_000.0, "x_plain": 3.8, "group": 1.0},
        "of_rows": {"ours": 10.0, "annotated": 10.0, "x_plain": 9.0, "group": 0.0},
    }
    figures = {
        "operators": operators,
        "pipeline": {"ours_ms": 2.0, "executor_ms": 30.0},
        "near_dup": {"rows_per_s": 900.0, "recall": 0.98, "verdict_recall_clear": 1.0},
        "memory": {"peak_bytes": 50, "batch_bytes": 20},
    }
    found = {bar.name: (bar.value, bar.holds) for bar in benchmark.bars(figures)}
    assert found == {
        "group_ops_rows_per_s": (40_000.0, False),
        "slowest_group_op_vs_plain_loop": (3.8, True),
        "pipeline_vs_dj_executor": (15.0, True),
        "near_dup_store_rows_per_s": (900.0, False),
        "near_dup_recall": (0.98, False),
        "near_dup_verdict_recall": (1.0, True),
        "peak_memory_vs_batch": (2.5, True),
    }


@pytest.mark.slow
def test_near_duplicates_are_counted_against_the_exact_rule():
    figures = near_dup.measure(stored=1024, rows=512)
    assert figures["recall"] >= 0.99
    assert figures["verdict_recall_clear"] >= 0.99
    assert 0.8 < figures["verdict_recall_all"] < 1  # the estimate decides: at the threshold half are found


@pytest.mark.heavy
def test_child_processes_answer(rows, tmp_path):
    path = tmp_path / "rows.arrow"
    write_rows(rows.slice(0, 64), path)
    assert executor_seconds(path, {"five": benchmark.FIVE}, 32, 2)["five"] > 0
    assert peak_memory(path, benchmark.FIVE)["batch_bytes"] > 64 * 9 * benchmark.TOKENS
    assert start_up(benchmark.FIVE).keys() == {
        "import_adapter_s",
        "import_data_juicer_s",
        "build_pipeline_ms",
    }
