"""How fast operators judge, beside the same rule written plainly and beside Data-Juicer's own ways.

`python -m benchmarks.ops [--rows N] [--quick]`. Each of ours runs over N experiences of 1,000 tokens in
groups of eight: through our pipeline (`ours`: rows in, rows that stay out; `annotated`: a verdict for every
row out, as in a run), as a plain rule (`ops_plain`), through Data-Juicer's `NestedDataset.process` in this
process, and through its DefaultExecutor in another. Results of `ours` and the plain rule are compared row by
row.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.ops_children import (
    BATCH,
    executor_seconds,
    near_duplicates,
    peak_memory,
    start_up,
    write_rows,
)
from benchmarks.ops_plain import RULES
from benchmarks.report import Bar, finish
from benchmarks.rows import GROUP, RowMaker
from ops import OPERATOR_MODULES
from ops.runtime.hygiene import host_kept_quiet, registry
from ops.runtime.pipeline import OperatorPipeline

TOKENS = 1000
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "reward_range_filter": {"min_reward": 0.5},
    "down_sampling_filter": {"size": 4},
    "best_of_n_filter": {"k": 2},
    "pass_at_k_advantage_mapper": {"k": 4},
    "length_shaping_mapper": {"rule": "kimi", "weight": 0.1},
    "overlong_penalty_mapper": {"max_tokens": 800, "cache_tokens": 200},
    "reward_shaping_mapper": {"weights": {"reward": 1.0, "reward_parts/format": 0.2}, "normalize": "group"},
}
"""Arguments of operators here; the others get none."""
FIVE: list[dict[str, dict[str, Any]]] = [
    {"reward_range_filter": {"min_reward": 0.0}},
    {"text_length_filter": {"min_len": 10}},
    {"reward_variance_filter": {}},
    {"document_deduplicator": {}},
    {"grpo_advantage_mapper": {}},
]
"""The list of the comparison with Data-Juicer's executor: three of ours, two of Data-Juicer's."""


def rows(count: int) -> pa.Table:
    """Experiences; a fifth of the groups have equal rewards, a tenth of rows was cut off, 1 % not scored."""
    rng = np.random.default_rng(0)
    table = RowMaker(TOKENS).table(count)
    groups = -(-count // GROUP)
    rate = np.where(rng.random(groups) < 0.2, rng.integers(0, 2, groups), rng.random(groups))
    rewards = (rng.random(count) < np.repeat(rate, GROUP)[:count]).astype(np.float32)
    unscored = (np.arange(count) % GROUP > 0) & (rng.random(count) < 0.01)
    formats = np.where(rng.random(count) < 0.5, "0.0", "1.0")
    columns = {
        "reward": pa.array(rewards, mask=unscored),
        "reward_parts": pa.array([f'{{"format":{value}}}' for value in formats]),
        "finish_reason": pa.array(np.where(rng.random(count) < 0.1, "length", "stop")),
        "environment": pa.array([f"s{state}" for state in rng.integers(0, 3, count)]),
    }
    for name, column in columns.items():
        table = table.set_column(table.column_names.index(name), name, column)
    return table.append_column("seq", pa.array(np.arange(count)))


def shortest(act: Callable[[], Any], repeats: int) -> float:
    """Seconds of the fastest of some calls: `repeats`, and short ones for a quarter of a second."""
    times: list[float] = []
    while len(times) < repeats or sum(times) < 0.25:
        began = time.perf_counter()
        act()
        times.append(time.perf_counter() - began)
    return min(times)


def is_group_operator(name: str) -> bool:
    """Whether an operator works on whole groups."""
    return getattr(registry().modules[name], "group_key", None) is not None


def measure(name: str, table: pa.Table, repeats: int) -> dict[str, float]:
    """Seconds of one operator over `table`, by way.

    Raises: RuntimeError if the plain rule gives something else.
    """
    operators = [{name: dict(ARGUMENTS.get(name, {}))}]
    ours, plain = OperatorPipeline(operators, name="benchmark"), RULES[name]
    compare(name, ours.run_tasks(table).table, plain(table))
    return {
        "ours": shortest(lambda: ours.run_tasks(table), repeats),
        "annotated": shortest(lambda: ours.run(table), repeats),
        "plain": shortest(lambda: plain(table), repeats),
        "nested": nested_seconds(operators, table, 2),
    }


def compare(name: str, ours: pa.Table, plain: pa.Table) -> None:
    """Raises: RuntimeError unless both have the same rows, and columns within float32's precision."""
    same = ours["seq"].equals(plain["seq"])
    for column in set(plain.column_names) - {"seq"} if same else ():
        one, other = (table[column].combine_chunks() for table in (ours, plain))
        if not one.is_valid().equals(other.is_valid()):
            same = False
            break
        if pa.types.is_list(one.type) and pa.types.is_floating(one.type.value_type):
            one, other = one.flatten(), other.flatten()
        if pa.types.is_floating(one.type):
            same &= np.allclose(
                *(side.to_numpy(zero_copy_only=False) for side in (one, other)), atol=1e-4, equal_nan=True
            )
        else:
            same &= one.equals(other)
    if not same:
        raise RuntimeError(f"'{name}' and its plain rule do not give the same rows; mend one of them")


def nested_seconds(operators: list[dict[str, dict[str, Any]]], table: pa.Table, repeats: int) -> float:
    """Seconds of Data-Juicer's in-process way, tuned: no process pool."""
    from data_juicer.core.data import NestedDataset
    from datasets import Dataset
    from datasets.table import InMemoryTable

    built = []
    for [(name, args)] in (operator.items() for operator in operators):
        own = (
            {} if name in OPERATOR_MODULES else {"text_key": "completion_text", "auto_op_parallelism": False}
        )
        built.append(registry().modules[name](**own, **args))
    for op in built:
        op.num_proc = None
    dataset = NestedDataset(Dataset(InMemoryTable(table)))
    with host_kept_quiet():
        return shortest(lambda: dataset.process(built, open_monitor=False), repeats)


def pipeline_figures(table: pa.Table, path: Path, batches: int) -> dict[str, float]:
    """Milliseconds of the list FIVE over a batch of BATCH, by way."""
    ours = OperatorPipeline(FIVE, name="benchmark")
    part = table.slice(0, BATCH)
    ours.run(part)
    return {
        "ours_ms": shortest(lambda: ours.run(part), batches) * 1e3,
        "nested_ms": nested_seconds(FIVE, part, batches) * 1e3,
        "executor_ms": executor_seconds(path, {"five": FIVE}, BATCH, batches)["five"] * 1e3,
    }


def main() -> None:
    """Print the table, the bars and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--quick", action="store_true", help="fewer repeats, and the executor only once")
    args = parser.parse_args()
    repeats = 3 if args.quick else 15
    table = rows(args.rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.arrow"
        write_rows(table, path)
        names = [name for name in OPERATOR_MODULES if name in RULES]
        lists = {name: [{name: ARGUMENTS.get(name, {})}] for name in (names[:2] if args.quick else names)}
        executor = executor_seconds(path, lists, args.rows, 1 if args.quick else 3)
        figures: dict[str, Any] = {"operators": operator_table(names, table, repeats, executor)}
        figures["pipeline"] = pipeline_figures(table, path, 2 if args.quick else 8)
        figures["memory"] = peak_memory(path, FIVE)
    figures["near_dup"] = near_duplicates(*((4096, 1024) if args.quick else (100_000, 8192)))
    figures["start_up"] = start_up(FIVE)
    for part in ("pipeline", "memory", "near_dup", "start_up"):
        print(f"{part}: " + ", ".join(f"{key} {value:,.4g}" for key, value in figures[part].items()))
    names = ["py-data-juicer", "datasets", "pyarrow", "numpy"]
    finish(bars(figures), {name: importlib.metadata.version(name) for name in names}, figures)


def operator_table(
    names: list[str], table: pa.Table, repeats: int, executor: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Measure and print operator after operator; thousands of rows a second by way."""
    ways = ("ours", "annotated", "plain", "nested", "executor")
    print(f"{table.num_rows:,} rows of {TOKENS} tokens; thousand rows/s, and annotated over plain time")
    print(f"{'operator':<38}" + "".join(f"{way:>11}" for way in ways) + f"{'x plain':>9}")
    found = {}
    for name in names:
        seconds = measure(name, table, repeats) | ({"executor": executor[name]} if name in executor else {})
        rate = {way: table.num_rows / value for way, value in seconds.items()}
        cells = "".join(f"{rate[way] / 1e3:>11,.0f}" if way in rate else f"{'-':>11}" for way in ways)
        ratio = seconds["annotated"] / seconds["plain"]
        print(f"{name:<38}{cells}{ratio:>9.2f}", flush=True)
        found[name] = rate | {"x_plain": ratio, "group": float(is_group_operator(name))}
    return found


def bars(figures: Mapping[str, Any]) -> list[Bar]:
    """Bars of the figures."""
    groups = [figure for figure in figures["operators"].values() if figure["group"]]
    pipeline, memory, near_dup = (figures[part] for part in ("pipeline", "memory", "near_dup"))
    return [
        Bar("group_ops_rows_per_s", min(min(f["ours"], f["annotated"]) for f in groups), 50_000),
        Bar("slowest_group_op_vs_plain_loop", max(f["x_plain"] for f in groups), 4.0, ceiling=True),
        Bar("pipeline_vs_dj_executor", pipeline["executor_ms"] / pipeline["ours_ms"], 10),
        Bar("near_dup_store_rows_per_s", near_dup["rows_per_s"], 3_000),
        Bar("near_dup_recall", near_dup["recall"], 0.99),
        Bar("near_dup_verdict_recall", near_dup["verdict_recall_clear"], 0.99),
        Bar("peak_memory_vs_batch", memory["peak_bytes"] / memory["batch_bytes"], 3.0, ceiling=True),
    ]


if __name__ == "__main__":
    main()
