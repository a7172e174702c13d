"""`rft data run` with task operators: normalised, decontaminated, judged by what earlier runs stored."""

import json
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.core.rows import Task
from rft_data.recipe import load_recipe
from rft_data.run.curate import curate, report_text
from rft_data.run.task_setup import clean_tasks
from tests.gsm8k import FOLDER, SAMPLE, needs_full

ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "recipes" / "task_curation.yaml"


def recipe(folder: Path, root: Path, *overrides: str):
    paths = [
        f"buffer.uri={folder}/buffer",
        f"tasks.0.source.path={root}/test.jsonl",
        f"rollouts.0.source.path={root}/example_model_solutions.jsonl",
    ]
    return load_recipe(RECIPE, [*paths, *overrides])


def by_operator(report: dict) -> dict[str, dict]:
    return {op["operator"]: op for op in report["operators"]}


@pytest.mark.slow
def test_the_second_run_judges_tasks_by_the_rollouts_of_the_first(tmp_path: Path):
    overrides = [
        "tasks.0.heldout=0",
        "task_ops=[{task_normalization_mapper: {}}, {task_pass_rate_filter: {min_rollouts: 2}}]",
    ]
    written = (SAMPLE / "example_model_solutions.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in written[:3]]
    # the prompts need normalising, so that a task's id is not the one it was read with
    tasks = [{"question": f"{line['question']} \n", "answer": line["ground_truth"]} for line in lines]
    lines[0]["6b_verification"] = lines[0]["6b_finetuning"]
    rollouts = [{**line, "question": line["question"].strip()} for line in lines]
    for name, rows in (("test", tasks), ("example_model_solutions", rollouts)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    first = curate(recipe(tmp_path, tmp_path, *overrides))
    assert (first["tasks_kept"], first["rollouts"][0]["stored"]) == (3, 6)
    second = curate(recipe(tmp_path, tmp_path, *overrides))
    dropped = by_operator(second)["task_pass_rate_filter"]["dropped"]
    assert [lost["reason"] for lost in dropped] == ["solved: pass rate 1 of 2 rollouts"]
    assert (second["tasks_kept"], second["tasks_new"]) == (2, 0)
    with Buffer(tmp_path / "buffer") as buffer:
        assert dropped[0]["task_id"] in {task.task_id for task in buffer.tasks()}


@pytest.mark.slow
def test_difficulty_and_priority_reach_the_stored_tasks(tmp_path: Path):
    curate(recipe(tmp_path, SAMPLE, "tasks.0.heldout=0", "task_ops=[]"))
    operators = [
        {"task_difficulty_mapper": {}},
        {"task_priority_mapper": {"weights": {"rollouts": -1.0, "difficulty": 0.1}}},
    ]
    read = recipe(tmp_path, SAMPLE).model_copy(update={"task_ops": operators})
    with Buffer(tmp_path / "buffer") as buffer:
        tasks = buffer.tasks()
        kept, _ = clean_tasks(tasks, read, buffer)
    assert {task.key for task in kept} == {task.key for task in tasks}
    assert kept[0].messages[0]["content"] == "How many?", "the one without rollouts comes first"
    assert all(task.difficulty is not None and 0 < task.difficulty < 1 for task in kept)
    nobody, _ = clean_tasks(tasks, read)
    assert [task.difficulty for task in nobody] == [None] * len(tasks), "without a buffer nothing is known"


@pytest.mark.slow
def test_contamination_and_tasksets_are_reported(tmp_path: Path):
    words = " ".join(f"word{n}" for n in range(20))
    (tmp_path / "train.jsonl").write_text(
        "".join(json.dumps({"question": q, "answer": "1"}) + "\n" for q in (f"Now {words}", "Something else"))
    )
    # normalising changes its id, and the reason must name the one it is stored under
    (tmp_path / "test.jsonl").write_text(json.dumps({"question": f"{words} ", "answer": "1"}) + "\n")
    text = f"""
recipe: 1
name: clean
mode: data
buffer: {{uri: {tmp_path}/buffer}}
tasks:
  - {{name: train, source: {{use: jsonl, path: {tmp_path}/train.jsonl}}}}
  - {{name: eval, source: {{use: jsonl, path: {tmp_path}/test.jsonl}}, heldout: 1.0}}
task_ops:
  - task_normalization_mapper: {{}}
  - task_decontamination_filter: {{}}
"""
    (tmp_path / "recipe.yaml").write_text(text)
    report = curate(load_recipe(tmp_path / "recipe.yaml", []))
    with Buffer(tmp_path / "buffer", read_only=True) as buffer:
        [held_out] = buffer.tasks("heldout")
    [hit] = report["contaminated"]
    assert hit["taskset"] == "train"
    assert hit["reason"].endswith(f"with evaluation task eval/{held_out.task_id}")
    assert report["tasksets"] == {
        "train": {
            "read": 2,
            "kept": 1,
            "train": 1,
            "heldout": 0,
            "lost": {"task_decontamination_filter": 1},
        },
        "eval": {"read": 1, "kept": 1, "train": 0, "heldout": 1, "lost": {}},
    }
    printed = report_text(report)
    assert f"contaminated: {hit['task_id']} shares the 13-gram" in printed
    assert "taskset eval" in printed


def test_edits_that_make_two_tasks_the_same_leave_one(tmp_path: Path):
    prompts = ["Why?", "Why? ", "Who?"]
    tasks = [Task("t", ({"role": "user", "content": text},), "1") for text in prompts]
    read = recipe(tmp_path, SAMPLE, "task_ops=[{task_normalization_mapper: {}}]")
    kept, [report] = clean_tasks(tasks, read)
    assert [task.messages[0]["content"] for task in kept] == ["Why?", "Who?"]
    assert (report["rows_in"], report["rows_out"]) == (3, 3)


@pytest.mark.slow
@needs_full
def test_real_questions_are_curated_whole(tmp_path: Path):
    report = curate(recipe(tmp_path, FOLDER, "rollouts=[]"))
    assert report["tasks_read"] == 1319
    lost = sum(len(op["dropped"]) + len(op["quarantined"]) for op in report["operators"])
    assert report["tasks_kept"] == 1319 - lost
    counts = report["tasksets"]["gsm8k-test"]
    assert counts["train"] + counts["heldout"] == report["tasks_kept"]
    assert sum(counts["lost"].values()) == lost < 40
