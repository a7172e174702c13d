"""Where each format's fields go, and which rows it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import RowError
from rft_data.core.rows import Experience, PreferencePair, Task
from rft_data.exchange.formats import FORMATS, import_into
from rft_data.exchange.formats.questions import boxed_answer, marked_answer
from rft_data.exchange.formats.records import PLAIN, Choices
from tests.gsm8k import FOLDER
from tests.rft_data.exchange.formats.conftest import jsonl, read

CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": None}}}
USER, BOT = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}


def one(name: str, row: dict[str, Any]) -> Any:
    records = read(FORMATS[name], row)
    assert len(records) == 1
    return records[0]


def write(name: str, record: Any, **choices: float) -> dict[str, Any]:
    made = FORMATS[name].write
    assert made is not None
    return made(record, Choices(**choices))


def test_gsm8k_gives_a_task_and_an_experts_solution_of_it() -> None:
    text = "She has 2 <<1+1=2>>.\n#### 1,234"
    task, solution = read(FORMATS["gsm8k"], {"question": "How many?", "answer": text, "level": 3})
    assert (task.messages, task.answer, task.split) == (
        ({"role": "user", "content": "How many?"},),
        "1234",
        "train",
    )
    assert task.metadata == solution.metadata == {"level": 3}
    assert (solution.source, solution.task_id) == ("expert", task.task_id)
    assert (solution.completion_text, solution.prompt_messages) == (text, 1)
    assert (solution.reward, solution.token_ids) == (None, None)


def test_gsm8k_answer_alone_is_a_task_only() -> None:
    task = one("gsm8k", {"question": "1+1=", "answer": 2})
    assert (type(task), task.answer) == (Task, "2")


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        ("a #### 5", "5"),
        ("#### 1 #### -2.5 ", "-2.5"),
        ("#### 1,234,567.5", "1234567.5"),
        ("#### 1,2", "1,2"),
        ("5", None),
    ],
)
def test_the_answer_follows_the_last_mark(solution: str, answer: str | None) -> None:
    assert marked_answer(solution) == answer


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{1} or \boxed{2}", "2"),
        (r"\boxed{1", None),
        (r"\boxed{}", None),
        ("none", None),
    ],
)
def test_the_boxed_answer_is_the_last_with_its_braces(solution: str, answer: str | None) -> None:
    assert boxed_answer(solution) == answer


def test_a_problem_with_neither_answer_nor_box_is_no_task() -> None:
    solution = one("problem-solution", {"problem": "Prove it.", "solution": "Obvious."})
    assert (type(solution), solution.source) == (Experience, "expert")
    task, _ = read(FORMATS["problem-solution"], {"problem": "p", "solution": r"\boxed{2}", "answer": "3"})
    assert task.answer == "3"


def test_plain_strings_are_marked_and_written_as_strings() -> None:
    row = {"prompt": "The sky is", "completion": " blue."}
    made = one("trl-prompt-completion", row)
    assert made.messages == (
        {"role": "user", "content": "The sky is"},
        {"role": "assistant", "content": " blue."},
    )
    assert made.metadata == {PLAIN: True}
    assert write("trl-prompt-completion", made) == row
    assert write("trl-language-modeling", made) == {"text": "The sky is blue."}


def test_a_file_cannot_set_the_plain_mark() -> None:
    made = one(
        "trl-prompt-completion", {"prompt": [USER], "completion": [BOT], "metadata": {PLAIN: True, "a": 1}}
    )
    assert made.metadata == {"a": 1}


def test_messages_are_prompt_up_to_the_first_answer() -> None:
    system = {"role": "system", "content": "s"}
    made = one("trl-language-modeling", {"messages": [system, USER, BOT, USER, BOT]})
    assert (made.prompt_messages, made.completion_text) == (2, "yes\nyes")


def test_tools_and_calls_come_to_one_form() -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    text = {**CALL, "function": {"name": "add", "arguments": '{"a": 1, "b": null}'}, "id": None}
    said = {"role": "assistant", "content": None, "tool_calls": [text], "refusal": None}
    made = one(
        "trl-language-modeling",
        {"messages": [USER, said, {"role": "tool", "content": "1"}, BOT], "tools": json.dumps(tools)},
    )
    assert made.tools == tools
    assert made.messages[1] == {"role": "assistant", "content": "", "tool_calls": [CALL]}
    wire = write("openai", Experience(**{**_fields(made), "prompt_messages": 3}))
    assert wire["request"]["tools"] == tools
    assert wire["request"]["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"a": 1, "b": null}'


def _fields(row: Experience) -> dict[str, Any]:
    return {name: getattr(row, name) for name in Experience.__slots__}


def test_broken_tool_arguments_stay_what_the_model_said() -> None:
    said = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": '{"a": '}}],
    }
    made = one("trl-language-modeling", {"messages": [USER, said]})
    assert made.messages[1]["tool_calls"][0]["function"]["arguments"] == '{"a": '


def test_unpaired_rows_have_reward_one_or_zero() -> None:
    made = [
        one("trl-unpaired", {"prompt": "p", "completion": "c", "label": label})
        for label in (True, 0, "FALSE")
    ]
    assert [(row.reward, row.reward_parts) for row in made] == [
        (1.0, {"label": 1.0}),
        (0.0, {"label": 0.0}),
        (0.0, {"label": 0.0}),
    ]


def test_unpaired_labels_are_rewards_from_the_threshold_on() -> None:
    made = one("trl-unpaired", {"prompt": "p", "completion": "c", "label": True})
    assert write("trl-unpaired", made, threshold=1.0)["label"] is True
    assert write("trl-unpaired", made, threshold=1.5)["label"] is False


def test_preferences_keep_scores_and_both_kinds_of_prompt() -> None:
    row = {
        "prompt": [USER],
        "chosen": [BOT],
        "rejected": [{**BOT, "content": "no"}],
        "score_chosen": 4.5,
        "score_rejected": 1,
    }
    pair = one("trl-preference", row)
    assert isinstance(pair, PreferencePair)
    assert (pair.messages, pair.chosen_score, pair.rejected_score, pair.source) == (
        (USER,),
        4.5,
        1.0,
        "import",
    )
    implicit = one("trl-preference", {"chosen": [USER, BOT], "rejected": [USER, {**BOT, "content": "no"}]})
    assert (implicit.messages, implicit.task_id) == ((), pair.task_id)


def test_a_prompt_text_that_both_conversations_repeat_is_no_second_prompt() -> None:
    row = {"prompt": "hi", "chosen": [USER, BOT], "rejected": [USER, {**BOT, "content": "no"}]}
    pair = one("trl-preference", row)
    assert (pair.messages, pair.metadata) == ((), {"prompt": "hi"})


CHAT = {"model": "m", "messages": [USER], "temperature": 0.5, "tools": [{"type": "function"}], "user": "u1"}
REPLY = {
    "id": "r1",
    "usage": {"total_tokens": 5},
    "created": 7,
    "choices": [
        {
            "index": i,
            "message": {**BOT, "refusal": None},
            "finish_reason": reason,
            "logprobs": {"content": [i]},
        }
        for i, reason in enumerate(["stop", "length"])
    ],
}


def test_openai_choices_are_a_group_and_nothing_is_lost() -> None:
    made = read(FORMATS["openai"], {"request": CHAT, "response": REPLY, "custom_id": "c", "error": None})
    assert [(row.member, row.finish_reason) for row in made] == [(0, "stop"), (1, "length")]
    assert made[0].group_id == made[1].group_id
    assert made[0].experience_id != made[1].experience_id
    assert (made[0].sampling, made[0].tools, made[0].prompt_messages) == (
        {"temperature": 0.5},
        CHAT["tools"],
        1,
    )
    assert made[1].metadata["openai"] == {
        "row": {"custom_id": "c"},
        "request": {"model": "m", "user": "u1"},
        "response": {"id": "r1", "usage": {"total_tokens": 5}, "created": 7},
        "choice": {"logprobs": {"content": [1]}},
    }
    assert write("openai", made[1]) == {
        "custom_id": "c",
        "request": CHAT,
        "response": {**REPLY, "choices": [{**REPLY["choices"][1], "message": BOT}]},
    }


def test_openai_batches_are_read_with_their_envelope() -> None:
    answered = {
        "custom_id": "c",
        "body": CHAT,
        "response": {"status_code": 200, "request_id": "q", "body": REPLY},
    }
    made = read(FORMATS["openai"], answered)[0]
    assert made.metadata["openai"]["row"] == {
        "custom_id": "c",
        "envelope": {"status_code": 200, "request_id": "q"},
    }
    as_text = {"request": json.dumps(CHAT), "response": json.dumps(REPLY)}
    assert read(FORMATS["openai"], as_text)[0].messages == (USER, BOT)


def test_an_openai_request_alone_is_a_task_which_is_a_batch_line_again() -> None:
    line = {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": CHAT}
    task = one("openai", line)
    assert (type(task), task.messages) == (Task, (USER,))
    assert write("openai", task) == line


def test_sharegpt_roles_are_mapped_both_ways() -> None:
    turns = [
        {"from": "system", "value": "s"},
        {"from": "human", "value": "hi"},
        {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1}}'},
        {"from": "observation", "value": "1"},
        {"from": "gpt", "value": "yes", "weight": 0},
    ]
    made = one("sharegpt", {"conversations": turns, "id": "x7"})
    assert [m["role"] for m in made.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert (made.prompt_messages, made.metadata, made.messages[4]["weight"]) == (2, {"id": "x7"}, 0)
    assert [turn["from"] for turn in write("sharegpt", made)["conversations"]] == [
        "system",
        "human",
        "function_call",
        "tool",
        "gpt",
    ]
    beside = one("sharegpt", {"conversations": turns[1:], "system": "s", "id": "x7"})
    assert beside.experience_id == made.experience_id


def turns(*names: str) -> dict[str, Any]:
    return {"conversations": [{"from": name, "value": "x"} for name in names]}


def test_data_juicer_history_is_the_prompt_and_stats_are_kept() -> None:
    row = {
        "system": "s",
        "history": [["a", "b"]],
        "query": "q",
        "response": "r",
        "__dj__stats__": {"text_len": 3},
    }
    made = one("data-juicer", row)
    assert [m["content"] for m in made.messages] == ["s", "a", "b", "q", "r"]
    assert (made.prompt_messages, made.completion_text) == (4, "r")
    assert made.metadata == {"__dj__stats__": {"text_len": 3}}
    assert write("data-juicer", made) == row


REFUSED = [
    ("gsm8k", {"question": "q", "answer": "x ####  "}, "nothing follows '####'"),
    ("gsm8k", {"question": " ", "answer": "1"}, "column 'question' is empty"),
    ("gsm8k", {"question": "q", "answer": True}, "column 'answer' holds bool; text is needed"),
    ("gsm8k", {"question": "q"}, "column 'answer' holds nothing"),
    ("problem-solution", {"problem": "p"}, "columns 'solution' and 'answer' are both empty"),
    ("trl-prompt", {"prompt": []}, "column 'prompt' has no messages"),
    ("trl-prompt", {"prompt": ""}, "column 'prompt' is empty"),
    (
        "trl-prompt-completion",
        {"prompt": "p", "completion": [BOT]},
        "prompt is text but completion is messages",
    ),
    (
        "trl-prompt-completion",
        {"prompt": [USER], "completion": 5},
        "column 'completion' holds int; a list of messages",
    ),
    (
        "trl-prompt-completion",
        {"prompt": [USER], "completion": [{"content": "x"}]},
        "[0] has role None; one of system",
    ),
    (
        "trl-prompt-completion",
        {"prompt": [USER], "completion": [{"role": "assistant"}]},
        "has content of NoneType",
    ),
    (
        "trl-prompt-completion",
        {"prompt": [{"role": "user", "content": [{"text": "x"}]}], "completion": [BOT]},
        "has no 'type'",
    ),
    ("trl-language-modeling", {"messages": [USER]}, "no message of the assistant"),
    (
        "trl-language-modeling",
        {"messages": [USER, BOT], "text": "x"},
        "both 'text' and 'messages' are filled",
    ),
    (
        "trl-language-modeling",
        {"messages": [USER, BOT], "tools": "{"},
        "column 'tools' is text that is not JSON",
    ),
    ("trl-language-modeling", {"messages": [USER, BOT], "tools": {"a": 1}}, "column 'tools' is not a list"),
    (
        "trl-language-modeling",
        {"messages": [USER, {**BOT, "tool_calls": [{"id": "x"}]}]},
        "a tool call without a function name",
    ),
    ("trl-unpaired", {"prompt": "p", "completion": "c"}, "column 'label' holds None"),
    ("trl-unpaired", {"prompt": "p", "completion": "c", "label": 0.5}, "column 'label' holds 0.5"),
    ("trl-preference", {"chosen": "a", "rejected": [BOT]}, "not of one kind"),
    ("trl-preference", {"chosen": "a", "rejected": ""}, "column 'rejected' is empty"),
    (
        "trl-preference",
        {"prompt": "other", "chosen": [USER, BOT], "rejected": [USER, BOT]},
        "prompt is text but chosen",
    ),
    (
        "trl-preference",
        {"prompt": "p", "chosen": "a", "rejected": "b", "score_chosen": "high"},
        "'high'; a number",
    ),
    (
        "openai",
        {"custom_id": "c", "response": {"status_code": 200, "body": REPLY}},
        "there is no request; a batch output file",
    ),
    (
        "openai",
        {"request": CHAT, "response": {"status_code": 429, "body": {}}},
        "the request failed with status 429",
    ),
    (
        "openai",
        {"request": CHAT, "response": None, "error": {"code": "expired"}},
        'the request failed: {"code": "expired"}',
    ),
    ("openai", {"request": CHAT, "response": {"choices": []}}, "the response has no choices"),
    ("openai", {"request": CHAT, "response": {"choices": [{"text": "x"}]}}, "only chat completions"),
    ("openai", {"request": {"prompt": "x"}, "response": REPLY}, "the request's messages holds NoneType"),
    ("sharegpt", turns("gpt", "human"), "turn 0 is 'gpt' at the beginning; the order is odd"),
    ("sharegpt", turns("human", "human", "gpt"), "turn 1 is 'human' after 'human'; the order is odd"),
    ("sharegpt", turns("human", "gpt", "gpt"), "turn 2 is 'gpt' after 'gpt'"),
    ("sharegpt", turns("human", "gpt", "system"), "turn 2 is 'system' after 'gpt'"),
    ("sharegpt", turns("human", "gpt", "human"), "the last turn is 'human'; it must be 'gpt'"),
    ("sharegpt", turns("human", "bing"), "turn 1 is from 'bing'"),
    ("sharegpt", {"conversations": [{"from": "human", "value": None}]}, "turn 0 has a value of NoneType"),
    ("sharegpt", {"conversations": []}, "has no turns"),
    ("data-juicer", {"query": "q", "response": "r", "history": ["a"]}, "history[0] is not a pair"),
    ("data-juicer", {"query": "q", "response": None}, "column 'response' holds nothing"),
]


@pytest.mark.parametrize(("name", "row", "reason"), REFUSED)
def test_a_row_that_does_not_fit_is_refused_with_the_reason(name: str, row: dict, reason: str) -> None:
    with pytest.raises(RowError) as caught:
        read(FORMATS[name], row)
    assert reason in str(caught.value)


@pytest.mark.slow
def test_real_gsm8k_is_read_whole(buffer: Buffer) -> None:
    path = FOLDER / "test.jsonl"
    report = import_into(buffer, path, taskset="gsm8k", split="heldout")
    written = dict.fromkeys(path.read_text(encoding="utf-8").splitlines())  # the sample has one twice
    lines = [json.loads(line) for line in written]
    assert (report.format, report.stored, report.quarantined) == ("gsm8k", len(lines), 0)
    wanted = [line["answer"].rsplit("#### ", 1)[1].strip().replace(",", "") for line in lines]
    assert [task.answer for task in buffer.tasks("heldout")] == wanted


def test_bytes_in_rows_become_payloads_and_come_back(buffer: Buffer, tmp_path: Path) -> None:
    uri = "data:image/png;base64,iVBORw0KGgo="
    parts = [{"type": "text", "text": uri}, {"type": "image_url", "image_url": {"url": uri}}]
    row = {"messages": [{"role": "user", "content": parts}, BOT]}
    import_into(buffer, jsonl(tmp_path / "rows.jsonl", [row]))
    stored = buffer.read("experiences", ["messages", "payloads"]).to_pylist()[0]
    assert len(stored["payloads"]) == 1
    assert buffer.payload(stored["payloads"][0]) == ("image/png", b"\x89PNG\r\n\x1a\n")
    kept = json.loads(stored["messages"])[0]["content"]
    assert kept[0]["text"] == uri
    assert kept[1]["image_url"]["url"] == f"payload:{stored['payloads'][0]}"
