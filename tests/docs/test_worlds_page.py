"""The examples of docs/worlds.md are whole: each is saved as it stands, named as it says, and played."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from explorers.rewards.scoring import Rewards
from explorers.workflows.make import make_workflow
from rft_data.core.lookup import load
from rft_data.core.protocols import RolloutContext, Sampling
from rft_data.core.rows import Experience, Task
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


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: one["use"])
def test_an_example_of_the_page_is_a_world(
    tokenizer: Any, settings: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    if settings["use"] == "./counter.py:CounterClient":
        address = request.getfixturevalue("counter_server")
        settings = {**settings, "args": {**settings["args"], "args": {"base_url": address}}}
    workflow: Any = make_workflow(settings, tokenizer, Rewards({}, {}))
    says = SAYS[settings["use"]]
    engine = SayingEngine(tokenizer, [f"{text}<|im_end|>" for text in says])
    task = Task("tasks", ({"role": "user", "content": "Play."},), answer="37")
    ctx = RolloutContext("run", "g", 0, 0, "e", "rollout", Sampling(64))
    rows: list[Experience] = asyncio.run(workflow.run(task, engine, ctx))
    assert rows[-1].reward == 1.0
    assert (rows[-1].metadata["end"], rows[-1].metadata["turns"]) == ("finished", len(says))
    workflow.close()
