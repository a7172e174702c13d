"""Recipes that `rft recipe new` writes are valid, commented, and about the data they were written for."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from explorers.rewards.registry import REWARDS, make_reward
from rft_data.buffer import Buffer
from rft_data.core.errors import MissingFileError, RecipeError
from rft_data.recipe.kinds import with_model
from rft_data.recipe.load import check_recipe, load_recipe
from rft_data.recipe.new import Goal, Wanted, write_recipe
from rft_data.run.build import taskset_tasks
from rft_data.run.imports import import_sources
from rft_data.run.stage_rows import require_stage_rows
from tests.rft_data.cli.test_cli import ROOT, rft

PAIR = '{"prompt": "1+1?", "chosen": "2", "rejected": "3"}\n'


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "my data.jsonl"
    path.write_text('{"question": "1+1?", "answer": "2", "level": 3}\n')
    return path


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return str(tmp_path / "model")


@pytest.mark.slow
@pytest.mark.parametrize("goal", list(Goal))
def test_every_goal_gives_a_valid_commented_recipe(
    goal: Goal, data: Path, model: str, tmp_path: Path
) -> None:
    path = tmp_path / f"my {goal}.yaml"
    if goal in (Goal.SFT, Goal.DPO):
        data.write_text('{"prompt": "1+1?", "completion": "2"}\n' if goal is Goal.SFT else PAIR)
    write_recipe(Wanted(goal, str(data), model), path)
    text = path.read_text()
    assert check_recipe(path).name == f"my-{goal}"
    assert "__" not in text
    assert text.count("#") > 8
    assert f"{path.name}\n" in text
    assert (tmp_path / "recipe.schema.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("goal", [Goal.GRPO, Goal.EVAL])
@pytest.mark.parametrize(
    ("config", "lengths"),
    [
        ('{"max_position_embeddings": 600}', "600 300"),
        ('{"n_positions": 9000}', "2048 1024"),
        ("{}", "2048 1024"),
    ],
)
def test_the_lengths_fit_into_the_model(
    goal: Goal, config: str, lengths: str, data: Path, model: str, tmp_path: Path
) -> None:
    Path(model, "config.json").write_text(config)
    write_recipe(Wanted(goal, str(data), model), tmp_path / "a.yaml")
    explorer = check_recipe(tmp_path / "a.yaml").explorer  # type: ignore[attr-defined]
    assert f"{explorer.engine.max_model_len} {explorer.max_tokens}" == lengths


@pytest.mark.slow
def test_columns_are_named_and_the_reward_fits_the_answers(data: Path, tmp_path: Path) -> None:
    write_recipe(Wanted(Goal.GRPO, str(data), "tiny"), tmp_path / "a.yaml")
    text = (tmp_path / "a.yaml").read_text()
    assert "# columns: question, answer, level\n" in text
    assert "# prompt and answer are recognised: gsm8k" in text
    assert f"source: {{use: file, path: {json.dumps(str(data))}}}" in text
    assert "- {use: math_verify}" in text
    assert "model: {build: {use: tiny_qwen2, max_position_embeddings: 2048}}" in text
    data.write_text('{"task": "Which?", "choice": "C"}\n')
    with pytest.raises(
        RecipeError, match="its columns are task, choice; say which is the prompt with --prompt"
    ):
        write_recipe(Wanted(Goal.GRPO, str(data), "tiny"), tmp_path / "b.yaml")
    write_recipe(Wanted(Goal.EVAL, str(data), "model", "task", "choice"), tmp_path / "b.yaml")
    assert "- {use: multiple_choice}" in (tmp_path / "b.yaml").read_text()
    write_recipe(Wanted(Goal.GRPO, "reasoning_gym:chain_sum", "tiny"), tmp_path / "c.yaml")
    assert check_recipe(tmp_path / "c.yaml").mode == "online"


SENTENCE = "It was built for a world's fair and stayed because it carried radio."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answers", "reward"),
    [
        (["2", "-3.5", "1,000"], "math_verify"),
        (
            ["12 apples", "$5", r"\frac{1}{2}", "x^2+1", r"$\sqrt{2}$", r"3\text{ cm}", "(1, 2]"],
            "math_verify",
        ),
        (["It is\n#### 2", r"So we get \boxed{\frac12}."], "math_verify"),
        (["A", "C"], "multiple_choice"),
        (["A", "12"], "math_verify"),
        (["Paris", "No", "12 May 1990", "2"], "regex"),
        (["The capital is named\n#### Paris"], "exact_answer"),
        (["2", SENTENCE], '"./my_reward.py:score"'),
    ],
)
def test_the_reward_is_one_that_can_judge_all_the_answers(
    answers: list[str], reward: str, data: Path, tmp_path: Path
) -> None:
    rows = ({"ask": f"{n}?", "known": answer} for n, answer in enumerate(answers))
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_recipe(Wanted(Goal.GRPO, str(data), "tiny", "ask", "known"), tmp_path / "a.yaml")
    text = (tmp_path / "a.yaml").read_text()
    assert f"- {{use: {reward}" in text
    assert ("# take a judge in its place: {use: llm_judge" in text) == ("my_reward" in reward)
    assert (tmp_path / "my_reward.py").exists() == ("my_reward" in reward)
    recipe = check_recipe(tmp_path / "a.yaml")
    [component] = recipe.explorer.reward  # type: ignore[attr-defined]
    if component.use in REWARDS:  # it takes each answer for right, and another text for wrong
        judge = make_reward(component.use, component.args)
        for task in taskset_tasks(recipe.tasks[0]):  # type: ignore[attr-defined]
            assert judge(task, f"The answer is {task.answer}\n#### {task.answer}") == 1.0
            assert judge(task, "It is 7919, or Oslo") == 0.0


def test_a_column_without_answers_is_refused(data: Path, tmp_path: Path) -> None:
    data.write_text('{"ask": "1+1?", "known": null}\n')
    with pytest.raises(RecipeError, match="column 'known' is empty in the first 1 rows"):
        write_recipe(Wanted(Goal.GRPO, str(data), "tiny", "ask", "known"), tmp_path / "a.yaml")


@pytest.mark.slow
def test_a_table_of_any_kind_will_do(tmp_path: Path) -> None:
    rows = [{"problem": "1+1?", "solution": r"It is \boxed{2}."}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    write_recipe(Wanted(Goal.GRPO, str(tmp_path / "a.parquet"), "tiny"), tmp_path / "a.yaml")
    assert "recognised: problem-solution" in (tmp_path / "a.yaml").read_text()
    (tmp_path / "b.csv").write_text("prompt,ground_truth\nWhich?,B\n")
    write_recipe(Wanted(Goal.GRPO, str(tmp_path / "b.csv"), "tiny"), tmp_path / "b.yaml")
    text = (tmp_path / "b.yaml").read_text()
    assert "    prompt: prompt\n    answer: ground_truth\n" in text
    assert "- {use: multiple_choice}" in text
    for name in ("a", "b"):
        [section] = check_recipe(tmp_path / f"{name}.yaml").tasks  # type: ignore[attr-defined]
        assert [task.answer for task in taskset_tasks(section)] == [{"a": "2", "b": "B"}[name]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "reward", "said"),
    [
        (
            {"text": "Add.", "test_list": ["assert f()"]},
            "code_tests",
            "prompt and tests are recognised: mbpp",
        ),
        (
            {"prompt": "def f():", "test": "def check(f): ...", "entry_point": "f"},
            "code_tests",
            "prompt and tests are recognised: humaneval",
        ),
        ({"problem_text": "Add.", "prompt": "Add.", "tests": ["assert f()"]}, "code_tests", "trl-prompt"),
        (
            {"prompt": "1+1?", "reward_model": {"ground_truth": "2"}},
            "math_verify",
            "prompt and answer are recognised: verl",
        ),
        (
            {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
            '"./my_reward.py:score"',
            "the prompt is recognised: sharegpt; docs/tasks.md\n    # no column is a reference answer",
        ),
        ({"instruction": "Hi", "completions": []}, '"./my_reward.py:score"', "recognised: ultrafeedback"),
    ],
)
@pytest.mark.parametrize("of_function", [False, True])
def test_families_are_recognised_as_the_check_of_data_does(
    row: dict[str, object], reward: str, said: str, of_function: bool, tmp_path: Path
) -> None:
    source = str(tmp_path / "rows.jsonl")
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    if of_function:
        source = f"{tmp_path}/mk.py:rows"
        (tmp_path / "mk.py").write_text(f"def rows():\n    yield {row!r}\n")
    write_recipe(Wanted(Goal.GRPO, source, "tiny"), tmp_path / "a.yaml")
    text = (tmp_path / "a.yaml").read_text()
    assert f"    - {{use: {reward}}} #" in text
    assert said in text
    assert (tmp_path / "my_reward.py").exists() == ("my_reward" in reward)
    [section] = check_recipe(tmp_path / "a.yaml").tasks  # type: ignore[attr-defined]
    assert len(list(taskset_tasks(section))) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("goal", "row", "columns", "entry"),
    [
        (
            Goal.SFT,
            {"Frage": "1+1?", "Antwort": "2"},
            ("Frage", "Antwort"),
            "prompt: Frage, completion: Antwort",
        ),
        (Goal.SFT, {"question": "1+1?", "answer": "It is\n#### 2"}, (), "taskset: a}"),
        (
            Goal.DPO,
            {"q": "1+1?", "good one": "2", "bad": "3"},
            ("q", None, "good one", "bad"),
            'prompt: q, chosen: "good one", rejected: bad',
        ),
    ],
)
def test_answers_and_pairs_are_imported_by_the_columns_that_are_named(
    goal: Goal, row: dict[str, str], columns: tuple[str | None, ...], entry: str, data: Path, tmp_path: Path
) -> None:
    data.write_text(json.dumps(row) + "\n")
    path = tmp_path / "a.yaml"
    write_recipe(Wanted(goal, str(data), "tiny", *columns), path)
    assert entry in path.read_text()
    given = with_model(load_recipe(path))
    assert given is not None
    with Buffer(tmp_path / "buffer") as buffer:
        import_sources(given.imports, buffer)
        require_stage_rows(given.offline_stages[0], buffer)


@pytest.mark.parametrize(
    ("goal", "row", "columns", "said"),
    [
        (
            Goal.DPO,
            {"question": "1?", "answer": "#### 1"},
            (),
            "and become 1 tasks, 1 experiences, no preference",
        ),
        (
            Goal.SFT,
            {"question": "1?", "answer": "1"},
            (),
            "become 1 tasks, no answer to imitate; name the col",
        ),
        (
            Goal.SFT,
            {"Frage": "1?", "Antwort": "1"},
            (),
            "no format fits them; .*--prompt COLUMN --completion",
        ),
        (Goal.SFT, {"Frage": "1?", "Antwort": "1"}, ("Frage",), "takes --prompt with --answer"),
        (Goal.SFT, {"Frage": "1?", "Antwort": "1"}, ("Frage", "Antwrt"), "there is no field 'Antwrt'"),
        (Goal.DPO, {"q": "1?", "a": "1"}, ("q", "a"), "in place of --answer give --chosen and --rejected"),
        (Goal.GRPO, {"q": "1?", "a": "1"}, ("q", "a", "a"), "--chosen and --rejected are for the goal dpo"),
    ],
)
def test_data_that_the_goal_cannot_train_on_is_refused(
    goal: Goal, row: dict[str, str], columns: tuple[str, ...], said: str, data: Path, tmp_path: Path
) -> None:
    data.write_text(json.dumps(row) + "\n")
    with pytest.raises(RecipeError, match=said):
        write_recipe(Wanted(goal, str(data), "tiny", *columns), tmp_path / "a.yaml")
    assert not (tmp_path / "a.yaml").exists()


def test_what_cannot_be_is_refused_before_anything_is_written(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.yaml"
    with pytest.raises(MissingFileError, match="there is no file or dataset folder at nowhere"):
        write_recipe(Wanted(Goal.GRPO, "nowhere.jsonl", "tiny"), path)
    with pytest.raises(RecipeError, match="knows nothing to measure"):
        write_recipe(Wanted(Goal.EVAL, str(data), "tiny"), path)
    data.write_text('{"question": "a", "prompt": "b", "answer": "c"}\n')
    with pytest.raises(RecipeError, match=r"has .'question', 'prompt'. of"):
        write_recipe(Wanted(Goal.GRPO, str(data), "tiny"), path)
    data.write_text("")
    with pytest.raises(RecipeError, match="is empty"):
        write_recipe(Wanted(Goal.GRPO, str(data), "tiny"), path)
    assert not path.parent.exists()


@pytest.mark.slow
def test_command_says_which_flag_is_missing(data: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "a.yaml")
    missing = rft("recipe", "new", path)
    assert missing.exit_code == 2
    assert missing.stderr.startswith(
        "error: --goal is not given; give one of grpo, dpo, sft, eval, curate.\n"
    )
    assert "--goal is 'gpro'" in rft("recipe", "new", path, "--goal", "gpro").stderr
    done = rft("recipe", "new", path, "--goal", "curate", "--data", str(data))
    assert (done.exit_code, done.stdout) == (0, f"wrote {path}; its header says what to do next\n")


@pytest.mark.slow
def test_on_a_terminal_it_asks(data: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, f"grpo\n{data}\ntiny\n".encode())
    done = subprocess.run(
        [sys.executable, "-m", "rft_data.cli.app", "recipe", "new", str(tmp_path / "asked.yaml")],
        stdin=theirs, capture_output=True, text=True, cwd=ROOT, timeout=60,
    )  # fmt: skip
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0, done.stderr
    assert "goal (grpo, dpo, sft, eval, curate)" in done.stderr
    assert json.dumps(str(data)) in (tmp_path / "asked.yaml").read_text()
