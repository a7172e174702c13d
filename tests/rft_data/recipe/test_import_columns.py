"""Columns that an import names become answers and pairs; what they cannot be is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rft_data.buffer import Buffer
from rft_data.core.codec import to_preferences
from rft_data.core.errors import RecipeError
from rft_data.exchange.formats import import_into
from rft_data.recipe.import_columns import ImportColumns
from rft_data.recipe.imports import Import
from rft_data.run.imports import stored_import
from tests.rft_data.cli.test_cli import rft
from tests.rft_data.recipe.test_preflight import mistakes
from tests.rft_data.run.test_online import write_recipe

ASKED = {"role": "user", "content": "1+1?"}
SAID = {"role": "assistant", "content": "2"}
WRONG = {"role": "assistant", "content": "3"}


def stored(folder: Path, row: dict[str, Any], **columns: str) -> Buffer:
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    buffer = Buffer(folder / "buffer")
    stored_import(Import.model_validate({"path": str(folder / "rows.jsonl"), **columns}), buffer)
    return buffer


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"Frage": "1+1?", "Antwort": 2, "Level": 3}, {"prompt": "Frage", "completion": "Antwort"}),
        ({"q": {"text": "1+1"}, "a": "2", "Level": 3}, {"prompt": "{q.text}?", "completion": "{a}"}),
        ({"q": [ASKED], "a": [SAID], "Level": 3}, {"prompt": "q", "completion": "a"}),
        ({"prompt": "1+1?", "completion": "2", "Level": 3}, {"prompt": "prompt", "completion": "completion"}),
    ],
)
def test_a_prompt_and_an_answer_are_a_conversation(
    row: dict[str, Any], columns: dict[str, str], tmp_path: Path
) -> None:
    with stored(tmp_path, row, **columns) as buffer:
        [kept] = buffer.read("experiences", ["messages", "prompt_messages", "metadata"]).to_pylist()
    assert (json.loads(kept["messages"]), kept["prompt_messages"]) == ([ASKED, SAID], 1)
    assert json.loads(kept["metadata"])["Level"] == 3
    assert "rft:plain_text" not in json.loads(kept["metadata"])


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"q": "1+1?", "good": "2", "bad": "3"}, {"prompt": "q", "chosen": "good", "rejected": "bad"}),
        ({"good": [ASKED, SAID], "bad": [ASKED, WRONG]}, {"chosen": "good", "rejected": "bad"}),
        (
            {"q": "1+1?", "good": [ASKED, SAID], "bad": [ASKED, WRONG]},
            {"prompt": "q", "chosen": "good", "rejected": "bad"},
        ),
        (
            {"q": "1+1?", "good": [SAID], "bad": [WRONG]},
            {"prompt": "q", "chosen": "good", "rejected": "bad"},
        ),
    ],
)
def test_two_answers_are_a_pair(row: dict[str, Any], columns: dict[str, str], tmp_path: Path) -> None:
    with stored(tmp_path, row, **columns) as buffer:
        [pair] = to_preferences(buffer.read("preferences"))
    assert [*pair.messages, *pair.chosen] == [ASKED, SAID]
    assert [*pair.messages, *pair.rejected] == [ASKED, WRONG]


def test_a_label_is_a_reward(tmp_path: Path) -> None:
    row = {"q": "1+1?", "a": "2", "good": "true"}
    with stored(tmp_path, row, prompt="q", completion="a", label="good") as buffer:
        assert buffer.read("experiences", ["reward"])["reward"].to_pylist() == [1.0]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"prompt": "q"}, "the columns named are 'prompt'; name 'prompt' and 'completion'"),
        ({"prompt": "q", "chosen": "a"}, "'prompt', 'chosen' and 'rejected' for preference pairs"),
        ({"completion": "a", "chosen": "a", "rejected": "b"}, "the columns named are 'completion', 'chosen'"),
        ({"prompt": "{q", "completion": "a"}, "is broken"),
        ({"prompt": "q", "completion": "a", "format": "sharegpt"}, "'format' says what the columns are"),
    ],
)
def test_what_makes_neither_is_refused(columns: dict[str, str], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Import.model_validate({"path": "rows.jsonl", **columns})


@pytest.mark.slow
def test_columns_that_are_not_there_are_named_before_the_run(tmp_path: Path) -> None:
    odd = tmp_path / "odd.jsonl"
    odd.write_text('{"Frage": "1+1?", "Antwort": "2"}\n')
    recipe = write_recipe(tmp_path)
    unnamed = mistakes(recipe, f"imports=[{{path: {odd}}}]")
    assert "no format fits them; name it with 'format', or name the columns: 'prompt' and 'comp" in unnamed
    wrong = mistakes(recipe, f"imports=[{{path: {odd}, prompt: Frage, completion: Antwrt}}]")
    assert "imports.0.completion" in wrong
    assert "has no column 'Antwrt'; did you mean 'Antwort'" in wrong
    assert "imports.0.p" not in wrong
    with Buffer(tmp_path / "b") as buffer, pytest.raises(RecipeError, match="--prompt COLUMN --completion"):
        import_into(buffer, odd)


@pytest.mark.slow
@pytest.mark.heavy
def test_the_command_takes_them_as_options(tmp_path: Path) -> None:
    odd = tmp_path / "odd.csv"
    odd.write_text("Frage,Antwort\n1+1?,2\n,4\n")
    columns = ("--prompt", "Frage", "--completion", "Antwort")
    done = rft("buffer", "import", str(tmp_path / "b"), str(odd), *columns)
    assert "stored                1  new: 1 experiences" in done.stdout
    assert "odd.csv:3: 'prompt' (column 'Frage') is empty" in done.stdout
    both = rft("buffer", "import", str(tmp_path / "b"), str(odd), *columns, "--format", "sharegpt")
    assert (both.exit_code, "--format says what the columns are" in both.stderr) == (2, True)


def test_without_a_column_there_is_no_format_of_its_own() -> None:
    assert ImportColumns().format() is None
