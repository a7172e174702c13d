"""Environments of the real package verifiers, unchanged: exact rows, its rubric, and no fake zeros."""

from __future__ import annotations

import asyncio
import copy
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from explorers.limits import Limits
from explorers.meter import Meter
from explorers.rewards.rules import ExactAnswer
from explorers.rewards.scoring import Rewards
from explorers.workflows.make import make_workflow
from explorers.workflows.rollouts import Rollouts
from rft_data.core.errors import RecipeError, RowError
from rft_data.core.rows import Task
from rft_data.core.words import Split
from rft_data.tasks.verifiers_environment import verifiers_tasks
from tests.explorers.conversations.conftest import SayingEngine
from tests.explorers.conversations.families import QWEN3
from tests.explorers.workflows import verifiers_worlds as worlds
from tests.explorers.workflows.test_worlds import CTX, NONE, call, play, rows_of
from tests.explorers.workflows.verifiers_worlds import PLACE, settings, tasks


@pytest.fixture(autouse=True)
def _fresh() -> None:
    worlds.CLEANED.clear()
    worlds.TORN_DOWN.clear()


@pytest.fixture(scope="module")
def task() -> Task:
    return tasks("load_environment")[0]


# --- tasks -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_datasets_are_tasks_with_the_prompts_of_the_environment() -> None:
    first, second, held = tasks("load_environment")
    assert [dict(one) for one in first.messages] == [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "0 + 1"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "2 + 3"},
    ]
    assert (first.answer, second.answer, held.answer) == ("5", "8", "2")
    assert first.metadata == {"question": "2 + 3", "info": {"level": 1}, "example_id": 0, "task": "default"}
    assert [one.split for one in (first, second, held)] == [Split.TRAIN, Split.TRAIN, Split.HELDOUT]
    assert len(verifiers_tasks(f"{PLACE}:hints", {}, size=1, taskset="x", heldout=0.0)) == 1


# --- the three kinds -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_question_and_its_answer(tokenizer: Any, task: Task) -> None:
    played = play(tokenizer, settings("load_environment"), "5", task=task)
    (row,) = rows_of(played)
    assert row.reward == 1.5, "the rubric's weights"
    assert row.reward_parts == {"world": 1.5, "world.right": 1.0, "world.short": 1.0, "world.num_turns": 1.0}
    assert row.metadata["end"] == "finished"
    assert list(row.messages) == [*task.messages, {"role": "assistant", "content": "5"}]
    assert list(row.token_ids) == played[1].seen[0] + played[1].said[0]
    assert [one for one in row.logprobs if one] == pytest.approx([-0.1, -0.11])
    assert tokenizer.decode(row.token_ids[row.prompt_length :]) == "5<|im_end|>"


@pytest.mark.slow
def test_turns_with_an_environment_are_one_exact_row(tokenizer: Any) -> None:
    played = play(tokenizer, settings("hints"), "3", "4", "5", task=tasks("hints")[0])
    (row,) = rows_of(played)
    assert (row.reward, row.metadata["end"], row.metadata["turns"]) == (1.0, "finished", 3)
    assert [one["content"] for one in row.messages] == ["2 + 3", "3", "more", "4", "more", "5"]
    assert list(row.token_ids) == played[1].seen[-1] + played[1].said[-1]
    assert sum(row.action_mask) == sum(map(len, played[1].said))
    assert worlds.CLEANED == ["5"]
    played[2].close()
    assert worlds.TORN_DOWN == ["hints"]


@pytest.mark.slow
def test_tools_of_an_environment_are_called(tokenizer: Any) -> None:
    says = [call("add", x=2, y=3), call("add", x=2), "5"]
    played = play(tokenizer, settings("calculator"), *says, task=tasks("calculator")[0])
    (row,) = rows_of(played)
    assert (row.reward, row.metadata["turns"]) == (1.0, 3)
    assert (row.reward_parts["world.add_calls"], row.reward_parts["world.total_tool_calls"]) == (2.0, 2.0)
    assert [one["role"] for one in row.messages] == ["user", *["assistant", "tool"] * 2, "assistant"]
    assert row.messages[2]["content"] == "5"
    assert "missing 1 required positional argument" in row.messages[4]["content"]
    assert row.tools[0]["function"]["name"] == "add"
    assert list(row.token_ids) == played[1].seen[-1] + played[1].said[-1]
    assert "history_drift" not in row.metadata


@pytest.mark.slow
def test_a_group_of_environments_is_played_by_the_tasks_own(tokenizer: Any) -> None:
    found = {one.metadata["task"]: one for one in tasks("both")}
    (row,) = rows_of(play(tokenizer, settings("both"), call("add", x=4, y=4), "8", task=found["calculator"]))
    assert (row.reward, row.reward_parts["world.add_calls"]) == (1.0, 1.0)
    lost = play(tokenizer, settings("both"), "8", task=Task("x", ({"role": "user", "content": "?"},)))
    assert isinstance(lost[0], RowError)
    assert "has task None, and the group" in str(lost[0])


def test_plain_texts_are_completed(tokenizer: Any) -> None:
    (row,) = rows_of(play(tokenizer, settings("texts"), " 5", task=tasks("texts")[0]))
    assert (row.reward, row.completion_text.strip()) == (1.0, "5")


@pytest.mark.slow
def test_the_path_of_load_environment_is_enough(tokenizer: Any, task: Task) -> None:
    short = {"use": f"{PLACE}:load_environment", "args": {"args": {"rubric": "right"}}}
    assert rows_of(play(tokenizer, short, "5", task=task))[0].reward == 1.5


@pytest.mark.slow
@pytest.mark.parametrize(("template", "rows"), [("fork", 2), ("keep_thinking", 1)])
def test_thinking_is_not_shown_to_the_environment(tokenizer: Any, template: str, rows: int) -> None:
    thinks = copy.copy(tokenizer)
    thinks.chat_template = QWEN3
    given = settings("hints")
    given["args"]["template"] = template
    says = ["<think>\nthree?\n</think>\n\n3", "<think>\nno.\n</think>\n\n5"]
    found = rows_of(play(thinks, given, *says, task=tasks("hints")[0]))
    assert (len(found), found[-1].reward) == (rows, 1.0)
    assert found[-1].messages[1]["content"] == "3"
    trained = [one for row in found for one, on in zip(row.token_ids, row.action_mask, strict=True) if on]
    assert thinks.decode(trained) == "".join(f"{one}<|im_end|>" for one in says)


# --- ends and failures -----------------------------------------------------------------------------


@pytest.mark.slow
def test_limits_end_a_rollout_which_is_scored(tokenizer: Any) -> None:
    task = tasks("hints")[0]
    (row,) = rows_of(play(tokenizer, settings("hints", max_turns=2), "3", "4", task=task))
    assert (row.reward, row.metadata["end"]) == (0.0, "turns")
    (row,) = rows_of(play(tokenizer, settings("hints"), "3", "4", task=task, room=60))
    assert (row.reward, row.metadata["end"], row.metadata["turns"]) == (0.0, "context", 2)
    limited = settings("hints")
    limited["args"]["budget"] = 3
    (row,) = rows_of(play(tokenizer, limited, "3", "4", task=task))
    assert (row.reward, row.metadata["end"]) == (0.0, "budget")
    assert worlds.CLEANED == ["5"] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rubric", "reason"),
    [
        (
            "raising",
            "infrastructure: reward 'world': 'raising' of the rubric raised ConnectionError: the data",
        ),
        ("wordy", "reward 'world': 'wordy' of the rubric raised ValueError: could not convert string to"),
    ],
)
def test_a_function_of_the_rubric_that_raises_is_no_zero(
    tokenizer: Any, task: Task, rubric: str, reason: str
) -> None:
    (row,) = rows_of(play(tokenizer, settings("load_environment", rubric=rubric), "5", task=task))
    assert row.reward is None
    assert row.unscored_reason is not None
    assert row.unscored_reason.startswith(reason)


@pytest.mark.slow
def test_dead_infrastructure_is_played_again(tokenizer: Any) -> None:
    task = tasks("hints")[0]
    played = play(tokenizer, settings("hints", failure="infrastructure"), "3", "3", "5", task=task)
    (row,) = rows_of(played)
    assert row.reward == 1.0, "the second attempt, since the first one was cleaned up"
    assert worlds.CLEANED == ["5", "5"]


@pytest.mark.slow
def test_a_bug_of_the_environment_fails_the_rollout_and_frees_what_it_holds(tokenizer: Any) -> None:
    outcome, _, _ = play(tokenizer, settings("hints", failure="bug"), "3", task=tasks("hints")[0])
    assert isinstance(outcome, KeyError)
    assert worlds.CLEANED == ["5"]


@pytest.mark.slow
def test_a_late_rollout_is_cleaned_up(tokenizer: Any) -> None:
    workflow = make_workflow(settings("hints", failure="slow"), tokenizer, NONE)
    rollouts = Rollouts(
        SayingEngine(tokenizer, ["3<|im_end|>"]), workflow, Limits(rollout_deadline_s=0.2), Meter()
    )
    outcome = asyncio.run(rollouts.play(tasks("hints")[0], CTX))
    assert isinstance(outcome, TimeoutError)
    assert worlds.CLEANED == ["5"]


@pytest.mark.slow
def test_an_environment_that_asks_for_another_distribution_is_told(tokenizer: Any) -> None:
    outcome, _, _ = play(tokenizer, settings("hints", failure="hot"), "3", "3", task=tasks("hints")[0])
    assert isinstance(outcome, RowError)
    assert "'temperature' is 0.2" in str(outcome)


def test_an_empty_answer_is_the_models(tokenizer: Any, task: Task) -> None:
    (row,) = rows_of(play(tokenizer, settings("unscored"), "", task=task, rewards=_exact()))
    assert (row.reward, row.reward_parts) == (0.0, {"exact_answer": 0.0})


def _exact() -> Rewards:
    return Rewards({"exact_answer": 1.0}, {"exact_answer": ExactAnswer()})


def test_an_environment_without_a_reward_leaves_it_to_the_recipe(tokenizer: Any, task: Task) -> None:
    answered = replace(task, answer="#### 5")
    (row,) = rows_of(play(tokenizer, settings("unscored"), "#### 5", task=answered, rewards=_exact()))
    assert row.reward_parts == {"exact_answer": 1.0}


# --- the start -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        (f"{PLACE}:nothing", "made a str; wanted an environment of verifiers"),
        (f"{PLACE}:truncated", r"'top_p' is 0\.9"),
        ("no-such-environment", "Could not import 'no-such-environment'.*name its file"),
    ],
)
def test_what_cannot_be_played_ends_the_start(tokenizer: Any, environment: str, why: str) -> None:
    with pytest.raises(RecipeError, match=f"(?s){why}"):
        make_workflow({"use": "verifiers", "args": {"environment": environment}}, tokenizer, NONE)


def test_another_verifiers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "verifiers.envs.environment")  # 0.4 has none
    with pytest.raises(RecipeError, match=r"played by verifiers 0\.1, and 0\.1\.10 is installed"):
        tasks("hints")


def test_wrong_arguments_end_the_start(tokenizer: Any) -> None:
    with pytest.raises(RecipeError, match=r"arguments \['systm'\] \(TypeError.*unexpected keyword"):
        make_workflow(settings("load_environment", systm="x"), tokenizer, NONE)


@pytest.mark.slow
def test_signals_of_the_process_stay_its_own_in_any_thread(tokenizer: Any) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    make_workflow(settings("hints"), tokenizer, NONE)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(make_workflow, settings("hints"), tokenizer, NONE).result()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
