"""Clients of OpenEnv, unchanged, against a real server of its package."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from openenv.core import GenericEnvClient

from explorers.environments.openenv_text import OpenEnvText
from explorers.limits import Limits
from explorers.meter import Meter
from explorers.workflows.make import make_workflow
from explorers.workflows.rollouts import Rollouts
from rft_data.core.engine import Completion, Sampling
from rft_data.core.errors import RecipeError
from tests.explorers.conversations.conftest import SayingEngine
from tests.explorers.environments.openenv_counter import Add, Counter, CounterClient, Untyped, served
from tests.explorers.workflows.test_worlds import CTX, NONE, TASK, play, rows_of
from tests.waiting import wait_for

CLIENT = "tests.explorers.environments.openenv_counter:CounterClient"
SEEDED = replace(TASK, metadata={"seed": 7})


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(sessions=3) as address:
        yield address


def settings(url: str, **args: Any) -> dict[str, Any]:
    return {"use": CLIENT, "args": {"args": {"base_url": url}, **args}}


def wait_until_closed() -> None:
    """Wait until the server has no session any more: it ends them soon after the client, or this fails."""
    wait_for(lambda: not Counter.alive)


@pytest.mark.slow
def test_a_client_is_played_by_its_import_path(tokenizer: Any, url: str) -> None:
    played = play(tokenizer, settings(url), "I add 4", "no idea", "4 and then 6", task=SEEDED)
    (row,) = rows_of(played)
    assert (row.reward, row.reward_parts) == (1.0, {"world": 1.0})
    assert row.metadata["invalid_actions"] == 1
    users = [one["content"] for one in row.messages if one["role"] == "user"]
    assert users[0] == "How many?\n\nseed 7: 0 of 10"
    assert users[1] == "4 of 10"
    assert users[2] == "That is no action; wanted a value for 'number'.\n4 of 10"
    assert list(row.token_ids) == played[1].seen[-1] + played[1].said[-1]
    played[2].close()
    wait_until_closed()


@pytest.mark.slow
def test_a_group_begins_in_one_state_and_options_reach_the_server(tokenizer: Any, url: str) -> None:
    task = replace(TASK, metadata={"options": {"goal": 3}})
    firsts = set()
    for _ in range(2):
        played = play(tokenizer, settings(url, shape="step_wise"), "1", "2", task=task)
        rows = rows_of(played)
        played[2].close()
        assert [row.reward for row in rows] == [0.0, 1.0]
        firsts.add((rows[0].messages[0]["content"], rows[0].environment))
    assert len(firsts) == 1
    wait_until_closed()


@pytest.mark.slow
def test_no_reward_before_the_end_is_a_zero_and_none_at_all_is_none(tokenizer: Any, url: str) -> None:
    played = play(tokenizer, settings(url, turns=1), "4")
    played[2].close()
    (row,) = rows_of(played)
    assert (row.reward, row.metadata["end"]) == (0.0, "turns"), "it has not reached the goal"
    silent = replace(TASK, metadata={"options": {"silent": True}})
    played = play(tokenizer, settings(url), "none", "10", task=silent)
    played[2].close()
    (row,) = rows_of(played)
    assert row.reward is None
    assert row.unscored_reason == "the world gave no reward (its end: finished), and the recipe has none"


def test_an_error_of_the_server_fails_the_rollout_and_is_no_zero(tokenizer: Any, url: str) -> None:
    outcome, _, workflow = play(tokenizer, settings(url), "13")
    assert isinstance(outcome, RuntimeError)
    assert "13 is bad luck" in str(outcome)
    workflow.close()
    wait_until_closed()  # a failed rollout ends its session


def test_cancelled_rollouts_end_their_sessions(tokenizer: Any, url: str) -> None:
    class Slow(SayingEngine):
        async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
            await asyncio.sleep(30)
            raise AssertionError

    workflow: Any = make_workflow(settings(url, pool={"size": 3}), tokenizer, NONE)
    rollouts = Rollouts(Slow(tokenizer, []), workflow, Limits(rollout_deadline_s=0.2), Meter())

    async def all_late() -> list[Any]:
        found = await asyncio.gather(*(rollouts.play(TASK, CTX) for _ in range(6)))
        while workflow.pool.open:
            await asyncio.sleep(0.01)
        return found

    assert [type(one) for one in asyncio.run(all_late())] == [TimeoutError] * 6
    assert workflow.metrics()["environment_leaks"] == 0
    wait_until_closed()


@pytest.mark.slow
def test_a_full_server_is_a_connection_that_may_pass(tokenizer: Any, url: str) -> None:
    open_ones = [OpenEnvText(CounterClient(base_url=url)) for _ in range(3)]
    for one in open_ones:
        one.reset(TASK)
    with pytest.raises(ConnectionError, match=r"ended the session .*'pool: \{size: N\}' at most its max"):
        OpenEnvText(CounterClient(base_url=url)).reset(TASK)
    timer = threading.Timer(0.1, open_ones[0].close)
    timer.start()
    played = play(tokenizer, settings(url), "10")
    assert rows_of(played)[0].reward == 1.0, "it was played again when a session was free"
    for one in (*open_ones, played[2]):
        one.close()
    wait_until_closed()


def test_a_server_that_is_away_ends_the_start(tokenizer: Any) -> None:
    with pytest.raises(RecipeError, match=r"cannot be made \(ConnectionError: Failed to connect to ws://127"):
        make_workflow(settings("http://127.0.0.1:1"), tokenizer, NONE)


def test_replies_become_the_clients_actions(url: str) -> None:
    env = OpenEnvText(CounterClient(base_url=url))
    assert env.action("first 3, then -4") == Add(number=-4)
    assert env.action('so: {"number": 5, "why": "halfway"}') == Add(number=5, why="halfway")
    assert env.action('{"number": "many"}') is None
    assert env.action("none") is None
    words = OpenEnvText(CounterClient(base_url=url), actions={"few": 2, "many": 8})
    assert words.action("Few or MANY?") == Add(number=8)
    assert words.action("5") is None
    assert words.wanted == "one of: few, many"
    marked = OpenEnvText(CounterClient(base_url=url), pattern=r"<(\d+)>")
    assert marked.action("<6> or 7") == Add(number=6)
    for one in (env, words, marked):
        one.close()
    wait_until_closed()


def test_a_client_of_json_objects_takes_json_objects(url: str) -> None:
    env = OpenEnvText(GenericEnvClient(base_url=url))
    assert env.action('```json\n{"number": 5}\n```') == {"number": 5}
    assert env.action("5") is None
    env.reset(TASK)
    assert env.step({"number": 5}).text == "5 of 10"
    env.close()
    with pytest.raises(RecipeError, match=r"'pattern' are for actions that need one field"):
        OpenEnvText(GenericEnvClient(base_url=url), pattern="x")
    wait_until_closed()


def test_a_client_without_a_type_of_action_is_refused(url: str) -> None:
    Untyped.__abstractmethods__ = frozenset()
    with pytest.raises(RecipeError, match="Untyped does not say what its actions are"):
        OpenEnvText(Untyped(base_url=url))
