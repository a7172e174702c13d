"""What every workflow of many turns takes for its conversations: template, chat_template_kwargs, system."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from typing import Any

import pytest

from explorers.engines.make import takes_messages
from explorers.limits import Limits
from explorers.meter import Meter
from explorers.rewards.scoring import Rewards
from explorers.workflows.make import make_workflow
from explorers.workflows.rollouts import Rollouts
from explorers.workflows.single_turn import SingleTurn
from rft_data.core.errors import RecipeError, RowError
from rft_data.core.rows import OFFERED_TOOLS
from tests.explorers.conversations.conftest import SayingEngine, trained_tokenizer
from tests.explorers.conversations.families import GEMMA, QWEN3, QWEN25
from tests.explorers.workflows.test_worlds import CTX, NONE, PLACE, TASK, lake, play, rows_of

SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Any]:
    made = {}
    for name, template in (("qwen2.5", QWEN25), ("qwen3", QWEN3), ("gemma", GEMMA)):
        made[name] = copy.copy(trained_tokenizer())
        made[name].chat_template = template
    return made


@pytest.mark.parametrize(
    "settings",
    [
        {"use": f"{PLACE}:twice", "args": {"system": "Be brief."}},
        {"use": f"{PLACE}:Desk", "args": {"system": "Be brief."}},
        lake(system="Be brief."),
    ],
    ids=["function", "tools", "environment"],
)
def test_system_prompt_is_the_first_message(tokenizers: dict[str, Any], settings: dict[str, Any]) -> None:
    (row,) = rows_of(play(tokenizers["qwen2.5"], settings, "5", "right", "right", "right"))
    assert row.messages[0] == SYSTEM
    assert "<|im_start|>system\nBe brief." in tokenizers["qwen2.5"].decode(row.token_ids)


@pytest.mark.parametrize(("template", "rows"), [("fork", 2), ("keep_thinking", 1)])
def test_policy_decides_how_many_rows_thinking_makes(
    tokenizers: dict[str, Any], template: str, rows: int
) -> None:
    settings = {"use": f"{PLACE}:twice", "args": {"template": template}}
    thought = "<think>\nhow?\n</think>\n\n4"
    assert len(rows_of(play(tokenizers["qwen3"], settings, thought, "5"))) == rows


def test_refused_template_ends_the_start(tokenizers: dict[str, Any]) -> None:
    settings = {"use": f"{PLACE}:twice", "args": {"template": "refuse"}}
    make_workflow(settings, tokenizers["qwen2.5"], NONE)
    with pytest.raises(RecipeError, match=r"(?s)'template' is refuse.*Say fork"):
        make_workflow(settings, tokenizers["qwen3"], NONE)
    with pytest.raises(RecipeError, match="template is 'forked'; wanted one of: fork, keep"):
        make_workflow({"use": f"{PLACE}:twice", "args": {"template": "forked"}}, tokenizers["qwen3"], NONE)


def test_tools_need_a_template_that_can_render_their_answers(tokenizers: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=r"cannot render the scenario 'tools'.*roles must alternate"):
        make_workflow({"use": f"{PLACE}:Desk"}, tokenizers["gemma"], NONE)


def test_a_template_that_shows_no_tools_is_taken_where_the_recipe_says_so() -> None:
    tokenizer = trained_tokenizer()
    tokenizer.chat_template = "{% for one in messages %}<{{ one.role }}>{{ one.content }}\n{% endfor %}"
    with pytest.raises(RecipeError, match="does not show the model which tools there are; take a template"):
        make_workflow({"use": f"{PLACE}:Desk"}, tokenizer, NONE)
    make_workflow({"use": f"{PLACE}:Desk", "args": {"hidden_tools": True}}, tokenizer, NONE)


def test_arguments_of_the_template_reach_it(tokenizers: dict[str, Any]) -> None:
    settings = {"use": f"{PLACE}:twice", "args": {"chat_template_kwargs": {"enable_thinking": False}}}
    row = rows_of(play(tokenizers["qwen3"], settings, "4", "5"))[0]
    prompt = tokenizers["qwen3"].decode(row.token_ids[: row.prompt_length])
    assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_base_model_without_a_chat_template_can_still_complete() -> None:
    bare = trained_tokenizer()
    make_workflow({"use": f"{PLACE}:twice"}, bare, NONE)
    with pytest.raises(RecipeError, match="has no chat template"):
        make_workflow({"use": f"{PLACE}:Desk"}, bare, NONE)


def test_rows_and_drift_are_counted(tokenizers: dict[str, Any]) -> None:
    thought = "<think>\nhow?\n</think>\n\n4<|im_end|>"
    meter = Meter()
    for name, first in (("qwen3", thought), ("qwen2.5", "4<|im_end|>")):
        workflow = make_workflow({"use": f"{PLACE}:twice"}, tokenizers[name], NONE)
        engine = SayingEngine(tokenizers[name], [first, "5<|im_end|>"])
        asyncio.run(Rollouts(engine, workflow, Limits(), meter).play(TASK, CTX))
    counted = meter.take()
    assert (counted["rows"], counted["rows_per_rollout"]) == (3, 1.5)
    assert (counted["turns_forked"], counted["turns_masked"]) == (1, 0)


# --- examples (few-shot) ---------------------------------------------------------------------------

EXAMPLES = [["1 + 1", "2"], {"role": "user", "content": "2 + 2"}, {"role": "assistant", "content": "4"}]
SHOWN = [
    {"role": "user", "content": "1 + 1"},
    {"role": "assistant", "content": "2"},
    *EXAMPLES[1:],
]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"use": "single_turn"}, ["5"]),
        ({"use": f"{PLACE}:twice"}, ["4", "5"]),
        ({"use": f"{PLACE}:Desk"}, ["5"]),
        (lake(), ["right"] * 2),
        (lake(shape="step_wise_fresh"), ["right"] * 2),
    ],
    ids=["single_turn", "function", "tools", "environment", "fresh"],
)
def test_examples_stand_between_system_prompt_and_task_and_are_not_trained(
    tokenizers: dict[str, Any], settings: dict[str, Any], says: list[str]
) -> None:
    given = {**settings.get("args", {}), "system": "Be brief.", "examples": EXAMPLES}
    rows = rows_of(play(tokenizers["qwen2.5"], {**settings, "args": given}, *says))
    for row in rows:
        assert list(row.messages[:5]) == [SYSTEM, *SHOWN]
        assert row.messages[5]["content"].startswith(TASK.messages[0]["content"])
        assert row.prompt_messages == 6
        prompt = tokenizers["qwen2.5"].decode(row.token_ids[: row.prompt_length])
        assert prompt.count("<|im_start|>assistant\n") == 3, "two examples and the opening of the answer"
        assert not any(row.action_mask[: row.prompt_length])
        assert "history_drift" not in row.metadata
    trained = [one for row in rows for one, on in zip(row.token_ids, row.action_mask, strict=True) if on]
    assert tokenizers["qwen2.5"].decode(trained) == "".join(f"{one}<|im_end|>" for one in says)


def test_examples_come_after_a_tasks_own_system_prompt(tokenizers: dict[str, Any]) -> None:
    own = {"role": "system", "content": "Count."}
    task = replace(TASK, messages=(own, *TASK.messages))
    settings = {"use": "single_turn", "args": {"system": "Be brief.", "examples": EXAMPLES}}
    (row,) = rows_of(play(tokenizers["qwen2.5"], settings, "5", task=task))
    assert list(row.messages[:-1]) == [own, *SHOWN, *TASK.messages]


@pytest.mark.parametrize(
    ("examples", "why"),
    [
        ("2 + 2", "examples is a str; wanted a list"),
        ([["2 + 2", 4]], r"examples\[0\] is \['2 \+ 2', 4\]; wanted two texts .*Quote numbers"),
        ([{"role": "pupil", "content": "x"}], r"examples\[0\] has role 'pupil'; one of system"),
        ([{"role": "system", "content": "x"}], r"roles \['system'\]; wanted no system prompt"),
        ([{"role": "user", "content": "x"}], "an assistant's answer at the end"),
    ],
)
def test_wrong_examples_end_the_start(tokenizers: dict[str, Any], examples: Any, why: str) -> None:
    with pytest.raises(RecipeError, match=why):
        make_workflow({"use": "single_turn", "args": {"examples": examples}}, tokenizers["qwen2.5"], NONE)


def test_a_task_may_offer_tools_of_its_own(tokenizers: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
    task = replace(TASK, metadata={OFFERED_TOOLS: [tool]})
    tokenizer = tokenizers["qwen2.5"]
    engine = SayingEngine(
        tokenizer, ['<tool_call>\n{"name": "look_up", "arguments": {}}\n</tool_call><|im_end|>']
    )
    [row] = asyncio.run(SingleTurn(tokenizer, NONE).run(task, engine, CTX))
    assert row.tools == [tool]
    assert "look_up" in tokenizer.decode(engine.seen[0])
    assert row.messages[-1]["tool_calls"][0]["function"]["name"] == "look_up"
    sampled = [t for t, mask in zip(row.token_ids or (), row.action_mask or (), strict=True) if mask]
    assert sampled == engine.said[0]
    plain = SingleTurn(tokenizers["gemma"], NONE)
    with pytest.raises(RowError, match="offers tools, and the model's chat template has no place"):
        asyncio.run(plain.run(task, engine, CTX))


def test_arguments_and_options_that_have_no_names_are_refused() -> None:
    with pytest.raises(
        RecipeError, match=r"explorer\.workflow\.args is \['turns'\]; wanted arguments by name"
    ):
        make_workflow({"use": "single_turn", "args": ["turns"]}, None, Rewards({}, {}))
    with pytest.raises(
        RecipeError, match=r"explorer\.engine\.options is \['dtype'\]; wanted options by name"
    ):
        takes_messages({"use": "vllm", "options": ["dtype"]})
