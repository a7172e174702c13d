"""`rft data check`: what a source gives, as the model sees it, and what keeps it from feeding a run."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rft_data.buffer import Buffer
from rft_data.exchange.formats import import_into
from rft_data.recipe.named_source import named_source
from tests.explorers.conversations.conftest import trained_tokenizer
from tests.explorers.conversations.families import QWEN25
from tests.explorers.workflows import verifiers_worlds
from tests.rft_data.cli.test_cli import rft

RECIPE = """\
recipe: 1
name: small
mode: online
run_dir: {root}/run
buffer: {{uri: {root}/run/buffer}}
model: {{path: {root}/model}}
tasks:
  - name: train
    source: {{use: file, path: {root}/train.jsonl}}
    heldout: 0.3
  - name: exam
    source: {{use: file, path: {root}/exam.jsonl}}
    prompt: asked
    answer: right
    heldout: 1
selector: {{use: shuffle}}
explorer:
  engine: {{use: transformers, max_model_len: 64}}
  group_size: 4
  max_tokens: 6
  workflow: {{use: single_turn, args: {{system: Be short.}}}}
  reward: [{{use: exact_answer}}]
experience_ops: [{{grpo_advantage_mapper: {{}}}}]
stages: [{{algorithm: grpo, groups_per_step: 2, steps: 3}}]
evaluation: {{limit: 4}}
"""
ROWS: list[dict[str, Any]] = [
    {"question": f"{n} plus {n}?", "answer": f"So #### {2 * n}", "level": n % 3 or None} for n in range(20)
]


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def checked(*arguments: str, code: int = 0) -> dict[str, Any]:
    done = rft("data", "check", *arguments, "--json")
    assert done.exit_code == code, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["sound"] is (code == 0)
    return found


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("house")
    tokenizer = trained_tokenizer()
    tokenizer.chat_template = QWEN25
    tokenizer.save_pretrained(root / "model")
    (root / "model" / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    long = {"question": "sum " * 100, "answer": "#### 1"}
    write(root / "train.jsonl", *ROWS, ROWS[0], {**ROWS[1], "level": 9}, long)
    write(root / "exam.jsonl", {"asked": "3  PLUS 3?", "right": "6"}, {"asked": "Else?", "right": "7"})
    (root / "small.yaml").write_text(RECIPE.format(root=root))
    return root / "small.yaml"


@pytest.mark.slow
def test_a_recipe_is_checked_with_its_model_its_lengths_and_its_held_out_tasks(recipe: Path) -> None:
    train, exam = checked(str(recipe))["tasksets"]
    counts = ("rows", "tasks", "answers", "duplicates", "same_prompt", "leaked")
    assert [train[name] for name in counts] == [23, 22, 22, 1, 1, 1]
    assert 0 < train["heldout"] < 22
    assert [exam[name] for name in ("heldout", "leaked")] == [2, 0]
    assert train["read_as"].startswith("recognised as gsm8k")
    assert exam["read_as"] == "prompt: 'asked', answer: 'right'"
    assert train["columns"][2] == {"name": "level", "kind": "number", "missing": 9}
    example = train["examples"][0]
    assert "system\nBe short." in example["prompt"]
    assert "0 plus 0?" in example["prompt"]
    assert example["prompt"].rstrip().endswith("assistant")
    assert (example["answer"], example["metadata"]) == ("0", [])
    lengths = train["lengths"]
    assert (lengths["unit"], lengths["room"], lengths["too_long"]) == ("tokens", 58, 1)
    assert example["tokens"] <= lengths["p50"] <= lengths["p90"] <= lengths["p99"] <= lengths["longest"]
    assert lengths["longest"] > 100
    said = "\n".join(train["warnings"])
    for part in ("1 of 22 prompts have more than 58", "1 rows make a task", "task_decontamination_filter"):
        assert part in said


@pytest.mark.slow
def test_a_source_for_a_recipe_is_checked_against_its_rewards_and_held_out_tasks(
    recipe: Path, tmp_path: Path
) -> None:
    rows = write(tmp_path / "new.jsonl", {"text": "3 plus 3?"}, {"text": "Which?"}, {"text": "New?"})
    found = checked(rows, "--recipe", str(recipe), "--prompt", "text", code=1)["tasksets"][0]
    assert (found["leaked"], found["lengths"]["room"]) == (1, 58)
    [problem] = found["problems"]
    assert (
        "reward 'exact_answer' compares with the task's answer, and 3 of 3 tasks have none; write" in problem
    )
    short = ("explorer.max_tokens=63", "explorer.reward=[{use: answer_format}]")
    found = checked(rows, *short, "--recipe", str(recipe), "--prompt", "text", code=1)["tasksets"][0]
    assert ["3 of 3 prompts have more than 1 tokens" in one for one in found["problems"]] == [True]


@pytest.mark.slow
def test_tasks_that_the_run_will_import_are_looked_at_too(recipe: Path) -> None:
    exam = ["tasks.1={name: exam, source: {use: stored}, heldout: 1}"]
    missing = checked(str(recipe), *exam, code=1)["tasksets"][1]["problems"]
    assert ["there is no buffer at" in one for one in missing] == [True]
    file = f"imports=[{{path: {recipe.parent}/train.jsonl, taskset: exam}}]"
    train, found = checked(str(recipe), *exam, file)["tasksets"]
    assert (found["tasks"], found["heldout"], found["answers"]) == (22, 22, 22)
    assert train["leaked"] == 22 - train["heldout"]
    assert not (recipe.parent / "run").exists()


@pytest.mark.slow
def test_a_generator_and_the_tasks_of_a_buffer_are_sources_too(recipe: Path, tmp_path: Path) -> None:
    [made] = checked("reasoning_gym:chain_sum")["tasksets"]
    assert (made["rows"], made["answers"], len(made["examples"])) == (made["tasks"], made["tasks"], 3)
    assert json.loads(made["write"])["source"]["dataset"] == "chain_sum"
    done = rft("data", "check", "reasoning_gym:chain_sum", "--prompt", "question")
    assert (done.exit_code, "makes prompts and answers itself" in done.stderr) == (2, True)
    buffer = tmp_path / "buffer"
    for number in (1, 2):
        path = Path(write(tmp_path / f"set{number}.jsonl", *ROWS[:number]))
        with Buffer(buffer) as opened:
            import_into(opened, path)
    both = checked(str(buffer))["tasksets"]
    assert [(one["name"], one["tasks"]) for one in both] == [("set1", 1), ("set2", 2)]
    [one] = checked(f"{buffer}:set2", "--recipe", str(recipe))["tasksets"]
    assert json.loads(one["write"]) == {"name": "set2", "source": {"use": "stored"}}
    assert one["lengths"]["unit"] == "tokens"
    [gone] = checked(f"{buffer}:set3", code=1)["tasksets"]
    assert "it has set1, set2" in gone["problems"][0]


@pytest.mark.slow
def test_an_environment_of_verifiers_is_a_source(recipe: Path) -> None:
    name = f"{verifiers_worlds.__name__}:load_environment"
    [made] = checked(f"verifiers:{name}", "--recipe", str(recipe))["tasksets"]
    assert made["tasks"] >= 1
    assert json.loads(made["write"])["source"] == {"use": "verifiers", "environment": name}


DATA = """\
recipe: 1
name: scored
mode: data
buffer: {{uri: {root}/scored}}
tasks: [{{name: train, source: {{use: file, path: {root}/asked.jsonl}}}}]
rollouts:
- name: others
  source: {{use: file, path: {root}/said.jsonl}}
  taskset: train
  completions: [{{name: big, text: out.big, label: out.right}}]
reward: [{{use: exact_answer}}]
"""


@pytest.mark.slow
def test_rollouts_that_a_data_run_will_score_are_looked_at(tmp_path: Path) -> None:
    write(tmp_path / "asked.jsonl", *ROWS[:3])
    said = [{"question": row["question"], "out": {"big": "#### 2", "right": True}} for row in ROWS[1:4]]
    write(tmp_path / "said.jsonl", *said)
    path = tmp_path / "scored.yaml"
    path.write_text(DATA.format(root=tmp_path))
    tasks, found = checked(str(path))["tasksets"]
    assert (tasks["kind"], found["kind"], found["rows"]) == ("taskset", "rollouts", 3)
    assert found["stored"] == {"experiences": 2}
    assert found["warnings"] == ["1 rows answer no task of 'train'; they are not stored"]
    assert found["examples"][0]["prompt"] == "[user] 1 plus 1?"
    assert (found["examples"][0]["answer"], found["examples"][0]["metadata"]) == ("#### 2", ["label True"])
    assert "rollouts 'others': " in rft("data", "check", str(path)).stdout
    [_, wrong] = checked(str(path), "rollouts.0.completions.0.text=out.small", code=1)["tasksets"]
    assert "small" in wrong["problems"][0]
    [_, other] = checked(str(path), "rollouts.0.prompt=out.big", code=1)["tasksets"]
    assert other["problems"][0].startswith("none of its 3 rows asks what a task of 'train' asks")
    assert not (tmp_path / "scored").exists()


CALLED = [{"id": "1", "type": "function", "function": {"name": "subtract", "arguments": "{}"}}]
OFFLINE = """\
recipe: 1
name: taught
mode: offline
run_dir: {root}/run
buffer: {{uri: {root}/run/buffer}}
model: {{path: {model}}}
imports: [{{path: {root}/answers.jsonl}}, {{source: {{use: file, path: {root}/pairs.jsonl, limit: 2}}}}]
stages:
- {{algorithm: sft, data: {{}}, trl: {{max_length: 40}}}}
- {{algorithm: dpo}}
"""


@pytest.mark.slow
def test_answers_and_pairs_that_stages_will_train_on_are_shown_as_they_see_them(
    recipe: Path, tmp_path: Path
) -> None:
    long = {"prompt": "Why?", "completion": "because " * 40}
    answers = [{"prompt": f"{n}?", "completion": str(n)} for n in range(4)]
    write(tmp_path / "answers.jsonl", *answers, answers[0], long, {"prompt": "no answer"})
    write(
        tmp_path / "pairs.jsonl", *({"prompt": "1+1?", "chosen": f"{n}", "rejected": "no"} for n in range(3))
    )
    offline = tmp_path / "offline.yaml"
    offline.write_text(OFFLINE.format(root=tmp_path, model=recipe.parent / "model"))
    rows, pairs = checked(str(offline))["tasksets"]
    assert (rows["rows"], rows["stored"]) == (7, {"experiences": 5})
    assert rows["read_as"] == "format 'trl-prompt-completion'"
    [aside, cut] = rows["warnings"]
    assert "1 rows are set aside" in aside
    assert "answers.jsonl:7" in aside
    assert "1 of 5 have more than 40 tokens" in cut
    first = rows["examples"][0]
    assert (first["prompt"], first["answer"].startswith("0"), first["tokens"] > 2) == ("0?", True, True)
    assert pairs["stored"] == {"preferences": 2}
    assert pairs["examples"][0]["answer"].startswith("better: 0")
    assert "worse: no" in pairs["examples"][0]["answer"]
    shown = rft("data", "check", str(tmp_path / "pairs.jsonl"), "--recipe", str(offline))
    assert shown.exit_code == 0, shown.stderr
    assert "  rows: 3, stored as: 3 preferences; duplicates: 0\n" in shown.stdout
    assert f'in a recipe, under imports: - {{"path": "{tmp_path}/pairs.jsonl"}}' in shown.stdout
    asked = {"ask": "1+1?", "chosen": "2", "rejected": "3"}
    own = [write(tmp_path / "own.jsonl", asked), "--recipe", str(offline), "--prompt", "ask"]
    [found] = checked(*own)["tasksets"]
    entry = {"path": str(tmp_path / "own.jsonl"), "prompt": "ask", "chosen": "chosen", "rejected": "rejected"}
    assert (found["stored"], json.loads(found["write"])) == ({"preferences": 1}, entry)
    [found] = checked(*own, "--completion", "chosen")["tasksets"]
    assert (found["stored"], found["examples"][0]["answer"][:1]) == ({"experiences": 1}, "2")
    wrong = rft("data", "check", *own, "--chosen", "rejected")
    assert "the columns named are 'prompt', 'chosen'; name 'prompt' and 'completion'" in wrong.stderr
    wrong = rft("data", "check", own[0], "--prompt", "ask", "--chosen", "chosen")
    assert "--chosen, --rejected and --label are columns of answers and pairs" in wrong.stderr
    assert rft("recipe", "validate", str(offline), "--deep").exit_code == 0
    foreign = write(tmp_path / "foreign.jsonl", {"messages": [{"role": "user", "content": "no answer"}]})
    deep = rft("recipe", "validate", str(offline), f"imports.0.path={foreign}", "--deep")
    assert "imports.0: no row can be stored; the first because of" in deep.stderr
    none = rft("data", "check", str(offline), "~imports")
    assert "reads no tasks and imports nothing: it trains on what the buffer" in none.stderr
    broken = checked(str(write(tmp_path / "x.jsonl", {"prompt": ""})), "--recipe", str(offline), code=1)
    assert "no row can be stored" in broken["tasksets"][0]["problems"][0]


@pytest.mark.slow
def test_tool_calls_that_the_template_does_not_render_are_warned_of(recipe: Path, tmp_path: Path) -> None:
    offline, model = tmp_path / "offline.yaml", tmp_path / "bare"
    offline.write_text(OFFLINE.format(root=tmp_path, model=model))
    called = {"role": "assistant", "content": "", "tool_calls": CALLED}
    calls = write(tmp_path / "calls.jsonl", {"messages": [{"role": "user", "content": "add"}, called]})
    lost = "1 of the rows looked at have tool calls for which the model's chat template has no place"
    for template, expected in ((QWEN25, False), ("{% for m in messages %}{{ m.content }}{% endfor %}", True)):
        shutil.copytree(recipe.parent / "model", model, dirs_exist_ok=True)
        (model / "chat_template.jinja").write_text(template)
        [found] = checked(str(calls), "--recipe", str(offline))["tasksets"]
        assert any(lost in one for one in found["warnings"]) is expected


@pytest.mark.slow
def test_a_source_alone_is_shown_with_the_entry_to_write(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", *ROWS)
    done = rft("data", "check", path, "--prompt", "{question} Level {level}.", "--answer", "answer")
    assert done.exit_code == 1
    assert "problem: " in done.stdout
    assert "a.jsonl:1: field 'level' holds nothing" in done.stdout
    done = rft("data", "check", path)
    assert done.exit_code == 0
    for part in (
        "rows: 20, tasks: 20 (held out 0, with answer 20)",
        "columns: question (text), answer (text), level (number, 7 missing)",
        "prompt characters of 20 tasks: 50% 11, 90% 11, 99% 11, longest 11",
        "    | [user] 0 plus 0?\n    answer: 0\n",
        f'- {{"name": "data", "source": {{"use": "file", "path": "{path}"}}}}',
        "sound: a run can be fed with it",
    ):
        assert part in done.stdout, part


@pytest.mark.slow
def test_a_file_of_another_kind_and_a_cell_without_text_are_named(tmp_path: Path) -> None:
    packed, parted = tmp_path / "packed.jsonl", tmp_path / "parted.csv"
    pq.write_table(pa.table({"question": ["1+1?"], "answer": ["2"]}), packed)
    parted.write_text("question;answer\n1+1?;2\n")
    rows = [
        {"question": "1+1?", "answer": "so\n#### 2"},
        {"question": "1+2?", "answer": ""},
        {"question": "2?"},
    ]
    partly = write(tmp_path / "partly.jsonl", *rows)
    for source, said in (
        (str(packed), "it is a Parquet file; give it a name that ends in .parquet"),
        (str(parted), "the header 'question;answer' is one column, with ';' in it"),
        (partly, "column 'answer' is empty"),
    ):
        [problem] = checked(source, code=1)["tasksets"][0]["problems"]
        assert said in problem
        assert "Columns that could be the prompt" not in problem


@pytest.mark.slow
def test_what_cannot_feed_a_run_says_what_to_write(tmp_path: Path) -> None:
    odd = write(tmp_path / "odd.jsonl", {"frage": "1+1?", "antwort": "2", "n": 3})
    [problem] = checked(odd, code=1)["tasksets"][0]["problems"]
    assert "'prompt: COLUMN'" in problem
    assert "Columns that could be the prompt: frage, antwort; name one: 'prompt: COLUMN'" in problem
    assert "gives no tasks" in checked(write(tmp_path / "none.jsonl"), code=1)["tasksets"][0]["problems"][0]
    assert "there is no file" in checked(str(tmp_path / "x.csv"), code=1)["tasksets"][0]["problems"][0]
    done = rft("data", "check", odd, "--answer", "antwort")
    assert (done.exit_code, "name both columns, or neither" in done.stderr) == (2, True)
    done = rft("data", "check", odd, "seed=1")
    assert (done.exit_code, "'seed=1' changes a recipe; name it with --recipe" in done.stderr) == (2, True)


@pytest.mark.slow
def test_rewards_by_unit_tests_and_names_in_rows_are_looked_at(recipe: Path, tmp_path: Path) -> None:
    row = {"prompt": "f", "test_list": ["assert f()"], "kind": "exact_answer"}
    rows = write(tmp_path / "code.jsonl", row, {**row, "test_list": [3]})
    tests = "explorer.reward=[{use: code_tests}]"
    found = checked(rows, tests, "--recipe", str(recipe), code=1)["tasksets"][0]
    assert ["finds no tests in 1 of 2 tasks: the task has a test 3" in one for one in found["problems"]] == [
        True
    ]
    named = ["tasks.0.reward='{kind}'", f"tasks.0.source.path={rows}"]
    train = checked(str(recipe), tests, *named, code=1)["tasksets"][0]
    assert any("tasks ask for the rewards ['exact_answer']" in one for one in train["problems"])


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("hf://a/b/main:train@1", {"use": "huggingface", "path": "a/b", "name": "main", "revision": "1"}),
        ("mine.py:rows", {"use": "mine.py:rows"}),
        ("package.mine:rows", {"use": "package.mine:rows"}),
        ("folder", {"use": "huggingface", "path": "folder", "split": None}),
        ("folder:train", {"use": "huggingface", "path": "folder", "split": "train"}),
        ("rows.lance", {"use": "file", "path": "rows.lance"}),
        ("rows.csv", {"use": "file", "path": "rows.csv"}),
    ],
)
def test_a_name_on_the_command_line_is_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, source: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("folder", "rows.lance"):
        (tmp_path / folder).mkdir()
    found = named_source(text, prompt=None, answer=None, heldout=0.0).source.model_dump()
    assert {key: found[key] for key in source} == source


CALL = [{"type": "function", "function": {"name": "look_up", "description": "d", "parameters": {}}}]
LINKED = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
UNSEEN = "column '{0}' is kept in metadata and not shown to the model; write {0}: {0} in the taskset"


def warnings(*arguments: str) -> list[str]:
    [found] = checked(*arguments)["tasksets"]
    return [one for one in found["warnings"] if "metadata and not shown" in one or "image" in one]


@pytest.mark.slow
def test_columns_that_nothing_shows_to_the_model_are_warned_of(recipe: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"Is it {n}?", "answer": "1", "images": ["x.png"], "tools": CALL} for n in range(3)]
    path = write(tmp_path / "rows.jsonl", *rows)
    assert [one.partition(" to have")[0] for one in warnings(path)] == [
        UNSEEN.format("images"),
        UNSEEN.format("tools"),
    ]
    taskset = f"tasks=[{{name: a, source: {{use: file, path: {path}}}, %s}}]"
    assert (
        "'images'" in warnings(str(recipe), taskset % "tools: tools", "explorer.engine.max_model_len=256")[0]
    )
    assert warnings(str(recipe), taskset % "metadata: [images, tools]") == []
    assert warnings(write(tmp_path / "plain.jsonl", {"prompt": "q", "answer": "1", "images": []})) == []


@pytest.mark.slow
def test_tools_of_a_task_are_part_of_what_is_shown_and_measured(recipe: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", {"prompt": "Is it?", "answer": "1", "tools": CALL})
    section = f"{{name: a, source: {{use: file, path: {path}}}"
    [without] = checked(str(recipe), f"tasks=[{section}}}]")["tasksets"]
    [offered] = checked(str(recipe), f"tasks=[{section}, tools: tools}}]", code=1)["tasksets"]
    assert "look_up" not in without["examples"][0]["prompt"]
    assert "look_up" in offered["examples"][0]["prompt"]
    assert offered["lengths"]["longest"] == offered["examples"][0]["tokens"]
    assert "1 of 1 prompts have more than 58 tokens" in offered["problems"][0]


def test_images_that_the_model_does_not_take_are_one_problem(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    path = write(tmp_path / "rows.jsonl", {"question": "Is it?", "answer": "1", "images": ["x.png"]})
    taskset = f"tasks=[{{name: a, source: {{use: file, path: {path}}}, images: images}}]"
    [found] = checked(str(recipe), taskset, "explorer.engine.use=vllm", code=1)["tasksets"]
    assert found["examples"][0]["prompt"] == "[user] [image]Is it?"
    [problem] = found["problems"]
    assert problem.startswith("tasks of 'a' show images, and the model in ")
    assert problem.endswith("give a vision-language model, or tasks without images.")


@pytest.mark.slow
def test_an_image_in_a_prompt_is_shown_and_one_that_is_a_link_is_told(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": [{"type": "text", "text": "What is "}, LINKED]}]
    path = write(tmp_path / "rows.jsonl", {"prompt": asked, "answer": "1"})
    [found] = checked(path)["tasksets"]
    assert found["examples"][0]["prompt"] == "[user] What is [image]"
    [warning] = warnings(path)
    assert "shows an image that is no stored payload ('https://x/y.png'); put it into a column" in warning


def test_a_tokenizer_without_tokens_is_a_problem(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    found = checked(str(recipe), f"model.path={tmp_path}", code=1)
    assert "has no tokens, so no prompt can be made: its files (tokenizer.json" in found["problems"][0]
