"""Well-known datasets are recognised by their columns, and their rows become the tasks that people mean."""

from typing import Any

import pytest

from explorers.rewards.unit_tests import unit_tests
from rft_data.core.errors import RowError
from rft_data.core.rows import Task
from rft_data.exchange.formats.families import recognised, task_in
from rft_data.exchange.formats.records import Origin

CHAT = [{"role": "user", "content": "Q"}]
ANSWERED = [*CHAT, {"role": "assistant", "content": "A"}]
INSTRUCTED = {"source": "x", "instruction": "Q", "models": ["m"], "completions": [{"response": "A"}]}
LOGGED = {"request": {"messages": CHAT}, "response": {"choices": [{"index": 0, "message": ANSWERED[1]}]}}
VERL = {
    "data_source": "math_dapo",
    "ability": "MATH",
    "reward_model": {"ground_truth": "34", "style": "rule"},
}
FAMILIES: list[tuple[str, dict[str, Any], str | None]] = [
    ("gsm8k", {"question": "Q", "answer": "So.\n#### 1,234"}, "1234"),
    ("gsm8k", {"question": "Q", "answer": "yes"}, "yes"),
    ("problem-solution", {"problem": "Q", "solution": r"\boxed{\frac{1}{2}}", "level": "5"}, r"\frac{1}{2}"),
    ("problem-solution", {"problem": "Q", "solution": "x", "answer": "7"}, "7"),
    ("verl", {"prompt": CHAT, **VERL, "extra_info": {"index": "1"}}, "34"),
    ("verl", {"prompt": "Q", "solution": "34", "source_prompt": CHAT, **VERL}, "34"),
    ("mbpp", {"task_id": 2, "text": "Q", "code": "def f(): ...", "test_list": ["assert f() is None"]}, None),
    ("mbpp", {"prompt": "Q", "code": "", "test_list": ["assert f()"], "test_imports": []}, None),
    ("humaneval", {"task_id": "HumanEval/0", "prompt": "Q", "canonical_solution": "", "entry_point": "f",
                   "test": "def check(candidate):\n    assert candidate()"}, None),
    ("ultrafeedback", INSTRUCTED, None),
    ("trl-preference", {"prompt": "Q", "prompt_id": "1", "chosen": ANSWERED,
                        "rejected": [*CHAT, {"role": "assistant", "content": "B"}]}, None),
    ("trl-preference", {"prompt": "Q", "chosen": "A", "rejected": "B"}, None),
    ("trl-prompt", {"prompt": "Q", "answer": "3"}, "3"),
    ("trl-prompt-completion", {"prompt": CHAT, "completion": ANSWERED[1:]}, None),
    ("trl-unpaired", {"prompt": "Q", "completion": "A", "label": True}, None),
    ("trl-language-modeling", {"messages": ANSWERED}, None),
    ("sharegpt", {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]}, None),
    ("openai", LOGGED, None),
    ("data-juicer", {"query": "Q", "response": "A"}, None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "row", "answer"), FAMILIES)
def test_a_family_is_recognised_and_its_prompt_and_answer_found(
    name: str, row: dict[str, Any], answer: str | None
) -> None:
    chosen = recognised([row], "rows")
    assert chosen.name == name
    task = task_in(chosen, row, Origin("t"))
    assert [(one["role"], one["content"]) for one in task.messages] == [("user", "Q")]
    assert task.answer == answer
    assert not any(key.startswith("rft:") for key in task.metadata)


def test_unit_tests_of_recognised_rows_are_those_that_the_reward_reads() -> None:
    rows = {name: row for name, row, _ in FAMILIES}
    tested = {name: _task(rows[name]) for name in ("mbpp", "humaneval")}
    assert [one.statements for one in unit_tests(tested["mbpp"], "python").tests] == ["assert f()"]
    [only] = unit_tests(tested["humaneval"], "python").tests
    assert only.statements == "def check(candidate):\n    assert candidate()\ncheck(f)"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "Q", "reward_model": {"style": "rule"}}, "'reward_model' has no 'ground_truth'"),
        (
            {"problem": "Q", "solution": "no box"},
            "no answer is found in 'solution'; name the columns",
        ),
        ({"text": "a whole text"}, "it has a text and no prompt; name the prompt's column"),
        ({"prompt": "", "answer": "3"}, "column 'prompt' is empty"),
    ],
)
def test_a_row_without_what_its_family_has_is_refused(row: dict[str, Any], message: str) -> None:
    with pytest.raises(RowError, match=message):
        _task(row)


def _task(row: dict[str, Any]) -> Task:
    return task_in(recognised([row], "rows"), row, Origin("t"))
