"""Tools from classes: schemas and checks at the start, calls that are answered whatever happens."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from explorers.conversations.replies import ToolCall
from explorers.environments.calls import ToolCalls
from explorers.environments.pool import EnvironmentPool, PoolPlan
from explorers.environments.tools import ToolClass
from rft_data.core.errors import RecipeError
from rft_data.core.rows import Task
from rft_data.core.words import ToolFailure
from tests.explorers.environments import worlds
from tests.waiting import LIMIT_S, came

TASK = Task("sums", ({"role": "user", "content": "Go."},), answer="3", metadata={"unit": "apples"})


def tool_class(kind: Any, **args: Any) -> ToolClass:
    return ToolClass(kind, args, "mine")


def test_schemas_come_from_types_and_docstrings() -> None:
    tools = tool_class(worlds.Desk)
    assert tools.names == {"add", "wait", "meet", "block", "fail"}
    assert tools.schemas[0] == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add a number to the total.",
            "parameters": {
                "type": "object",
                "properties": {
                    "number": {"type": "integer", "description": "what is added."},
                    "times": {"type": "integer", "description": "how often."},
                },
                "required": ["number"],
            },
            "return": {"type": "integer"},
        },
    }
    assert (tools.reward, tools.resets) == ("reward", True)
    assert tools.reset_arguments(TASK) == {"task": TASK}


def test_a_trl_environment_class_is_taken_as_it_is() -> None:
    tools = tool_class(worlds.TrlCounter)
    assert tools.names == {"increment"}
    assert (tools.reward, tools.resets) == ("get_reward", True)
    environment = tools.make()
    assert environment.reset(**tools.reset_arguments(TASK)) == " Count to 3, apples."
    assert environment.increment(step=3) == "counter: 3"
    assert environment.get_reward() == 1.0


@pytest.mark.parametrize(
    ("kind", "args", "says"),
    [
        (worlds.Undocumented, {}, "Undocumented.add cannot be offered .*'Args:' section"),
        (worlds.Untyped, {}, "Untyped.add cannot be offered .*type"),
        (worlds.Greedy, {}, r"Greedy.add has the \* parameter 'numbers'"),
        (worlds.Empty, {}, "no public method that could be a tool"),
        (worlds.TwoRewards, {}, "'reward' and 'get_reward'; keep one"),
        (worlds.NeedyReward, {}, "NeedyReward.reward needs arguments"),
        (worlds.Desk, {"begin": 1}, r"does not take the arguments \['begin'\]"),
        (len, {}, "wanted a class"),
    ],
)
def test_what_cannot_be_offered_is_one_error_at_the_start(kind: Any, args: dict[str, Any], says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        tool_class(kind, **args)


def call(name: str, place: int = 0, /, **arguments: Any) -> ToolCall:
    return ToolCall(f"c{place}", name, arguments, "")


async def answered(
    *turns: list[ToolCall], deadline_s: float = 5.0
) -> tuple[list[list[dict[str, Any]]], ToolCalls, worlds.Desk]:
    pool = EnvironmentPool("desk", tool_class(worlds.Desk).make, PoolPlan(), reusable=True)
    async with pool.lend() as lent:
        calls = ToolCalls(tool_class(worlds.Desk), lent, deadline_s)
        messages = [await calls.answer(turn) for turn in turns]
        return messages, calls, lent.environment


def test_calls_of_a_turn_run_together_and_answer_in_their_order() -> None:
    turn = [call("meet", 1), call("add", 2, number=2), call("add", 3, number=2, times=3), call("meet", 4)]
    [messages], calls, desk = asyncio.run(answered(turn))
    assert [one["content"] for one in messages] == ["met", "2", "8", "met"]
    assert messages[1] == {"role": "tool", "tool_call_id": "c2", "name": "add", "content": "2"}
    assert (calls.made, calls.failures) == (4, {})
    assert len(desk.threads) == 1


def test_calls_that_cannot_be_played_are_answered_and_counted() -> None:
    turn = [
        call("subtract", number=1),
        ToolCall("c", "", None, "<tool_call>{</tool_call>"),
        call("add", number="1"),
        call("add", number=True),
        call("add"),
        call("add", number=1, base=2),
        call("fail"),
        call("wait", seconds=9),
        call("add", number=5),
    ]
    [messages], calls, _ = asyncio.run(answered(turn, deadline_s=0.05))
    errors = [json.loads(one["content"])["error"] for one in messages[:-1]]
    assert errors[0] == "there is no tool 'subtract'; there are: add, block, fail, meet, wait"
    assert errors[1] == "the call is not valid JSON with a name and arguments"
    assert errors[2:4] == [f'add: number is {said}; wanted "integer"' for said in ('"1"', "true")]
    assert errors[4] == "add: missing a required argument: 'number'"
    assert errors[5] == "add: got an unexpected keyword argument 'base'"
    assert errors[6:] == ["ZeroDivisionError: no such sum", "wait took longer than 0.05 s"]
    assert messages[-1]["content"] == "5"
    assert calls.failures == {
        ToolFailure.UNKNOWN: 1,
        ToolFailure.MALFORMED: 5,
        ToolFailure.RAISED: 1,
        ToolFailure.LATE: 1,
    }


def test_a_tool_that_blocks_is_late_and_its_instance_takes_no_call_until_it_returns() -> None:
    async def blocked() -> list[str]:
        pool = EnvironmentPool("desk", tool_class(worlds.Desk).make, PoolPlan(), reusable=True)
        async with pool.lend() as lent:
            calls = ToolCalls(tool_class(worlds.Desk), lent, 0.05)
            said = await calls.answer([call("block", seconds=LIMIT_S), call("add", number=1)])
            worlds.Desk.returns.set()
            await came(lambda: not lent.thread.busy)
            worlds.Desk.returns.clear()
            calls._deadline_s = LIMIT_S
            said += await calls.answer([call("add", number=2)])
            assert calls.failures == {ToolFailure.LATE: 2}
        return [one["content"] for one in said]

    late, refused, played = asyncio.run(blocked())
    assert "block took longer than 0.05 s" in late
    assert "has not returned yet" in refused
    assert played == "2"
