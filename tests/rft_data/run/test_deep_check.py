"""`rft recipe validate --deep`: what shows when libraries, tasks and tokenizer are loaded, all at once."""

import json
import os
import re
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import huggingface_hub
import pytest

from rft_data.recipe import load_recipe
from rft_data.recipe.leaves import dotted
from rft_data.recipe.preflight import Problem
from rft_data.recipe.shipped import ShippedRecipe, shipped_recipes
from rft_data.run import hub_reach
from rft_data.run.data_check import check_recipe_data
from rft_data.run.deep_check import as_written, deep_problems
from rft_data.run.hub_reach import hub_asked_once
from tests.explorers.conversations.conftest import trained_tokenizer
from tests.explorers.conversations.families import QWEN25
from tests.rft_data.run.test_online import write_recipe


def with_model(folder: Path, template: str | None) -> str:
    """An override for a model folder with a real tokenizer."""
    tokenizer = trained_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder / "model")
    (folder / "model" / "config.json").write_text(
        json.dumps({"model_type": "qwen2", "hidden_size": 64, "num_attention_heads": 4})
    )
    rows = [{"question": "sum " * n, "answer": "1"} for n in (1, 2, 500)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"model={{path: {folder}/model}}"


def told(problems: list[Problem], *parts: str) -> None:
    """Each of these is in a problem or its place, and there are no others."""
    found = [f"{dotted(one.loc)}: {one.message}" for one in problems]
    assert len(found) == len(parts), found
    for part in parts:
        assert any(part in one for one in found), (part, found)


@pytest.mark.slow
def test_all_that_cannot_be_built_is_named_at_once(tmp_path: Path) -> None:
    overrides = [
        "stages.0.trl={bf16: true, fp16: true}",
        "stages.1.trl={learning_rate: 1.0}",
        "experience_ops.1={reward_variance_filter: {min_std: -1}}",
        f"tasks.0.source={{use: jsonl, path: {tmp_path}/rows.jsonl}}",
        "explorer.max_tokens=60",
        "explorer.engine.use=vllm",
        with_model(tmp_path, QWEN25),
    ]
    preloaded = os.environ.get("LD_PRELOAD")
    found = deep_problems(load_recipe(write_recipe(tmp_path), overrides))
    assert os.environ.get("LD_PRELOAD") == preloaded, "vLLM sets it, and roles of a run would start with it"
    told(
        found,
        "stages.0: trl: SFTConfig refuses",
        "experience_ops.1: operator 'reward_variance_filter' does not accept",
        "tasks.0: 3 of the first 3 prompts have more than 4",
        "its attention heads are 16 wide, and vLLM has on a CPU those of 32, 64",
    )


NOT_HERE = re.compile(
    r"teacher '.*' is no folder|the tokenizer of '.*' cannot be loaded|[Rr]eward model|verifiers environment"
    r"|there is no buffer at|this machine shows 0"
)
"""What an earlier run leaves, or is on the user's machine."""


@pytest.mark.slow
@pytest.mark.parametrize("one", shipped_recipes(), ids=lambda one: one.name)
def test_the_parts_of_every_shipped_recipe_can_be_built(
    one: ShippedRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in re.findall(r"\$\{env:(\w+)(?:\}|:-unset)", one.path.read_text()):
        monkeypatch.setenv(name, "given, and long enough")
    without_tasks = load_recipe(one.path).model_copy(update={"tasks": []})
    assert [one for one in deep_problems(without_tasks) if not NOT_HERE.search(one.message)] == []


OWN = """
async def alone(task):
    return 1.0

class Silent:
    def add(self, left: int, right: int) -> int:
        return left + right

class Adder:
    def add(self, left: int, right: int) -> int:
        \"\"\"Add two numbers.

        Args:
            left: One number.
            right: Another.
        \"\"\"
        return left + right

def graded(task, completion, judge, strictness):
    return 1.0

class Least:
    def __init__(self, least: int) -> None:
        self.least = int(least)

    def __call__(self, task, completion):
        return float(len(completion) >= self.least)
"""
EVAL = """\
recipe: 1
name: measured
mode: eval
run_dir: {root}/run
buffer: {{uri: {root}/buffer}}
models: [one, other]
tasks: [{{name: sums, source: {{use: reasoning_gym, dataset: chain_sum, size: 4}}}}]
evaluation: {{limit: 4}}
explorer:
  engine: {{use: transformers, max_model_len: 64}}
  max_tokens: 8
  workflow: {{use: "{root}/mine.py:alone"}}
  reward: [{{use: "{root}/mine.py:Least", name: short, args: {{least: x}}}},
    {{use: "{root}/mine.py:Least", name: long, args: {{least: 9}}}}]
"""


@pytest.mark.slow
def test_own_code_that_an_explorer_would_refuse_is_named_before(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    found = deep_problems(
        load_recipe(
            write_recipe(tmp_path),
            [
                f"explorer.workflow={{use: '{tmp_path}/mine.py:alone'}}",
                f"explorer.workflows={{silent: {{use: '{tmp_path}/mine.py:Silent'}}, "
                f"odd: {{use: '{tmp_path}/mine.py:Adder', args: {{args: {{size: 3}}}}}}}}",
                f"explorer.reward=[{{use: '{tmp_path}/mine.py:graded'}}]",
            ],
        )
    )
    told(
        found,
        "write `async def play(task, model)`",
        "Silent.add cannot be offered to a model",
        "the class does not take the arguments ['size']",
        "graded' takes (task, completion, judge, strictness)",
    )


@pytest.mark.slow
def test_own_code_that_measures_several_models_is_made_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "measured.yaml").write_text(EVAL.format(root=tmp_path))
    found = deep_problems(load_recipe(tmp_path / "measured.yaml"))
    told(found, "write `async def play(task, model)`", "invalid literal for int() with base 10: 'x'")


@pytest.mark.slow
def test_a_tokenizer_without_a_template_is_told_before_the_run(tmp_path: Path) -> None:
    overrides = [with_model(tmp_path, None), f"tasks.0.source={{use: jsonl, path: {tmp_path}/rows.jsonl}}"]
    found = deep_problems(load_recipe(write_recipe(tmp_path), overrides))
    told(found, "has no chat template")


TEXT_ONLY = "{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "tasks of 'sums' show images, and the model in '"),
        (
            {"vision_config": {}},
            "taskset 'sums': the chat template of '.*' cannot render a prompt with images",
        ),
    ],
)
def test_images_that_the_model_or_its_template_does_not_take_are_told(
    tmp_path: Path, config: dict[str, object], message: str
) -> None:
    overrides = [with_model(tmp_path, TEXT_ONLY), "explorer.engine.use=vllm", "explorer.engine.swap=drain"]
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "qwen2", **config}))
    (tmp_path / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "rows.jsonl").write_text('{"question": "q", "answer": "1", "images": ["x.png"]}\n')
    source = f"{{use: file, path: {tmp_path}/rows.jsonl}}"
    overrides.append(f"tasks=[{{name: sums, source: {source}, images: images}}]")
    [found] = deep_problems(load_recipe(write_recipe(tmp_path), overrides))
    assert re.search(message, found.message)
    assert found.message.endswith("give a vision-language model, or tasks without images.")


@pytest.mark.slow
def test_imports_and_tasksets_are_named_by_their_number(tmp_path: Path) -> None:
    (tmp_path / "good.jsonl").write_text('{"question": "1+1?", "answer": "It is\\n#### 2"}\n')
    (tmp_path / "bad.jsonl").write_text('{"nothing": 1}\n')
    source = f"source: {{use: file, path: {tmp_path}/rows.jsonl}}"
    overrides = [
        f"imports=[{{path: {tmp_path}/good.jsonl}}, {{path: {tmp_path}/bad.jsonl}}]",
        with_model(tmp_path, QWEN25),
        "explorer.engine.max_model_len=128",
        f"tasks=[{{name: sums, {source.replace('}', ', limit: 1}')}}}, {{name: other, {source}}}]",
    ]
    found = deep_problems(load_recipe(write_recipe(tmp_path), overrides))
    told(found, "imports.1: ", "tasks.1: 1 of the first 3 prompts")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answers", "reward", "named"),
    [
        ((None, None), "exact_answer", True),
        ((None, None), "answer_format", False),
        ((None, "2"), "exact_answer", False),
    ],
)
def test_tasks_without_the_answer_that_a_reward_reads_are_told(
    tmp_path: Path, answers: tuple[str | None, ...], reward: str, named: bool
) -> None:
    rows = [{"question": f"1+{n}?", "answer": answer} for n, answer in enumerate(answers)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = f"tasks.0.source={{use: jsonl, path: {tmp_path}/rows.jsonl}}"
    judged = f"explorer.reward=[{{use: {reward}}}]"
    found = deep_problems(load_recipe(write_recipe(tmp_path), [source, judged]))
    said = "compares with the task's answer, and none of the first 2 tasks has one"
    assert [one.loc for one in found if said in one.message] == [("tasks", 0)] * named


@pytest.mark.slow
def test_a_source_without_tasks_is_told(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").touch()
    none = f"tasks.0.source={{use: jsonl, path: {tmp_path}/none.jsonl}}"
    found = deep_problems(load_recipe(write_recipe(tmp_path), [none]))
    assert [one.message for one in found if one.loc == ("tasks", 0)] == [
        "it gives no tasks; look at the file, and at 'where' and 'limit' of the source."
    ]


@pytest.mark.slow
def test_tools_that_tasks_offer_count_in_the_length_of_prompts(tmp_path: Path) -> None:
    overrides = [with_model(tmp_path, QWEN25), "explorer.engine.max_model_len=64"]
    tool = {"type": "function", "function": {"name": "look_up", "description": "d", "parameters": {}}}
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "q", "answer": "1", "tools": [tool]}) + "\n")
    source = f"{{use: file, path: {tmp_path}/rows.jsonl}}"
    told(
        deep_problems(
            load_recipe(write_recipe(tmp_path), [*overrides, f"tasks=[{{name: sums, source: {source}}}]"])
        )
    )
    own = [*overrides, f"tasks=[{{name: sums, source: {source}, tools: tools}}]"]
    told(deep_problems(load_recipe(write_recipe(tmp_path), own)), "1 of the first 1 prompts have more")
    (tmp_path / "mine.py").write_text(OWN)
    world = [*overrides, f"tasks=[{{name: sums, source: {source}}}]"]
    world.append(f"explorer.workflow={{use: tools, args: {{tools: '{tmp_path}/mine.py:Adder'}}}}")
    recipe = load_recipe(write_recipe(tmp_path), world)
    told(deep_problems(recipe), "1 of the first 1 prompts have more")
    [found] = check_recipe_data(recipe).tasksets
    assert found.lengths is not None
    assert (found.lengths.too_long, '"add"' in found.examples[0].prompt) == (1, True)


@pytest.mark.slow
def test_a_tokenizer_without_tokens_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    told(
        deep_problems(load_recipe(write_recipe(tmp_path), [f"model={{path: {tmp_path}}}"])),
        f"the tokenizer of '{tmp_path}' has no tokens, so no prompt can be made",
    )


@pytest.mark.slow
def test_a_hub_that_is_silent_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_reach, "_PATIENCE_S", 0.2)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    recipe = load_recipe(write_recipe(tmp_path), ["model={path: nobody/nothing}"])
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing
        place = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", place)
        with hub_asked_once(recipe) as said:
            assert huggingface_hub.constants.HF_HUB_OFFLINE
            assert os.environ["HF_HUB_OFFLINE"] == "1"
    [line] = said
    assert line.startswith(place)
    assert "model.path 'nobody/nothing' is no folder here" in line
    assert not huggingface_hub.constants.HF_HUB_OFFLINE
    assert "HF_HUB_OFFLINE" not in os.environ
    with hub_asked_once(load_recipe(write_recipe(tmp_path))) as said:
        assert said == [], "it needs nothing of the hub"


@pytest.mark.slow
@pytest.mark.parametrize("status", [403, 404, 407])
def test_a_hub_that_refuses_is_not_asked_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    asked: list[str] = []

    class Refusing(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        do_GET = do_HEAD

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    Thread(target=server.serve_forever, daemon=True).start()
    constants, place = huggingface_hub.constants, f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", place)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", place + "/{repo_id}/resolve/{revision}/{filename}"
    )
    found = deep_problems(load_recipe(write_recipe(tmp_path), ["model={path: nobody/nothing}"]))
    server.shutdown()
    server.server_close()
    told(found, "the tokenizer of 'nobody/nothing' cannot be loaded")
    assert asked[0] == "/"
    assert set(asked[1:]) == {"/nobody/nothing/resolve/main/config.json"}
    assert len(asked) <= 3, "its client asks for the tokenizer's and the model's configuration, once each"


REWARDS = """
import time

def trl(prompts, completions, **columns):
    return [1.0] * len(completions)

def text(task, completion):
    return "good"

def none(task, completion):
    return None

def listed(task, completion):
    return [1.0]

def unbounded(task, completion):
    return float("nan")

def failing(task, completion):
    return {"2": 1.0}[task.metadata["nothing"]]

def asleep(task, completion):
    time.sleep(60)

def of_group(group):
    return [1.0]

def of_rollout(trajectory):
    return trajectory.environment["state"]

def unsure(task, completion):
    return Unscored("cannot tell")

def good(task, completion):
    return float(task.answer == completion)

from rft_data import Unscored
X = 3
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("trl", "takes (prompts, completions), as TRL calls one for a batch; here it is called for one"),
        ("text", "returned 'good'; wanted a finite number"),
        ("none", "returned None; wanted"),
        ("listed", "returned [1.0]; wanted"),
        ("unbounded", "returned nan; wanted"),
        ("failing", "raised KeyError: 'nothing'"),
        ("asleep", "took longer than 0.5 s and was stopped"),
        ("of_group", "returned [1.0]; wanted one value for each of the 2 rollouts"),
        ("X", "is 3 of type int; name a function or a class"),
        ("of_rollout", ""),
        ("unsure", ""),
        ("good", ""),
    ],
)
def test_own_rewards_are_called_once(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "mine.py").write_text(REWARDS)
    overrides = [
        f"explorer.reward=[{{use: exact_answer}}, {{use: '{tmp_path}/mine.py:{name}', name: mine}}]",
        f"explorer.limits={{reward_deadline_s: {0.5 if name == 'asleep' else 10}}}",
        "explorer.group_size=2",
    ]
    found = deep_problems(load_recipe(write_recipe(tmp_path), overrides))
    told(found, *[said] * bool(said))
    assert [one.loc for one in found] == [("explorer", "reward", 1)] * bool(said)


@pytest.mark.slow
def test_a_mistake_in_a_list_of_operators_is_at_its_entry(tmp_path: Path) -> None:
    overrides = ["experience_ops=[{grpo_advantage_mapper: {}}, {reward_variance_filter: {nope: 1}}]"]
    [found] = deep_problems(load_recipe(write_recipe(tmp_path), overrides))
    assert found.loc == ("experience_ops", 1)
    assert found.message.startswith("reward_variance_filter.nope: unknown argument; ")


@pytest.mark.slow
def test_an_operator_that_shapes_what_is_measured_is_built_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN.replace("int(least)", "least"))
    operators = "  - reward_range_filter: {}\n  - overlong_penalty_mapper: {max_tokens: -4}\n"
    (tmp_path / "measured.yaml").write_text(f"{EVAL.format(root=tmp_path)}experience_ops:\n{operators}")
    recipe = load_recipe(tmp_path / "measured.yaml", ["~explorer.workflow"])
    [found] = [one for one in deep_problems(recipe) if one.loc[0] == "experience_ops"]
    assert "overlong_penalty_mapper" in found.message
    tree = {"experience_ops": recipe.experience_ops}  # type: ignore[attr-defined]
    assert as_written(found, recipe, tree).loc[:2] == ("experience_ops", 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "told_so"), [("{}", True), ("{max_length: 6}", False), ("{max_length: 9}", True)]
)
def test_imported_rows_beyond_a_models_positions_are_told(
    tmp_path: Path, options: str, told_so: bool
) -> None:
    override = with_model(tmp_path, QWEN25)
    config = {"model_type": "gpt2", "n_positions": 6, "n_embd": 32, "n_head": 1}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    (tmp_path / "answers.jsonl").write_text('{"prompt": "1+1?", "completion": "It is two, I think"}\n')
    path = tmp_path / "offline.yaml"
    path.write_text(
        f"recipe: 1\nname: sft\nmode: offline\nrun_dir: {tmp_path}/run\nbuffer: {{uri: {tmp_path}/buffer}}\n"
        f"model: {{path: x}}\nimports: [{{path: {tmp_path}/answers.jsonl}}]\n"
        f"stages: [{{algorithm: sft, data: {{}}, trl: {options}}}]\n"
    )
    found = [one.message for one in deep_problems(load_recipe(path, [override])) if one.loc == ("imports", 0)]
    assert len(found) == told_so, found
    assert all(
        "than the model has positions (6); give every stage trl: {max_length: 6}" in one for one in found
    )
