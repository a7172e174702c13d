"""Environments of OpenEnv that offer tools through MCP, unchanged, against a real server of its package."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from explorers.environments.openenv_tools import OpenEnvTools, SessionLost
from explorers.environments.tools import RefusedCall
from explorers.workflows.make import make_workflow
from rft_data.core.errors import RecipeError
from tests.explorers.environments.openenv_calculator import BROKEN, Calculator, CalculatorClient, served
from tests.explorers.environments.openenv_counter import served as counter_served
from tests.explorers.workflows.test_worlds import NONE, TASK, call, play, rows_of
from tests.waiting import wait_for

CLIENT = "tests.explorers.environments.openenv_calculator:CalculatorClient"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(sessions=2) as address:
        yield address


def settings(url: str, **args: Any) -> dict[str, Any]:
    return {"use": CLIENT, "args": {"args": {"base_url": url}, **args}}


def wait_until_closed() -> None:
    """Wait until the server has no session any more: it ends them soon after the client, or this fails."""
    wait_for(lambda: not Calculator.alive)


@pytest.mark.slow
def test_tools_of_a_server_are_called_until_it_ends_the_episode(tokenizer: Any, url: str) -> None:
    says = [call("add", x=2, y=3), call("fetch", method="GET", deadline_s=1.5), call("submit", number=5)]
    played = play(tokenizer, settings(url), *says, "never said")
    played[2].close()
    (row,) = rows_of(played)
    assert (row.reward, row.reward_parts) == (1.0, {"world": 1.0})
    assert (row.metadata["turns"], row.metadata["tool_calls"], row.metadata["end"]) == (3, 3, "finished")
    assert [one["content"] for one in row.messages if one["role"] == "tool"] == ["5", '["GET", "1.5"]']
    add = {one["function"]["name"]: one["function"] for one in row.tools}["add"]
    assert add["description"] == "Add two numbers."
    assert (add["parameters"]["properties"]["x"]["type"], add["parameters"]["required"]) == ("integer", ["x"])
    assert list(row.token_ids) == played[1].seen[-1] + played[1].said[-1]
    wait_until_closed()


@pytest.mark.slow
def test_what_a_tool_refuses_is_answered_and_counted(tokenizer: Any, url: str) -> None:
    says = [call("add", x=13), call("add", x="one"), call("nope"), "I give up"]
    played = play(tokenizer, settings(url), *says)
    played[2].close()
    (row,) = rows_of(played)
    assert (row.reward, row.unscored_reason is None) == (None, False), "no step gave a reward"
    assert row.metadata["tool_failures"] == {"raised": 2, "unknown": 1}
    answers = [one["content"] for one in row.messages if one["role"] == "tool"]
    assert "13 is bad luck" in answers[0]
    assert "valid integer" in answers[1]
    assert "there is no tool 'nope'; there are: add, fetch, submit" in answers[2]


@pytest.mark.slow
def test_a_session_begins_anew_for_each_rollout(tokenizer: Any, url: str) -> None:
    task = replace(TASK, metadata={"options": {"wanted": 7}})
    workflow = make_workflow(settings(url), tokenizer, NONE)
    session = workflow.first  # type: ignore[attr-defined]
    assert session.reset(seed=1, wanted=7) is None
    session.call("submit", number=7)
    assert (session.done, session.reward()) == (True, 1.0)
    with pytest.raises(RefusedCall, match="has ended"):
        session.call("add", x=1)
    session.reset(seed=1)
    assert (session.done, session.reward(), session.call("add", x=1)) == (False, None, 1)
    workflow.close()  # type: ignore[attr-defined]
    played = play(tokenizer, settings(url), call("submit", number=7), task=task)
    played[2].close()
    assert rows_of(played)[0].reward == 1.0
    wait_until_closed()


@pytest.mark.slow
def test_an_error_of_the_environment_fails_the_rollout_and_is_not_told_to_the_model(
    tokenizer: Any, url: str
) -> None:
    BROKEN.set()
    try:
        outcome, _, workflow = play(tokenizer, settings(url), call("add", x=1), "so be it")
    finally:
        BROKEN.clear()
    workflow.close()
    assert isinstance(outcome, RuntimeError)
    assert "the disk is full" in str(outcome)
    wait_until_closed()


@pytest.mark.slow
def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one(url: str) -> None:
    session = OpenEnvTools(CalculatorClient, {"base_url": url}, "calculator").make()
    session.reset(seed=1)
    session._client._message_timeout = 1e-6
    with pytest.raises(SessionLost, match=r"lost \(TimeoutError: timed out"):
        session.call("add", x=1)
    session._client._message_timeout = 20
    with pytest.raises(SessionLost):
        session.call("add", x=2)
    session.close()
    wait_until_closed()


@pytest.mark.slow
def test_what_cannot_be_offered_ends_the_start(tokenizer: Any, url: str) -> None:
    with pytest.raises(RecipeError, match=r"tools of '.*CalculatorClient' cannot be listed \(SessionLost: "):
        make_workflow(settings("http://127.0.0.1:1"), tokenizer, NONE)
    with counter_served(sessions=1) as other, pytest.raises(RecipeError, match="cannot be listed"):
        make_workflow(settings(other), tokenizer, NONE)
    as_environment = {"use": "environment", "args": {"environment": CLIENT, "args": {"base_url": url}}}
    with pytest.raises(RecipeError, match="offers tools; name it as 'tools' of the workflow tools"):
        make_workflow(as_environment, tokenizer, NONE)
