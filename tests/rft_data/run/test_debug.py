"""`rft debug`: one task, one reward, one operator, one rollout, with everything shown."""

import json
import logging
import os
from itertools import chain
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rft_data.buffer import Buffer
from rft_data.cli.app import app
from rft_data.core.errors import UnknownComponentError
from rft_data.core.rows import Task
from rft_data.recipe import load_recipe
from rft_data.run.debug.chosen import explored
from rft_data.run.debug.playing import scoring, task_section
from rft_data.run.debug.rewarding import KeptRewards
from tests.explorers.conversations.conftest import trained_tokenizer
from tests.explorers.conversations.families import QWEN25
from tests.explorers.engines.chat_server import ChatServer, completion
from tests.rft_data.cli.test_cli import rft
from tests.rft_data.conftest import make_experience

RECIPE = """\
recipe: 1
name: small
mode: online
run_dir: {root}/run
buffer: {{uri: {root}/run/buffer}}
model: {{build: {{use: tiny_qwen2, hidden_size: 32, num_layers: 1, num_heads: 1, intermediate_size: 32}}}}
tasks:
  - name: a
    source: {{use: jsonl, path: {root}/tasks.jsonl}}
    heldout: 0.3
selector: {{use: shuffle}}
explorer:
  engine: {{use: transformers, max_model_len: 64}}
  group_size: 4
  max_tokens: 6
  workflow: {{use: single_turn, args: {{system: Be short.}}}}
  reward: [{{use: exact_answer}}, {{use: answer_format, weight: 0.5}}]
experience_ops: [{{grpo_advantage_mapper: {{}}}}]
stages: [{{algorithm: grpo, groups_per_step: 2, steps: 3}}]
evaluation: {{limit: 4}}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    rows = [{"question": f"{i} + 1 =", "answer": str(i + 1), "level": i} for i in range(4)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "small.yaml").write_text(RECIPE.format(root=tmp_path))
    return str(tmp_path / "small.yaml")


def rft_more(stdin: str, *arguments: str) -> Result:
    """`rft debug ... --more --json` with lines on stdin."""
    return CliRunner().invoke(app, ["debug", *arguments, "--more", "--json"], input=stdin)


@pytest.mark.slow
def test_reward_shows_every_part_without_a_model(recipe: str) -> None:
    done = rft("debug", "reward", recipe, "--completion", "#### 3", "--task", "2")
    assert (
        "reward   1.5\n  exact_answer: 1.0\n  answer_format: 1.0\n"
        in rft("debug", "reward", recipe, "--completion", "#### 4", "--task", "3").stdout
    )
    assert "answer   3" in done.stdout
    found = json.loads(rft("debug", "reward", recipe, "--completion", "so 1 #### 2.", "--json").stdout)
    assert found["reward_parts"]["exact_answer"] == 0.0
    more = rft_more('#### 1\n\n"so\\n#### 1"\n"#\n5\n', "reward", recipe, "--completion", "#### 7")
    assert [json.loads(line)["reward"] for line in more.stdout.splitlines()] == [0.5, 1.5, 1.5, 0.0]
    hints = [json.loads(line)["hint"] for line in more.stdout.splitlines()]
    assert [bool(hint) for hint in hints] == [False, False, False, True]
    assert hints[3].startswith(
        "'exact_answer' reads what follows '####', and the completion has none: '#### 1'"
    )
    assert f"\nhint     {hints[3]}\n" in rft("debug", "reward", recipe, "--completion", "1").stdout
    assert more.stderr.startswith("error: a line that begins with a double quote is a JSON string")
    assert more.exit_code == 0
    wrong = rft("debug", "reward", recipe, "--task", "17x")
    assert (wrong.exit_code, "has no task '17x'; give an id, or a place from 0 to 3" in wrong.stderr) == (
        2,
        True,
    )


@pytest.mark.slow
def test_a_reward_whose_file_changes_is_read_again_and_else_kept(recipe: str, tmp_path: Path) -> None:
    file, edited = tmp_path / "mine.py", 1_700_000_000
    file.write_text("import os\n\ndef own(task, completion):\n    return float(os.getpid())\n")
    loaded = explored(load_recipe(Path(recipe), [f"explorer.reward=[{{use: '{file}:own'}}]"]))
    task = Task("a", ({"role": "user", "content": "1"},), "1")
    with KeptRewards(loaded) as rewards:
        processes = {rewards.score(task, "x")["reward"] for _ in range(6)}
        assert len(processes) < 6, "they stay"
        file.write_text("def own(task, completion):\n    return 0.25\n")
        os.utime(file, (edited, edited))
        assert rewards.score(task, "y")["reward"] == 0.25
        file.unlink()
        with pytest.raises(UnknownComponentError, match=r"there is no file .*mine\.py"):
            rewards.score(task, "y")
        file.write_text("def own(task, completion):\n    return 0.75\n")
        os.utime(file, (edited, edited + 0.5))  # in the second of the version before, and of its size
        assert rewards.score(task, "y")["reward"] == 0.75


@pytest.mark.slow
def test_a_task_is_shown_with_its_tools_and_not_with_images_that_nothing_takes(
    recipe: str, tmp_path: Path
) -> None:
    tool = {"type": "function", "function": {"name": "look_up", "description": "d", "parameters": {}}}
    (tmp_path / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    row = {"question": "What?", "answer": "1", "images": ["x.png"], "tools": [tool]}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(row) + "\n")
    done = rft("debug", "task", recipe, "tasks.0.images=images")
    assert (done.exit_code, "tasks of 'a' show images, and the engine 'transformers'" in done.stderr) == (
        2,
        True,
    )
    tokenizer = trained_tokenizer()
    tokenizer.chat_template = QWEN25
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen2"}')
    changes = ["tasks.0.tools=tools", f"model={{path: {tmp_path}/model}}"]
    shown = rft("debug", "task", recipe, *changes).stdout
    before, _, prompt = shown.partition("prompt, as the template makes it:")
    assert "tools:\n  {" in before
    assert "look_up" in prompt
    found = json.loads(rft("debug", "task", recipe, *changes, "--json").stdout)["prompt"]
    assert found["tools"] == [tool]
    assert "look_up" in found["text"]
    world = [changes[1], "explorer.workflow={use: 'tests.explorers.environments.worlds:Desk'}"]
    found = json.loads(rft("debug", "task", recipe, *world, "--json").stdout)["prompt"]
    assert "add" in [one["function"]["name"] for one in found["tools"]], "the world's own"
    assert '"add"' in found["text"]
    assert found["messages"][-1]["content"] == "What? (desk of a)", "with what its reset says"
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path / "model")
    refused = rft("debug", "task", recipe, *changes)
    assert (refused.exit_code, "chat template has no place for them" in refused.stderr) == (2, True)


def test_a_recipe_that_plays_nothing_is_refused() -> None:
    done = rft("debug", "reward", "gsm8k_preferences")
    assert (done.exit_code, "which plays no task" in done.stderr) == (2, True)


@pytest.mark.slow
def test_task_is_shown_as_the_model_will_see_it(recipe: str) -> None:
    found = json.loads(rft("debug", "task", recipe, "--task", "1", "--json").stdout)
    assert [one["content"] for one in found["prompt"]["messages"]] == ["Be short.", "1 + 1 ="]
    assert "Be short." in found["prompt"]["text"]
    assert "1 + 1 =" in found["prompt"]["text"]
    assert found["metadata"] == {"level": 1}
    text = rft("debug", "task", recipe, "--task", found["task_id"]).stdout
    assert f"{len(found['prompt']['ids'])} tokens: {found['prompt']['ids'][0]} " in text
    more = rft_more("1\n17x\n0\n", "task", recipe, "--task", "3")
    asked = [json.loads(line)["messages"][0]["content"] for line in more.stdout.splitlines()]
    assert asked == ["3 + 1 =", "1 + 1 =", "0 + 1 ="]
    assert "has no task '17x'" in more.stderr


@pytest.mark.slow
def test_operator_says_what_it_does_with_a_stored_group(tmp_path: Path) -> None:
    with Buffer(tmp_path / "b") as buffer:
        buffer.append([make_experience(i) for i in range(8)])
    done = rft(
        "debug", "op", "reward_range_filter", "min_reward=0.5", "--buffer", str(tmp_path / "b"), "--json"
    )
    rows = json.loads(done.stdout)
    assert {row["verdict"] for row in rows} <= {"kept", "dropped"}
    assert all((row["reward"] >= 0.5) == (row["verdict"] == "kept") for row in rows)
    assert "verdict" in rft("debug", "op", "pass_rate_mapper", "--buffer", str(tmp_path / "b")).stdout
    wrong = rft("debug", "op", "reward_range_filter", "least=1", "--buffer", str(tmp_path / "b"))
    assert (wrong.exit_code, "unknown argument" in wrong.stderr) == (2, True)
    with Buffer(tmp_path / "b", read_only=True) as buffer:
        groups = sorted(set(buffer.read("experiences")["group_id"].to_pylist()))
    more = rft_more("none\n" + "\n".join(groups), "op", "pass_rate_mapper", "--buffer", str(tmp_path / "b"))
    assert [len(json.loads(line)) for line in more.stdout.splitlines()] == [8] * (1 + len(groups))
    assert "has no group none" in more.stderr
    missing = rft("debug", "op", "pass_rate_mapper", "--buffer", str(tmp_path / "b"), "--group", "none")
    assert "has no group none" in missing.stderr


@pytest.mark.slow
def test_engine_plays_a_task_and_shows_tokens_with_logprobs(
    recipe: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    done = rft_more("17x\n3\n", "engine", recipe, "--task", "2", "--rollouts", "2")
    assert done.exit_code == 0, done.stderr
    assert "has no task '17x'" in done.stderr
    asked = [json.loads(line) for line in done.stdout.splitlines()]
    assert [len(rows) for rows in asked] == [2, 2], "each shows its own rows"
    prompts = ["".join(one["text"] for one in rows[0]["tokens"] if one["logprob"] is None) for rows in asked]
    assert ["2 + 1 =" in prompts[0], "3 + 1 =" in prompts[1]] == [True, True]
    assert caplog.text.count("starting 1 explorer(s)") == 1, "the engine is kept"
    for row in chain(*asked):
        sampled = [token for token in row["tokens"] if token["logprob"] is not None]
        assert 1 <= len(sampled) <= 6
        assert all(token["logprob"] <= 0 for token in sampled)
        assert row["row"]["reward_parts"] == {"exact_answer": 0.0, "answer_format": 0.0}
        assert row["verdict"]["verdict"] == "kept"
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["explore", "eval"])
def test_a_model_at_an_endpoint_is_looked_at_by_its_name(recipe: str, tmp_path: Path, mode: str) -> None:
    text = Path(recipe).read_text().replace("mode: online", f"mode: {mode}")
    unread = {"explore": ("evaluation",), "eval": ("selector", "experience_ops")}[mode]
    lines = [line for line in text.splitlines() if not line.startswith(("stages", "model", *unread))]
    lines += ["models: [some/model]"] if mode == "eval" else ["groups: 1", "model: {path: some/model}"]
    with ChatServer(lambda *_: completion(content="#### 1")) as server:
        engine = f"engine: {{use: openai, options: {{base_url: '{server.base_url}'}}}}"
        asked = "\n".join(lines).replace("engine: {use: transformers, max_model_len: 64}", engine)
        Path(recipe).write_text(asked)
        done = rft("debug", "engine", recipe)
        assert done.exit_code == 0, done.stderr
        assert "no tokens: an endpoint gives none" in done.stdout
        assert "#### 1" in done.stdout
    shown = rft("debug", "task", recipe)
    assert shown.exit_code == 0, shown.stderr
    assert "the endpoint gets these messages" in shown.stdout
    assert {body["model"] for body in server.requests} == {"some/model"}


@pytest.mark.slow
def test_a_probe_takes_one_task_through_explorer_operators_and_loss_and_keeps_nothing(
    recipe: str, tmp_path: Path
) -> None:
    uneven = "explorer.reward=[{use: 'tests.rft_data.run.test_extending:uneven', name: exact_answer}]"
    done = rft("recipe", "probe", recipe, uneven, "--task", "1", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert "1 + 1 =" in found["prompt"]["text"]
    assert [row["row"]["member"] for row in found["rows"]] == [0, 1, 2, 3]
    assert {row["verdict"]["verdict"] for row in found["rows"]} == {"kept"}
    assert found["trained"]["rows"] == 4.0
    assert found["trained"]["grad_norm"] > 0
    assert found["trained"]["learning_rate"] == 0.0
    assert found["no_loss"] == ""
    assert {"engine_start", "train"} <= set(found["seconds"])
    assert min(found["memory"].values()) >= 0
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_probe_shows_a_group_that_the_operators_drop(recipe: str) -> None:
    change = "experience_ops=[{reward_range_filter: {min_reward: 9.0}}, {grpo_advantage_mapper: {}}]"
    done = rft("recipe", "explain", recipe, change, "stages.0.max_explored=1", "--probe")
    assert done.exit_code == 0, done.stderr
    assert "micro-batch" in done.stdout.partition("reward_range_filter")[0]
    assert "reward_range_filter" in done.stdout
    assert "no loss: step 0: none of the 1 groups explored for it may be trained" in done.stdout
    refused = rft("recipe", "probe", "gsm8k_data")
    assert "has mode 'data', and a probe explores and computes a loss" in refused.stderr


def test_a_task_is_played_alone_with_its_own_rewards_and_choices(tmp_path: Path) -> None:
    rewards = [{"use": "a", "tasksets": ["x", "y"]}, {"use": "b", "tasksets": ["y"]}, {"use": "c"}]
    assert scoring({"reward": rewards, "max_tokens": 3}, "x") == {
        "reward": [{"use": "a", "tasksets": ["x"]}, {"use": "c"}],
        "max_tokens": 3,
    }
    task = Task("x", ({"role": "user", "content": "1"},), "1", workflow="w", reward="r", metadata={"k": 1})
    section = task_section(task, tmp_path)
    assert (section["workflow"], section["reward"], section["metadata"]) == ("w", "r", ["k"])
    assert json.loads((tmp_path / "task.jsonl").read_text())["k"] == 1
