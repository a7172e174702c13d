"""The examples of docs/worlds.md are whole: each is saved as it stands, named as it says, and played."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from explorers.rewards.rules import ExactAnswer
from explorers.rewards.scoring import Rewards
from explorers.workflows.make import make_workflow
from rft_data.core.engine import Sampling
from rft_data.core.lookup import load
from rft_data.core.rows import Experience, Task
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import RolloutContext
from tests.docs.blocks import python_block, python_blocks, run_block
from tests.explorers.conversations.conftest import SayingEngine, trained_tokenizer
from tests.explorers.conversations.families import QWEN25
from tests.explorers.environments.openenv_counter import serving

PAGE = (Path(__file__).parents[2] / "docs" / "worlds.md").read_text()
SETTINGS = [
    YAML(typ="safe").load(block)["workflow"]
    for block in re.findall(r"```yaml\n(workflow:.*?)```", PAGE, re.S)
]
BUY = '<tool_call>\n{"name": "buy", "arguments": {"fruit": "apples", "number": 5}}\n</tool_call>'
ADD = '<tool_call>\n{"name": "add", "arguments": {"x": 0, "y": 37}}\n</tool_call>'
SAYS = {
    "./guess.py:play": ["50", "30", "37"],
    "./shop.py:Shop": [BUY, "done"],
    "environment": ["down", "down", "right", "right", "down", "right"],
    "./corridor.py:Corridor": ["on"] * 3,
    "./counter.py:CounterClient": ["I add 4.", "6"],
    "verifiers": [ADD, "37"],
}


@pytest.fixture
def tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """And the page's files in the working directory."""
    for block in re.findall(r"```python\n(# (\w+\.py)\b.*?)```", PAGE, re.S):
        (tmp_path / block[1]).write_text(block[0])
    monkeypatch.chdir(tmp_path)
    made = trained_tokenizer()
    made.chat_template = QWEN25
    return made


@pytest.fixture
def counter_server(tokenizer: Any) -> Iterator[str]:
    with serving(load("./counter.py:app", "server")) as address:
        yield address


def test_every_example_is_played() -> None:
    assert [one["use"] for one in SETTINGS] == list(SAYS)
    assert all(re.match(r"# \w+\.py\b", block) for block in python_blocks("worlds.md"))


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: one["use"])
def test_an_example_of_the_page_is_a_world(
    tokenizer: Any, settings: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    if settings["use"] == "./counter.py:CounterClient":
        address = request.getfixturevalue("counter_server")
        settings = {**settings, "args": {**settings["args"], "args": {"base_url": address}}}
    says = SAYS[settings["use"]]
    rows = played(tokenizer, settings, says)
    assert rows[-1].reward == 1.0
    assert (rows[-1].metadata["end"], rows[-1].metadata["turns"]) == ("finished", len(says))


def played(
    tokenizer: Any, settings: dict[str, Any], says: list[str], rewards: Rewards | None = None
) -> list[Experience]:
    """The rows of a rollout in which the model says this."""
    workflow: Any = make_workflow(settings, tokenizer, Rewards({}, {}) if rewards is None else rewards)
    engine = SayingEngine(tokenizer, [f"{text}<|im_end|>" for text in says])
    task = Task("tasks", ({"role": "user", "content": "Play."},), answer="37")
    ctx = RolloutContext("run", "g", 0, 0, "e", "rollout", Sampling(64))
    rows: list[Experience] = asyncio.run(workflow.run(task, engine, ctx))
    if hasattr(workflow, "close"):
        workflow.close()
    return rows


PROGRAM = {"use": "program", "args": {"command": [sys.executable, "agent.py"]}}
RIGHT = ("exact_answer", ExactAnswer())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "settings", "says"),
    [
        (python_block("README.md", "async def play"), {"use": "./guess.py:play"}, ["36", "37"]),
        (python_block("agents.md", "import json, os"), PROGRAM, ["37"]),
        (python_block("agents.md", "async def agent"), {"use": "./agent.py:agent"}, ["36", "37"]),
    ],
    ids=["README", "program", "function"],
)
def test_a_file_of_another_page_is_a_world(
    tokenizer: Any, code: str, settings: dict[str, Any], says: list[str]
) -> None:
    Path(re.findall(r"^# (\w+\.py)", code)[0]).write_text(code)
    rows = played(tokenizer, settings, says)
    assert (rows[-1].reward, rows[-1].metadata["turns"]) == (1.0, len(says))


def test_a_class_of_the_page_of_explorers_is_a_workflow(tokenizer: Any) -> None:
    Path("ask.py").write_text(python_block("explorers.md", "class Ask"))
    (row,) = played(tokenizer, {"use": "./ask.py:Ask"}, ["#### 37"], Rewards({RIGHT[0]: 1.0}, dict([RIGHT])))
    assert (row.reward, row.completion_text) == (1.0, "#### 37")
    assert len(row.token_ids or ()) == len(row.action_mask or ()) == len(row.logprobs or ())


def test_the_page_of_conversations_has_a_talk_of_two_turns(tokenizer: Any) -> None:
    Path("talk.py").write_text(python_block("conversations.md", "def talk"))
    (row,) = played(tokenizer, {"use": "./talk.py:talk"}, ["one", "two"])
    assert [one["content"] for one in row.messages] == ["Play.", "one", "And then?", "two"]


def test_the_rewards_of_the_page_of_rewards(tokenizer: Any) -> None:
    async def ask_my_service(task: Task, completion: str) -> float:
        raise ConnectionError("no route")

    found = run_block("rewards.md", "def used_tools", ask_my_service=ask_my_service)
    Path("talk.py").write_text(python_block("conversations.md", "def talk"))
    names = ("brief", "used_tools", "shortest")
    rewards = Rewards(dict.fromkeys(names, 1.0), {name: found[name] for name in names})
    (row,) = played(tokenizer, {"use": "./talk.py:talk"}, ["one", "two"], rewards)
    assert row.reward_parts["brief"] == 1.0
    graded = asyncio.run(found["Graded"]()(Task("t", ()), ""))
    assert (graded.reason, graded.cause) == ("the grader is away", UnscoredCause.INFRASTRUCTURE)
