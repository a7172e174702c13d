"""Tasks in the columns of well-known datasets: verl (DAPO-17k), MBPP, HumanEval, UltraFeedback; read only.

With the formats of imports they are what a task source recognises by its columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rft_data.core.errors import RowError
from rft_data.core.json_types import Json
from rft_data.core.rows import Experience, PreferencePair, Task
from rft_data.exchange.formats.preferences import shared_beginning
from rft_data.exchange.formats.questions import PROBLEM_SOLUTION
from rft_data.exchange.formats.records import (
    RESERVED,
    Format,
    Origin,
    RawRow,
    Record,
    Row,
    extra_columns,
    text_cell,
)
from rft_data.exchange.formats.registry import FORMATS, detect
from rft_data.exchange.formats.trl import text_or_messages

_TRUTH = "ground_truth"


def _task(origin: Origin, prompt: Json, answer: Json, metadata: Row) -> Sequence[Record]:
    messages, _ = text_or_messages(prompt, "user", "prompt")
    reference = None if answer is None else str(answer)
    return [Task(origin.taskset, tuple(messages), reference, origin.split, metadata=metadata)]


def read_verl(row: Row, origin: Origin) -> Sequence[Record]:
    """A task whose answer is `reward_model.ground_truth`."""
    model = row.get("reward_model")
    if not isinstance(model, Mapping) or _TRUTH not in model:
        raise RowError(f"column 'reward_model' has no '{_TRUTH}'")
    return _task(origin, row.get("prompt"), model[_TRUTH], extra_columns(row, ("prompt", "reward_model")))


def read_mbpp(row: Row, origin: Origin) -> Sequence[Record]:
    """A task with its tests in the metadata, where the reward `code_tests` finds them."""
    prompt = "prompt" if row.get("prompt") is not None else "text"
    return _task(origin, text_cell(row, prompt), None, extra_columns(row, (prompt,)))


def read_humaneval(row: Row, origin: Origin) -> Sequence[Record]:
    """A task with its test in the metadata as `tests`, which the reward `code_tests` reads."""
    metadata = extra_columns(row, ("prompt",))
    metadata["tests"] = [f"{text_cell(row, 'test')}\ncheck({text_cell(row, 'entry_point')})"]
    return _task(origin, text_cell(row, "prompt"), None, metadata)


def read_ultrafeedback(row: Row, origin: Origin) -> Sequence[Record]:
    """A task whose prompt is the instruction; the answers of other models are left out."""
    metadata = extra_columns(row, ("instruction", "completions", "models"))
    return _task(origin, text_cell(row, "instruction"), None, metadata)


TASK_FORMATS: Mapping[str, Format] = {
    **{
        name: made
        for name, made in FORMATS.items()
        if made.read is not None and made.regroup is None and name != "rft"
    },
    "verl": Format(
        "verl",
        ("prompt (text or messages), reward_model: {ground_truth} (DAPO-17k and other sets made for verl)",),
        (frozenset({"prompt", "reward_model"}),),
        read_verl,
    ),
    "mbpp": Format(
        "mbpp",
        ("text or prompt, test_list",),
        (frozenset({"text", "test_list"}), frozenset({"prompt", "test_list"})),
        read_mbpp,
    ),
    "humaneval": Format(
        "humaneval",
        ("prompt, test, entry_point",),
        (frozenset({"prompt", "test", "entry_point"}),),
        read_humaneval,
    ),
    "ultrafeedback": Format(
        "ultrafeedback",
        ("instruction, completions",),
        (frozenset({"instruction", "completions"}),),
        read_ultrafeedback,
    ),
}
"""Kinds of columns that are recognised, by name."""


def recognised(rows: Sequence[RawRow], name: str) -> Format:
    """Kinds of the columns of a table's first rows. Raises: RecipeError when they fit nothing, or several."""
    mend = "say which columns are meant: 'prompt: COLUMN' and 'answer: COLUMN' (or null)"
    return detect(rows, name, TASK_FORMATS, mend)


def task_in(chosen: Format, row: Row, origin: Origin) -> Task:
    """The task of a row: the one that the format reads, or the prompt of its conversation or pair.

    Raises: RowError for a row without a prompt, and for a solution in which no answer is found.
    """
    assert chosen.read is not None  # noqa: S101 - of TASK_FORMATS
    records = chosen.read(row, origin)
    task = next((one for one in records if isinstance(one, Task)), None)
    if task is None and chosen is PROBLEM_SOLUTION:
        raise RowError("no answer is found in 'solution'; name the columns with 'prompt' and 'answer'")
    task = task or _prompt(records[0], origin)
    metadata = {key: value for key, value in task.metadata.items() if not key.startswith(RESERVED)}
    return Task(origin.taskset, task.messages, task.answer, metadata=metadata)


def _prompt(record: Record, origin: Origin) -> Task:
    if isinstance(record, Experience):
        messages = tuple(record.messages[: record.prompt_messages])
    elif isinstance(record, PreferencePair):
        messages = tuple(record.messages or shared_beginning(record.chosen, record.rejected))
    else:
        messages = ()
    if not messages:
        raise RowError("it has a text and no prompt; name the prompt's column with 'prompt'")
    return Task(origin.taskset, messages, metadata=record.metadata)  # type: ignore[union-attr]
