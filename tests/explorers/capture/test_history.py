"""Where prompts continue what was sampled, without an engine: a server that renders every history anew."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rft_data.core.errors import BudgetSpent, RowError
from rft_data.core.rows import Experience
from rft_data.core.words import HISTORY_DRIFT, Drift, TemplatePolicy
from tests.explorers.capture.conftest import Talk

THOUGHT = "<think>\nfirst 12, then 30\n</think>\n\n"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def letters(talk: Talk, text: str) -> list[int]:
    """Ids of a text that no tokenizer makes of it: one for each letter."""
    return [one for letter in text for one in talk.template.ids(letter)]


def trained(rows: Sequence[Experience]) -> int:
    return sum(sum(row.action_mask or ()) for row in rows)


def linear(talk: Talk, texts: Sequence[str], *, ids: Callable[[Talk, str], list[int]] | None = None) -> None:
    """A conversation of one turn for each text; the caller sends back what it was told."""
    history = [user("hello there")]
    for text in texts:
        said = talk.say(history, text, ids=ids(talk, text) if ids else None)
        history += [answer(said), user("how are you?")]


def test_a_conversation_of_ten_turns_is_one_row(talk: Callable[..., Talk]) -> None:
    one = talk()
    linear(one, [f"the answer is {n}" for n in range(10)])
    [row] = one.rows()
    assert one.trajectory.drift == {Drift.EXACT: 10}
    assert trained([row]) == one.trajectory.sampled
    assert len(row.version_spans) == 10


def test_history_that_is_tokenised_in_another_way_keeps_the_sampled_ids(talk: Callable[..., Talk]) -> None:
    one = talk()
    linear(one, ["the answer is 42", "hello there", "fine"], ids=letters)
    [row] = one.rows()
    assert one.trajectory.drift == {Drift.EXACT: 3}
    sampled = [i for i, mask in zip(row.token_ids or (), row.action_mask or (), strict=True) if mask]
    end = one.template.ids("<|im_end|>")
    wanted = [letters(one, text) + end for text in ("the answer is 42", "hello there", "fine")]
    assert sampled == [i for part in wanted for i in part]
    first = one.trajectory.turns.roots[0]
    retold = one.template.prompt(
        [user("hello there"), answer("the answer is 42"), user("how are you?")], None
    )
    assert retold[: len(first.ids)] != first.ids  # the server's own ids are other ones


def test_bytes_that_are_no_text_are_found_again(talk: Callable[..., Talk]) -> None:
    one = talk()
    broken = one.template.ids("é")[:1]
    linear(
        one, ["fine", "x", "fine"], ids=lambda talk, text: broken if text == "x" else talk.template.ids(text)
    )
    assert len(one.rows()) == 1
    assert one.trajectory.drift == {Drift.EXACT: 3}


@pytest.mark.parametrize(
    ("policy", "rows", "drift"),
    [
        pytest.param(TemplatePolicy.FORK, 4, {Drift.EXACT: 1, Drift.FORKED: 3}, id="fork"),
        pytest.param(TemplatePolicy.KEEP_THINKING, 1, {Drift.EXACT: 4}, id="keep_thinking"),
    ],
)
def test_a_template_that_strips_thinking_makes_the_rows_that_the_policy_says(
    talk: Callable[..., Talk], policy: TemplatePolicy, rows: int, drift: dict[Drift, int]
) -> None:
    one = talk("qwen3", policy)
    linear(one, [THOUGHT + f"the answer is {n}, " + "hello there, how are you? " * 4 for n in range(4)])
    assert len(one.rows()) == rows
    assert one.trajectory.drift == drift
    assert trained(one.rows()) == one.trajectory.sampled
    if rows > 1:
        assert one.rows()[0].metadata[HISTORY_DRIFT] == {"forked": 3}


def test_a_policy_of_refusing_says_so(talk: Callable[..., Talk]) -> None:
    one = talk("qwen3", TemplatePolicy.REFUSE)
    with pytest.raises(RowError, match=r"template policy is refuse.*keep_thinking"):
        linear(one, [THOUGHT + "the answer is 12" * 9, "more"])


def test_the_end_of_a_turn_that_the_caller_changed_has_no_loss(talk: Callable[..., Talk]) -> None:
    one = talk()
    said = one.say([user("hello")], "the answer is 42.\n\n")
    one.say([user("hello"), answer(said.strip()), user("more")], "fine")
    [row] = one.rows()
    assert one.trajectory.drift == {Drift.EXACT: 1, Drift.MASKED: 1}
    assert 0 < trained([row]) < one.trajectory.sampled
    text = one.template.tokenizer.decode(row.token_ids)
    assert text.endswith(
        "the answer is 42.<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\nfine<|im_end|>"
    )


def test_a_turn_that_the_caller_rewrote_begins_another_row(talk: Callable[..., Talk]) -> None:
    one = talk()
    one.say([user("hello")], "the answer is 42. " * 20)
    one.say([user("hello"), answer("nothing of it"), user("more")], "fine")
    assert one.trajectory.drift == {Drift.EXACT: 1, Drift.FORKED: 1}
    assert [sum(row.action_mask or ()) for row in one.rows()] == [
        len(turn.sampled) for turn in one.trajectory.turns
    ]


ADD: dict[str, Any] = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
PLAIN = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": "x"}}\n</tool_call>'
CLOSE = '<tool_call>\n{"name":"add","arguments":{"a":2,"b":"x"}}\n</tool_call>'
TURNED = '<tool_call>\n{"arguments": {"b": "x", "a": 2}, "name": "add"}\n</tool_call>'


def called(content: str = "", **arguments: Any) -> list[dict[str, Any]]:
    """A call as the caller parsed it, and what the tool answered."""
    function = {"name": "add", "arguments": json.dumps(arguments)}
    call = {"id": "of-the-caller", "type": "function", "function": function}
    answered = {"role": "tool", "tool_call_id": call["id"], "content": "4"}
    return [{"role": "assistant", "content": content, "tool_calls": [call]}, answered]


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3"])
@pytest.mark.parametrize(
    ("text", "content"),
    [
        (PLAIN, ""),
        (CLOSE, ""),
        (TURNED, ""),
        (f"fine\n{PLAIN}", "fine\n"),
        (f"fine\n\n{CLOSE}\n", "fine"),
    ],
)
def test_turns_with_calls_are_one_row_whatever_their_json_looks_like(
    talk: Callable[..., Talk], family: str, text: str, content: str
) -> None:
    """slime#2288, NeMo-Gym#1787: the template writes a call anew, from what the server's parser found."""
    one = talk(family)
    history = [user("2 + 2?")]
    for _ in range(3):
        one.say(history, text, tools=[ADD])
        history += called(content, b="x", a=2)
    said = one.say(history, "the answer is 4.\n\n", tools=[ADD])
    one.say([*history, answer(said.strip()), user("sure?")], "fine", tools=[ADD])
    [row] = one.rows()
    assert one.trajectory.drift == {Drift.EXACT: 4, Drift.MASKED: 1}, "the caller cut the end of the last one"
    assert one.trajectory.sampled - 4 <= trained([row]) < one.trajectory.sampled
    whole = one.template.tokenizer.decode(row.token_ids)
    assert whole.count(text) == 3
    roles = ["user", *(["assistant", "tool"] * 3), "assistant", "user", "assistant"]
    assert [message["role"] for message in row.messages] == roles


def test_a_call_is_found_after_a_turn_that_the_caller_took_for_text(talk: Callable[..., Talk]) -> None:
    one = talk()
    history = [user("2 + 2?")]
    one.say(history, PLAIN, tools=[ADD])
    history += [answer(PLAIN), user("and now with the tool")]
    one.say(history, CLOSE, tools=[ADD])
    one.say([*history, *called(a=2, b="x")], "fine", tools=[ADD])
    assert one.trajectory.drift == {Drift.EXACT: 3}
    assert len(one.rows()) == 1


@pytest.mark.parametrize(
    "changed",
    [called(a=3, b="x"), called("I add.", a=2, b="x"), [*called(a=2, b="x")[:1], *called(a=2, b="x")]],
)
def test_a_call_that_the_caller_changed_is_another_row(
    talk: Callable[..., Talk], changed: list[dict[str, Any]]
) -> None:
    one = talk()
    one.say([user("2 + 2?")], CLOSE * 3, tools=[ADD])
    one.say([user("2 + 2?"), *changed], "fine", tools=[ADD])
    assert one.trajectory.drift == {Drift.EXACT: 1, Drift.FORKED: 1}
    assert len(one.rows()) == 2


def test_tools_that_are_offered_no_more_are_another_row(talk: Callable[..., Talk]) -> None:
    one = talk()
    one.say([user("2 + 2?")], CLOSE, tools=[ADD])
    one.say([user("2 + 2?"), *called(a=2, b="x")], "fine")
    assert len(one.rows()) == 2


def test_choices_parallel_calls_sub_agents_and_compaction_train_each_token_once(
    talk: Callable[..., Talk],
) -> None:
    one = talk()
    history = [user("hello there")]
    said = one.say(history, "the answer is 42")
    one.say(history, "fine")  # asked again: another choice
    history += [answer(said), user("more")]
    one.say(history, "hello")  # two calls from one place
    one.say([*history[:-1], user("something else")], "assistant")
    one.say([{"role": "system", "content": "you search"}, user("where?")], "there")  # a sub-agent
    one.say([user("summary: 42"), user("go on")], "fine")  # a compacted context
    rows = one.rows()
    assert one.trajectory.drift == {Drift.EXACT: 6}
    assert len(rows) == 5
    assert trained(rows) == one.trajectory.sampled
    assert [row.turn for row in rows] == list(range(5))
    assert one.trajectory.held == sum(len(row.token_ids or ()) for row in rows)


def test_branches_of_a_long_beginning_have_no_more_room_than_their_rows(talk: Callable[..., Talk]) -> None:
    """Their turns are few tokens, and each row has the beginning again."""
    one = talk()
    long = "hello there, how are you? " * 20
    said = one.say([user(long)], "fine")
    one.trajectory.room = room = 2000

    def branch_on() -> None:
        while True:
            one.say([user(long), answer(said), user("more")], "fine")

    with pytest.raises(RowError, match=r"would have \d+ tokens, of at most 2000"):
        branch_on()
    rows = one.rows()
    assert len(rows) > 2
    assert sum(len(row.token_ids or ()) for row in rows) == one.trajectory.held <= room
    assert one.trajectory._asked == 0


def test_a_turn_that_another_branch_goes_on_from_is_not_cut(talk: Callable[..., Talk]) -> None:
    one = talk()
    said = one.say([user("hello")], "the answer is 42.\n\n")
    one.say([user("hello"), answer(said), user("more")], "fine")
    one.say([user("hello"), answer(said.strip()), user("more")], "fine")
    assert one.trajectory.drift == {Drift.EXACT: 2, Drift.FORKED: 1}
    assert trained(one.rows()) == one.trajectory.sampled


def test_a_request_that_was_given_up_is_counted_and_not_trained(talk: Callable[..., Talk]) -> None:
    one = talk()
    said = one.say([user("hello")], "the answer is 42")
    history = [user("hello"), answer(said), user("more")]
    [turn] = one.trajectory.begin(one.template.prompt(history, None), one.asked(history), 1, 64)
    turn.sampled, turn.logprobs = [5, 6], [-1.0, -1.0]
    one.trajectory.abort(turn)
    one.trajectory.settle(64)
    one.say(history, "fine")
    [row] = one.rows()
    assert len(one.trajectory.turns.roots[0].children) == 1
    assert row.metadata == {"aborted_turns": 1}
    assert trained([row]) == one.trajectory.sampled - 2
    assert one.trajectory.held == len(row.token_ids or ())


def test_a_trajectory_samples_no_more_than_its_budget(talk: Callable[..., Talk]) -> None:
    one = talk()
    one.trajectory.budget = 100
    one.say([user("hello")], "fine")
    with pytest.raises(BudgetSpent, match=r"has sampled 3 tokens of 100.*asks for 98"):
        one.trajectory.begin([5], one.asked([user("hello")]), 1, 98)
    assert one.trajectory.begin([5], one.asked([user("hello")]), 1, 97)


def test_a_closed_trajectory_takes_nothing(talk: Callable[..., Talk]) -> None:
    one = talk()
    one.trajectory.closed = True
    with pytest.raises(RowError, match="is closed; open another one"):
        one.say([user("hello")], "fine")
