"""Every operator of ours gives the same rows and columns in our pipeline, in NestedDataset and in dj-process.

The rows are GSM8K's or the shipped sample's: solutions, those of two questions as a group of four, and the
questions as tasks.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ops import OPERATOR_MODULES
from ops.runtime.hygiene import registry
from ops.runtime.pipeline import OperatorPipeline
from ops.runtime.specs import _arguments
from rft_data.buffer import Buffer
from rft_data.core import codec, schema
from rft_data.core.rows import Experience, Feedback, Task
from rft_data.tasks.table import task_table
from tests.gsm8k import solutions
from tests.template import FORK

SHAPING = {"reward": 1.0, "reward_parts/format": 0.3, "pass_rate": -0.5}
EXAMPLES = {
    "reward_range_filter": [{"reward_range_filter": {"min_reward": 0.5}}],
    "reward_variance_filter": [{"reward_variance_filter": {}}],
    "grpo_advantage_mapper": [{"grpo_advantage_mapper": {"scale": "batch"}}],
    "invalid_reward_filter": [{"invalid_reward_filter": {}}],
    "dynamic_sampling_filter": [{"dynamic_sampling_filter": {"max_accuracy": 0.75}}],
    "truncation_mask_mapper": [{"truncation_mask_mapper": {}}],
    "overlong_penalty_mapper": [{"overlong_penalty_mapper": {"max_tokens": 60, "cache_tokens": 30}}],
    "length_shaping_mapper": [{"length_shaping_mapper": {"rule": "kimi", "weight": 0.2}}],
    "reward_shaping_mapper": [
        {"pass_rate_mapper": {}},
        {"reward_shaping_mapper": {"weights": SHAPING, "normalize": "group"}},
    ],
    "pass_rate_mapper": [{"pass_rate_mapper": {}}],
    "reward_advantage_mapper": [{"reward_advantage_mapper": {}}],
    "rloo_advantage_mapper": [{"rloo_advantage_mapper": {}}],
    "reinforce_baseline_advantage_mapper": [{"reinforce_baseline_advantage_mapper": {}}],
    "remax_advantage_mapper": [{"remax_advantage_mapper": {}}],
    "opmd_advantage_mapper": [{"opmd_advantage_mapper": {"tau": 0.5}}],
    "asymre_advantage_mapper": [{"asymre_advantage_mapper": {}}],
    "maxrl_advantage_mapper": [{"maxrl_advantage_mapper": {}}],
    "pass_at_k_advantage_mapper": [{"pass_at_k_advantage_mapper": {"k": 2}}],
    "step_wise_advantage_mapper": [{"step_wise_advantage_mapper": {}}],
    "gigpo_advantage_mapper": [{"gigpo_advantage_mapper": {}}],
    "down_sampling_filter": [{"down_sampling_filter": {"size": 2}}],
    "best_of_n_filter": [{"best_of_n_filter": {"k": 1, "min_reward": 0.5}}],
    "preference_pair_mapper": [{"preference_pair_mapper": {"pairs": "all"}}],
    "feedback_mapper": [{"feedback_mapper": {"key": "score", "into": "stats", "buffer": "BUFFER"}}],
    "format_reward_mapper": [{"format_reward_mapper": {"pattern": "A: -?[0-9]+"}}],
    "repetition_filter": [{"repetition_filter": {"n": 3, "max_share": 0.1}}],
    "rollout_near_dup_deduplicator": [{"rollout_near_dup_deduplicator": {"threshold": 0.2, "n": 2}}],
    "lancedb_write_mapper": [
        {"lancedb_write_mapper": {"uri": "FOLDER/lance", "table": "rows", "mode": "overwrite"}}
    ],
    "task_decontamination_filter": [{"task_decontamination_filter": {"n": 4}}],
    "task_difficulty_mapper": [{"task_difficulty_mapper": {}}],
    "task_normalization_mapper": [{"task_normalization_mapper": {}}],
    "task_pass_rate_filter": [{"task_pass_rate_filter": {"min_rollouts": 2}}],
    "task_priority_mapper": [
        {"task_difficulty_mapper": {}}, {"task_priority_mapper": {"weights": {"difficulty": 1.0}}},
    ],
}  # fmt: skip
"""Operator to a list that exercises it; BUFFER and FOLDER stand for places of the test."""
NEED_MODELS = {"semantic_diversity_filter", "task_semantic_deduplicator", "llm_score_mapper"}
"""Their own tests build a model or start an endpoint, and run them through `run` as well."""
KEYS = ("6b_finetuning", "6b_verification")


def questions() -> list[dict]:
    return solutions(20)


def _experience(group: int, member: int, given: dict) -> Experience:
    text = given["solution"]
    tokens = list(range(5 + len(text.split())))
    return Experience(
        experience_id=f"e{group}-{member}",
        source="rollout",
        run_id="run",
        taskset="gsm8k",
        task_id=f"t{group}",
        group_id=f"g{group}",
        member=member,
        token_ids=tokens,
        prompt_length=5,
        action_mask=[int(place >= 5) for place in tokens],
        logprobs=[-0.5 if place >= 5 else 0.0 for place in tokens],
        version_min=1,
        version_max=1,
        version_spans=((1, 5, len(tokens)),),
        completion_text=text,
        finish_reason="length" if (group + member) % 7 == 0 else "stop",
        reward=None if (group, member) == (3, 2) else float(given["is_correct"]),
        reward_parts={"format": float("A:" in text)},
        environment=f"s{member % 2}",
    )


def experience_rows() -> list[Experience]:
    rollouts = [given[key] for given in questions() for key in KEYS]
    return [_experience(n // 4, n % 4, given) for n, given in enumerate(rollouts)]


def experience_table() -> pa.Table:
    table = codec.to_table(experience_rows(), schema.EXPERIENCES)
    table = table.append_column("seq", pa.array(np.arange(table.num_rows)))
    order = np.random.default_rng(0).permutation(table.num_rows)  # groups are not neighbours
    return table.take(order).drop_columns(["created_at"])


def tasks() -> list[Task]:
    made = [
        Task(
            taskset="gsm8k",
            messages=({"role": "user", "content": given["question"]},),
            answer=given["ground_truth"],
            split="heldout" if n % 5 == 4 else "train",
        )
        for n, given in enumerate(questions())
    ]
    leaked = ({"role": "user", "content": questions()[4]["question"] + " Please think."},)
    return [*made, Task(taskset="other", messages=leaked, answer="1")]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with the tables, and a buffer with feedback about two of the experiences."""
    folder = tmp_path_factory.mktemp("equivalence")
    with Buffer(folder / "buffer") as buffer:
        assert None not in buffer.append(experience_rows()).seqs
        buffer.add_feedback([Feedback(f"e0-{n}", "me", "score", value=n / 4) for n in range(2)])
    tables = {"experiences": experience_table(), "tasks": task_table(tasks(), _record(tasks()))}
    for kind, table in tables.items():
        with (
            pa.OSFile(str(folder / f"{kind}.arrow"), "wb") as file,
            pa.ipc.new_file(file, table.schema) as out,
        ):
            out.write_table(table)
    return folder


def _record(made: list[Task]) -> pa.Table:
    """Every task was played once, two rollouts."""
    passes = [[float(sum(given[key]["is_correct"] for key in KEYS))] for given in questions()]
    return pa.table(
        {
            "taskset": ["gsm8k"] * 20,
            "task_id": [task.task_id for task in made[:20]],
            "played_age": pa.array([[0]] * 20, pa.list_(pa.int64())),
            "played_passes": pa.array(passes, pa.list_(pa.float64())),
            "played_rollouts": pa.array([[2]] * 20, pa.list_(pa.int64())),
        }
    )


def example(name: str, folder: Path) -> tuple[str, list[dict]]:
    """(table, operators)"""
    text = json.dumps(EXAMPLES[name]).replace("BUFFER", f"{folder}/buffer").replace("FOLDER", str(folder))
    return ("tasks" if name.startswith("task_") else "experiences"), json.loads(text)


def read(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def ours(name: str, folder: Path) -> pa.Table:
    kind, operators = example(name, folder)
    text_column = {"tasks": "text", "experiences": "completion_text"}[kind]
    return (
        OperatorPipeline(operators, name="ops", text_column=text_column)
        .run_tasks(read(folder / f"{kind}.arrow"))
        .table
    )


def nested(name: str, folder: Path) -> pa.Table:
    from data_juicer.core.data import NestedDataset
    from datasets import Dataset
    from datasets.table import InMemoryTable

    kind, operators = example(name, folder)
    built = [registry().modules[op](**args) for operator in operators for op, args in operator.items()]
    dataset = NestedDataset(Dataset(InMemoryTable(read(folder / f"{kind}.arrow"))))
    return dataset.process(built, open_monitor=False).with_format("arrow")[:]


def check_same(one: pa.Table, other: pa.Table) -> None:
    assert set(one.column_names) == set(other.column_names)
    for name in one.column_names:
        assert one[name].to_pylist() == other[name].to_pylist(), name
        assert one[name].type == other[name].type, name


def test_every_operator_has_an_example():
    assert OPERATOR_MODULES.keys() - NEED_MODELS <= EXAMPLES.keys()


RUN_HERE = [name for name in OPERATOR_MODULES if name in EXAMPLES]


def in_executor() -> list[str]:
    """Data-Juicer's parser knows no arguments without a default: dj-process cannot run such an operator."""
    return [name for name in RUN_HERE if not _arguments(registry().modules[name])[1]]


@pytest.mark.parametrize("name", RUN_HERE)
def test_pipeline_equals_nested_dataset(place, name):
    mine = ours(name, place)
    check_same(mine, nested(name, place))
    before = read(place / f"{example(name, place)[0]}.arrow")
    changed = mine.num_rows < before.num_rows or not mine.equals(before)
    assert mine.num_rows
    assert changed or name in ("lancedb_write_mapper", "task_normalization_mapper")


@pytest.fixture(scope="module")
def executed(place) -> Path:
    """All lists through dj-process's executor, in one process."""
    (place / "lists.json").write_text(json.dumps({name: example(name, place) for name in in_executor()}))
    script = Path(__file__).with_name("dj_executor.py")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{FORK}import runpy; runpy.run_path({str(script)!r}, run_name='__main__')",
            place,
        ],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return place


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN_HERE)
def test_pipeline_equals_data_juicers_executor(executed, name):
    if name not in in_executor():
        pytest.skip("it has an argument without a default")
    check_same(ours(name, executed), read(executed / f"{name}.out"))
