import json
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import MissingFileError, RowError
from rft_data.recipe import load_recipe
from rft_data.run.curate import curate, report_text
from tests.gsm8k import FOLDER, SAMPLE, needs_full

ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "recipes" / "gsm8k_data.yaml"


def run(folder: Path, root: Path, *overrides: str) -> dict:
    paths = [
        f"buffer.uri={folder}/buffer",
        f"tasks.0.source.path={root}/test.jsonl",
        f"rollouts.0.source.path={root}/example_model_solutions.jsonl",
    ]
    return curate(load_recipe(RECIPE, [*paths, *overrides]))


@pytest.fixture(scope="module")
def curated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """The shipped sample, curated once: the folder, and the report."""
    folder = tmp_path_factory.mktemp("curated")
    return folder, run(folder, SAMPLE)


@pytest.mark.slow
def test_shipped_sample_is_cleaned_stored_and_scored(curated: tuple[Path, dict]) -> None:
    folder, report = curated
    assert (report["tasks_read"], report["tasks_repeated"], report["tasks_kept"]) == (26, 1, 24)
    assert [(op["operator"], op["rows_in"], op["rows_out"]) for op in report["operators"]] == [
        ("text_length_filter", 25, 24),
        ("document_deduplicator", 24, 24),
        ("document_minhash_deduplicator", 24, 24),
    ]
    [rollouts] = report["rollouts"]
    assert (rollouts["agree"], rollouts["disagree"], rollouts["stored"]) == (48, 0, 48)
    with Buffer(folder / "buffer") as buffer:
        tasks = {task.task_id: task for task in buffer.tasks()}
        rows = buffer.read("experiences").to_pylist()
    assert all(row["task_id"] in tasks for row in rows), "an experience points to no task"
    assert Counter(row["reward"] for row in rows) == {1.0: 26, 0.0: 22}
    assert json.loads(Path(report["report"]).read_text()) == report
    assert "agrees with the file's own labels on 48 of 48 (100.00 %)" in report_text(report)


@pytest.mark.slow
def test_a_second_run_stores_nothing_twice(curated: tuple[Path, dict], tmp_path: Path) -> None:
    folder, first = curated
    shutil.copytree(folder / "buffer", tmp_path / "buffer")
    again = run(tmp_path, SAMPLE)
    assert (again["tasks_new"], again["rollouts"][0]["stored"]) == (0, 0)
    assert again["buffer_rows"] == first["buffer_rows"]
    reweighted = run(tmp_path, SAMPLE, "reward.0.weight=2.0")
    assert reweighted["rollouts"][0]["stored"] == 48


def sample(folder: Path, tasks: list[dict], rollouts: list[dict]) -> Path:
    for name, rows in (("test", tasks), ("example_model_solutions", rollouts)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def solutions(question: str, one: str, other: str, label: bool = True) -> dict:
    return {
        "question": question,
        "6b_finetuning": {"solution": one, "is_correct": label},
        "6b_verification": {"solution": other, "is_correct": not label},
    }


LONG = "How many apples are in {} baskets of three apples each?"


@pytest.mark.slow
def test_several_lines_of_one_question_and_unknown_questions(tmp_path: Path) -> None:
    tasks = [{"question": LONG.format(2), "answer": "#### 6"}]
    rollouts = [
        solutions(LONG.format(2), "A: 6", "A: 5"),
        solutions(LONG.format(2), "A: 7", "A: 6.0", label=True),
        solutions("Who knows?", "A: 1", "A: 2"),
    ]
    folder = sample(tmp_path, tasks, rollouts)
    report = run(tmp_path, folder)
    [scored] = report["rollouts"]
    assert (scored["stored"], scored["no_task"], scored["agree"], scored["disagree"]) == (4, 2, 2, 2)
    second = f"{folder}/example_model_solutions.jsonl:2"
    assert [(d["place"], d["completion"], d["label"]) for d in scored["disagreements"]] == [
        (second, "6b_finetuning", True),
        (second, "6b_verification", False),
    ]
    pq.write_table(pa.Table.from_pylist(rollouts), folder / "solutions.parquet")
    parquet = {
        "use": "file",
        "path": f"{folder}/solutions.parquet",
        "where": "question like 'How%'",
        "limit": 1,
    }
    again = run(tmp_path, folder, f"rollouts.0.source={json.dumps(parquet)}", "name=other")
    assert (again["rollouts"][0]["stored"], again["rollouts"][0]["no_task"]) == (2, 0)
    with Buffer(tmp_path / "buffer") as buffer:
        ids = buffer.read("experiences").column("experience_id").to_pylist()
    assert all(d["experience_id"] in ids for d in scored["disagreements"])
    assert all(d["experience_id"] in report_text(report) for d in scored["disagreements"])


@pytest.mark.slow
def test_mapper_edits_reach_the_stored_task(tmp_path: Path) -> None:
    tasks = [{"question": LONG.format(2) + "\u3000Tell  me.", "answer": "#### 6"}]
    run(tmp_path, sample(tmp_path, tasks, []), "task_ops=[{whitespace_normalization_mapper: {}}]")
    with Buffer(tmp_path / "buffer") as buffer:
        [task] = buffer.tasks()
    assert task.messages[0]["content"] == LONG.format(2) + " Tell  me."


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", r"test\.jsonl:2: not JSON"),
        ("[1]", "wanted an object"),
        ("{}", "there is no field 'question'"),
    ],
)
def test_a_bad_line_is_named_with_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    folder = sample(tmp_path, [{"question": LONG, "answer": "1"}], [])
    with (folder / "test.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RowError, match=message):
        run(tmp_path, folder, "rollouts=[]")


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="there is no file"):
        run(tmp_path, tmp_path / "nowhere", "rollouts=[]")


@pytest.mark.heavy
@needs_full
def test_math_reward_agrees_with_the_labels_of_real_solutions(tmp_path: Path) -> None:
    report = run(tmp_path, FOLDER)
    assert (report["tasks_read"], report["tasks_kept"]) == (1319, 1319)
    [rollouts] = report["rollouts"]
    assert rollouts["scored"] + rollouts["unscored"] == 2638
    assert rollouts["agreement"] >= 0.995
