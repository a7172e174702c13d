"""The prompt that is shown and counted of a task is the one with which its workflow begins."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rft_data.core.errors import RecipeError
from rft_data.core.rows import Task
from rft_data.recipe import load_recipe
from rft_data.recipe.kinds import with_explorers
from rft_data.run.debug.first_prompts import FirstPrompts
from tests.explorers.conversations.conftest import trained_tokenizer
from tests.explorers.conversations.families import QWEN25
from tests.explorers.environments import worlds
from tests.explorers.workflows import verifiers_worlds
from tests.explorers.workflows.test_program import AGENT
from tests.explorers.workflows.test_worlds import TASK, play
from tests.rft_data.run.test_online import write_recipe

WORLDS = "tests.explorers.environments.worlds"
DESK = ["add", "block", "fail", "meet", "wait"]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    made = trained_tokenizer()
    made.chat_template = QWEN25
    return made


def prompts(folder: Path, workflow: dict[str, Any], tokenizer: Any) -> FirstPrompts:
    recipe = with_explorers(load_recipe(write_recipe(folder)))
    assert recipe is not None
    played = recipe.explorer.workflow.model_copy(update={"args": {}, **workflow})
    explorer = recipe.explorer.model_copy(update={"workflow": played})
    return FirstPrompts(recipe.model_copy(update={"explorer": explorer}), tokenizer)


def verifiers_task(name: str) -> Task:
    return verifiers_worlds.tasks(name)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workflow", "task", "tools"),
    [
        ({"use": "single_turn", "args": {"system": "Be short."}}, TASK, []),
        ({"use": f"{WORLDS}:twice"}, TASK, []),
        ({"use": f"{WORLDS}:Desk"}, TASK, DESK),
        ({"use": "environment", "args": {"environment": "FrozenLake-v1"}}, TASK, []),
        (verifiers_worlds.settings("calculator"), "calculator", ["add"]),
        (verifiers_worlds.settings("hints"), "hints", []),
        ({"use": "program", "args": {"command": ["python", AGENT, "two_turns"]}}, TASK, []),
    ],
)
def test_a_prompt_is_the_one_that_an_explorer_sends(
    workflow: dict[str, Any], task: Any, tools: list[str], tokenizer: Any, tmp_path: Path
) -> None:
    task = verifiers_task(task) if isinstance(task, str) else task
    _, engine, _ = play(tokenizer, workflow, *["5"] * 9, task=task)
    with closing(prompts(tmp_path, workflow, tokenizer)) as asked:
        found = [asked.prompt(task), asked.prompt(task)]
    for one in found:
        assert list(one.ids) == engine.seen[0]
        assert one.text == tokenizer.decode(one.ids)
        assert [tool["function"]["name"] for tool in one.tools or []] == tools
        assert str(one.messages[-1]["content"]) in one.text


@pytest.mark.slow
def test_nothing_is_left_of_the_worlds_that_began(tokenizer: Any, tmp_path: Path) -> None:
    worlds.Desk.made.clear()
    worlds.Desk.closed.clear()
    with closing(prompts(tmp_path, {"use": f"{WORLDS}:Desk"}, tokenizer)) as asked:
        asked.prompt(TASK)
        asked.prompt(TASK)
    assert (len(worlds.Desk.made), len(worlds.Desk.closed)) == (1, 1), "one serves them all"


def test_a_model_at_an_endpoint_is_given_messages_and_tools(tmp_path: Path) -> None:
    with closing(prompts(tmp_path, {"use": f"{WORLDS}:Desk"}, None)) as asked:
        found = asked.prompt(TASK)
    assert [tool["function"]["name"] for tool in found.tools or []] == DESK
    assert (found.ids, found.messages[0]["role"]) == ((), "user")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "said"),
    [("silent", "raised RowError: nothing was"), ("Unlucky", "raised ResetFailed")],
)
def test_a_world_that_does_not_begin_is_told(world: str, said: str, tokenizer: Any, tmp_path: Path) -> None:
    with (
        closing(prompts(tmp_path, {"use": f"{WORLDS}:{world}"}, tokenizer)) as asked,
        pytest.raises(RecipeError, match=f"cannot begin a rollout of task '.*': it {said}"),
    ):
        asked.prompt(TASK)
