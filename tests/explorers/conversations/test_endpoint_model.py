"""Rollouts on a model behind an endpoint: messages as rows, its failures, and the traps of endpoints."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from explorers.conversations.endpoint_model import EndpointModel
from explorers.engines.openai_engine import OpenaiEngine
from explorers.limits import Limits
from explorers.meter import Meter, metered
from explorers.rewards.scoring import Rewards, make_rewards
from explorers.workflows.make import make_workflow
from explorers.workflows.rollouts import Rollouts
from rft_data.buffer import Buffer
from rft_data.core.codec import to_table
from rft_data.core.engine import Sampling
from rft_data.core.errors import RecipeError, RowError
from rft_data.core.rows import Experience, Task
from rft_data.core.schema import INCOMING
from rft_data.core.workflow import RolloutContext
from tests.explorers.conversations.conftest import trained_tokenizer
from tests.explorers.conversations.families import QWEN25
from tests.explorers.engines.chat_server import ChatServer, calling, completion, engine_at
from tests.explorers.engines.test_openai_engine import quick_and_direct
from tests.ops.judge_server import Answer, status
from trainers.offline.answers import rendered_row

PLACE = "tests.explorers.environments.worlds"
NONE = Rewards({}, {})
TASK = Task("sums", ({"role": "user", "content": "How many?"},), answer="5")
CTX = RolloutContext("run", "g", 2, 0, "e0", "rollout", Sampling(64))
DESK = {"use": f"{PLACE}:Desk", "args": {}}
Says = Callable[[dict[str, Any], int], Answer]

__all__ = ["quick_and_direct"]


def play(
    folder: Path, says: Says, settings: dict[str, Any], rewards: Rewards = NONE, **limits: Any
) -> tuple[list[Experience] | Exception, ChatServer, Meter]:
    """One rollout on an endpoint, with its deadline and checks."""
    meter = Meter()
    with ChatServer(says) as server:
        engine = engine_at(server, folder, limits={"retries": 0})
        workflow = make_workflow(settings, None, rewards)
        rollouts = Rollouts(metered(engine, meter), workflow, Limits(**limits), meter)

        async def one() -> list[Experience] | Exception:
            try:
                return await rollouts.play(TASK, CTX)
            finally:
                engine.close()

        outcome = asyncio.run(one())
    return outcome, server, meter


def one_row(outcome: list[Experience] | Exception) -> Experience:
    assert isinstance(outcome, list), outcome
    [row] = outcome
    return row


def in_turn(*answers: Answer) -> Says:
    return lambda _, number: answers[number]


def test_images_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    outcome, server, _ = play(tmp_path, in_turn(completion(content="red")), {"use": f"{PLACE}:shows"})
    assert isinstance(outcome, RowError)
    assert "the engine 'openai' sends none; use engine vllm" in str(outcome)
    assert server.requests == []


def test_one_question_is_a_row_of_messages_that_says_who_answered(tmp_path: Path) -> None:
    rewards = make_rewards([{"use": "exact_answer"}], Limits(), Meter())
    settings = {"use": "single_turn", "args": {"system": "Be brief."}}
    says = in_turn(completion(content="#### 5", reasoning_content="one more than four"))
    outcome, server, meter = play(tmp_path, says, settings, rewards)
    row = one_row(outcome)
    assert [message["role"] for message in row.messages] == ["system", "user", "assistant"]
    assert row.messages[2] == {
        "role": "assistant",
        "content": "#### 5",
        "reasoning_content": "one more than four",
    }
    assert (row.token_ids, row.action_mask, row.logprobs, row.version_min) == (None, None, None, None)
    assert (row.prompt_messages, row.completion_text, row.finish_reason, row.reward) == (
        2,
        "#### 5",
        "stop",
        1.0,
    )
    assert row.sampling == {
        "max_tokens": 64,
        "temperature": 1.0,
        "endpoint": {"base_url": server.base_url, "model": "m", "served_by": "m-2026-11"},
    }
    assert row.metadata == {"usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    assert meter.take()["tokens"] == 3


@pytest.mark.slow
def test_tools_are_called_and_the_conversation_is_one_row(tmp_path: Path) -> None:
    says = in_turn(
        calling(("add", {"number": 2}), ("add", "{no json"), content="Let me see."),
        calling(("add", {"number": 3})),
        completion(content="5"),
    )
    outcome, server, _ = play(tmp_path, says, DESK)
    row = one_row(outcome)
    roles = [message["role"] for message in row.messages]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]
    assert row.prompt_messages == 1
    assert row.messages[1]["tool_calls"][0]["function"]["arguments"] == {"number": 2}
    assert [row.messages[place]["content"] for place in (2, 5)] == ["2", "5"]
    assert "is not valid JSON" in json.loads(row.messages[3]["content"])["error"]
    assert row.metadata["tool_failures"] == {"malformed": 1}
    assert row.metadata["usage"] == {"prompt_tokens": 21, "completion_tokens": 9}
    assert row.tools is not None
    second = server.requests[1]["messages"]
    answered = [message["tool_call_id"] for message in second if message["role"] == "tool"]
    asked = second[1]["tool_calls"]
    assert answered == [call["id"] for call in asked] == ["srv-0", "srv-1"]
    assert [call["function"]["arguments"] for call in asked] == ['{"number": 2}', "{no json"]


@pytest.mark.slow
def test_a_teachers_conversation_is_rendered_for_the_model_that_learns_from_it(tmp_path: Path) -> None:
    says = in_turn(calling(("add", {"number": 2}), content="Let me see."), completion(content="It is 2."))
    outcome, _, _ = play(tmp_path, says, DESK)
    tokenizer = trained_tokenizer()
    tokenizer.chat_template = QWEN25
    [stored] = to_table([one_row(outcome)], INCOMING).to_pylist()
    answer = rendered_row(tokenizer, stored)
    learned = tokenizer.decode([i for i, mask in zip(answer.ids, answer.mask, strict=True) if mask])
    assert learned.startswith("Let me see.\n<tool_call>")
    assert '"arguments": {"number": 2}' in learned
    assert learned.endswith("It is 2.<|im_end|>\n")
    assert "tool_response" not in learned
    assert "tool_response" in tokenizer.decode(answer.ids)


@pytest.mark.slow
def test_rows_of_an_endpoint_are_stored_and_a_rollout_that_lost_its_tokens_is_not(tmp_path: Path) -> None:
    """agent-lightning#262, #44, #250, sglang#18378: ids got lost on the way and nobody was told."""
    outcome, _, _ = play(tmp_path, in_turn(completion(content="5")), {"use": "single_turn", "args": {}})
    row = one_row(outcome)
    with Buffer(tmp_path / "buffer") as buffer:
        assert buffer.append([row]).seqs == (0,)
        lost = Experience(**{**{n: getattr(row, n) for n in row.__slots__}, "sampling": {}, "member": 3})
        assert buffer.append([lost]).seqs == (None,)
        [kept] = buffer.read("quarantine", ["reason"]).to_pylist()
    assert "a rollout needs token_ids, action_mask and logprobs" in kept["reason"]


@pytest.mark.slow
def test_an_agent_that_writes_history_in_its_own_way_makes_no_false_forks(tmp_path: Path) -> None:
    """slime#2288, NeMo-Gym#1787: eight rollouts became 64 samples."""

    def says(body: dict[str, Any], number: int) -> Answer:
        thought = {"reasoning_content": f"why {number}"}
        answer = calling(("add", {"number": number, "times": 2}), content="fine.")
        answer[1]["choices"][0]["message"] |= thought
        return answer

    async def wander(engine: OpenaiEngine) -> list[Experience]:
        model = EndpointModel(engine, Sampling(16))
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
        for turn in range(6):
            reply = await model.chat(messages)
            [one] = reply.message["tool_calls"]
            text = json.dumps(one["function"]["arguments"], indent=1)
            call = {"id": f"toolu_{turn}", "index": 0, "function": {"name": "add", "arguments": text}}
            parts = [{"type": "text", "text": reply.content, "cache_control": None}]
            said = {"role": "assistant", "content": parts, "tool_calls": [{**call, "type": "function"}]}
            messages += [said, {"role": "tool", "tool_call_id": f"toolu_{turn}", "content": str(turn)}]
        return model.rows(TASK, CTX)

    with ChatServer(says) as server:
        engine = engine_at(server, tmp_path)
        [row] = asyncio.run(wander(engine))
    assert [message["role"] for message in row.messages] == ["user", *["assistant", "tool"] * 5, "assistant"]
    assert "history_drift" not in row.metadata
    assert row.messages[1]["reasoning_content"] == "why 0"
    last = server.requests[-1]["messages"]
    assert [one["tool_call_id"] for one in last if one["role"] == "tool"] == [
        call["id"] for one in last if one["role"] == "assistant" for call in one["tool_calls"]
    ]


def test_an_answer_that_the_agent_rewrote_is_a_fork_and_counted(tmp_path: Path) -> None:
    async def rewrite(engine: OpenaiEngine) -> EndpointModel:
        model = EndpointModel(engine, Sampling(16))
        start = [{"role": "user", "content": "Go."}]
        await model.chat(start)
        await model.chat([*start, {"role": "assistant", "content": "no"}, {"role": "user", "content": "On."}])
        return model

    with ChatServer(lambda *_: completion(content="ok")) as server:
        model = asyncio.run(rewrite(engine_at(server, tmp_path)))
    rows = model.rows(TASK, CTX)
    assert [row.metadata["history_drift"] for row in rows] == [{"forked": 1}] * 2
    assert rows[1].messages[1]["content"] == "no"


@pytest.mark.slow
def test_branches_and_steps_are_rows_whose_shared_turns_are_answered_for_once(tmp_path: Path) -> None:
    async def branch(engine: OpenaiEngine) -> EndpointModel:
        model = EndpointModel(engine, Sampling(16))
        start = [{"role": "user", "content": "Go."}]
        first = await model.chat(start)
        for way in ("left", "right"):
            await model.chat([*start, first.message, {"role": "user", "content": way}])
        await model.chat(
            [{"role": "user", "content": "Other."}, {"role": "assistant", "content": "x"}, *start]
        )
        return model

    with ChatServer(lambda *_: completion(content="ok")) as server:
        model = asyncio.run(branch(engine_at(server, tmp_path)))
    rows, steps = model.rows(TASK, CTX), model.rows(TASK, CTX, step_wise=True)
    assert [(row.prompt_messages, row.metadata["usage"]["completion_tokens"]) for row in rows] == [
        (1, 6),
        (3, 3),
        (3, 3),
    ]
    assert [(row.turn, row.prompt_messages) for row in steps] == [(0, 1), (1, 3), (2, 3), (3, 3)]
    assert [len(row.messages) for row in steps] == [2, 4, 4, 4]


def test_a_budget_without_counts_is_spent_by_what_was_allowed(tmp_path: Path) -> None:
    settings = {**DESK, "args": {"budget": 70}}

    def says(_: dict[str, Any], number: int) -> Answer:
        answer = calling(("add", {"number": number}))
        del answer[1]["usage"]
        return answer

    outcome, server, _ = play(tmp_path, says, settings)
    row = one_row(outcome)
    assert (row.metadata["end"], [body["max_tokens"] for body in server.requests]) == ("budget", [64, 6])


@pytest.mark.parametrize(
    ("failure", "end"),
    [((400, {"error": {"message": "This model's maximum context length is 9"}}, {}), "context")],
)
def test_a_full_context_ends_the_rollout_and_its_turns_count(
    tmp_path: Path, failure: Answer, end: str
) -> None:
    outcome, _, _ = play(tmp_path, in_turn(calling(("add", {"number": 2})), failure), DESK)
    row = one_row(outcome)
    assert (row.metadata["end"], row.messages[-1]["role"]) == (end, "assistant")


@pytest.mark.slow
def test_an_endpoint_that_is_down_is_no_zero(tmp_path: Path) -> None:
    rewards = make_rewards([{"use": "exact_answer"}], Limits(), Meter())
    settings = {"use": "single_turn", "args": {}}
    back = in_turn(status(503), completion(content="#### 5"))
    outcome, _, meter = play(tmp_path, back, settings, rewards, retries=1)
    assert one_row(outcome).reward == 1.0
    assert meter.take()["rollouts_retried"] == 1
    outcome, _, meter = play(tmp_path, lambda *_: status(503), settings, rewards, retries=1)
    assert isinstance(outcome, ConnectionError)
    counts = meter.take()
    assert (counts["rollouts_failed"], counts["rollouts_failed/infrastructure"]) == (1, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use": "single_turn", "args": {"chat_template_kwargs": {"x": 1}}}, "rendered here"),
        ({**DESK, "args": {"chat_template_kwargs": {"x": 1}}}, "rendered here"),
    ],
)
def test_arguments_of_a_template_that_nobody_renders_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        make_workflow(settings, None, NONE)


def test_a_function_that_continues_texts_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    async def completes() -> None:
        engine = engine_at("http://127.0.0.1:9/v1", tmp_path)
        await EndpointModel(engine, Sampling(8)).complete("Once upon")

    with pytest.raises(RecipeError, match=r"use `model\.chat`"):
        asyncio.run(completes())
