"""Which format a file's columns are."""

import pytest

from rft_data.core.errors import RecipeError
from rft_data.exchange.formats import detect

CASES = {
    "question answer": "gsm8k",
    "question answer difficulty": "gsm8k",
    "problem solution": "problem-solution",
    "problem solution answer level type": "problem-solution",
    "problem answer": "problem-solution",
    "prompt": "trl-prompt",
    "prompt data_source reward_model": "trl-prompt",
    "prompt completion": "trl-prompt-completion",
    "prompt completion label": "trl-unpaired",
    "prompt chosen rejected": "trl-preference",
    "chosen rejected score_chosen score_rejected": "trl-preference",
    "text": "trl-language-modeling",
    "messages": "trl-language-modeling",
    "messages tools": "trl-language-modeling",
    "messages __dj__stats__": "data-juicer-messages",
    "query response": "data-juicer",
    "query response history system __dj__stats__": "data-juicer",
    "conversations": "sharegpt",
    "conversations id tools system": "sharegpt",
    "request response": "openai",
    "custom_id method url body": "openai",
    "id custom_id response error": "openai",
    "resourceSpans": "otlp",
    "resourceLogs": "otlp",
    "name context span_kind attributes": "phoenix",
    "context.trace_id context.span_id name": "phoenix",
    "span_id name annotator_kind result": "phoenix",
    "id trace_id type start_time input output": "langfuse",
    "id traceId type startTime input output": "langfuse",
    "trace observations scores": "langfuse",
    "id name value data_type trace_id": "langfuse",
    "id call_type messages response status": "litellm",
}


@pytest.mark.parametrize("columns", CASES)
def test_columns_tell_the_format(columns: str) -> None:
    rows = [dict.fromkeys(columns.split(), "x")]
    assert detect(rows, "file").name == CASES[columns]
    assert detect([*rows, {**rows[0], "unknown": 1}], "file").name == CASES[columns]


def test_a_column_that_is_always_null_does_not_count() -> None:
    assert detect([{"text": "x", "messages": None, "chosen": None}], "file").name == "trl-language-modeling"


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ("question answer prompt", ["gsm8k", "trl-prompt"]),
        ("prompt chosen rejected messages", ["trl-preference", "trl-language-modeling"]),
        ("messages conversations", ["trl-language-modeling", "sharegpt"]),
    ],
)
def test_columns_of_two_formats_are_not_guessed_at(columns: str, names: list[str]) -> None:
    with pytest.raises(RecipeError, match=r"file: the columns are .* they fit") as caught:
        detect([dict.fromkeys(columns.split(), "x")], "file")
    assert all(f"\n  {name}: " in str(caught.value) for name in names)
    assert str(caught.value).count("\n") == len(names)


@pytest.mark.parametrize("row", [{}, {"instruction": "x", "output": "y"}, {"prompt": None}])
def test_unknown_columns_are_listed_with_every_accepted_shape(row: dict) -> None:
    with pytest.raises(
        RecipeError, match=r"no format fits them; say which with format=.* Accepted shapes:"
    ) as caught:
        detect([row], "file")
    found = ", ".join(sorted(name for name, value in row.items() if value)) or "none"
    assert f"file: the columns are {found};" in str(caught.value)
    assert "  sharegpt: conversations: [{from: human|gpt|system|tool, value}]" in str(caught.value)
    assert "  sft:" not in str(caught.value)
