"""Where tasks come from: files and generators, read into `Task` rows.

Held-out tasks are chosen by content hash, so the same question is held out in every source, or in none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rft_data.core.chat import chat
from rft_data.core.errors import MissingFileError, RowError, UnknownComponentError
from rft_data.core.heldout import prompt_share
from rft_data.core.lookup import need, suggest
from rft_data.core.rows import Message, Task
from rft_data.core.words import Split


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """(line number from 1, object) of each non-empty line.

    Raises: MissingFileError; RowError naming file and line when a line is not a JSON object.
    """
    if not path.is_file():
        raise MissingFileError(f"there is no file {path}; give the path of a JSON-lines file.")
    number = 0
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, _object(line, f"{path}:{number}")
    except UnicodeDecodeError as err:
        raise RowError(
            f"{path}:{number + 1}: not JSON lines: {_kind(path)}. Source 'jsonl' reads one JSON object a "
            f"line; bring other formats in with: rft buffer import BUFFER {path} --taskset NAME, and take "
            "the tasks from there with source: {use: stored}."
        ) from err


def _object(line: str, where: str) -> dict[str, object]:
    try:
        row = json.loads(line, parse_constant=_no_constant)
    except json.JSONDecodeError as err:
        raise RowError(f"{where}: not JSON: {err.msg.removesuffix(' at')} at column {err.colno}.") from err
    except ValueError as err:
        raise RowError(f"{where}: not JSON: {err}.") from err
    if not isinstance(row, dict):
        raise RowError(f"{where}: found {type(row).__name__}, wanted a JSON object.")
    return row


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def _kind(path: Path) -> str:
    """What a file that is no text is, by its first bytes."""
    with path.open("rb") as file:
        head = file.read(4)
    known = {b"PAR1": "Parquet", b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
    kind = next((f"a {name} file" for start, name in known.items() if head.startswith(start)), None)
    return f"it is {kind or 'no text in UTF-8'}"


def pick(row: Mapping[str, object], field: str, where: str) -> object:
    """The value at a dotted field name.

    Raises: RowError naming the row, the field and the fields there are.
    """
    value: object = row
    for part in field.split("."):
        if not isinstance(value, Mapping) or part not in value:
            have = sorted(value) if isinstance(value, Mapping) else [type(value).__name__]
            raise RowError(f"{where}: there is no field '{field}'; found {', '.join(map(str, have))}.")
        value = value[part]
    return value


def jsonl_tasks(
    path: Path,
    *,
    taskset: str,
    prompt: str,
    answer: str | None,
    difficulty: float | None,
    heldout: float,
    metadata: Sequence[str] | None = None,
) -> list[Task]:
    """One task per line of a JSON-lines file.

    Args: answer: None: the tasks have none. metadata: fields that it keeps; None: all other columns.
    Raises: MissingFileError; RowError naming the line that is no task.
    """
    tasks = []
    for number, row in read_jsonl(path):
        where = f"{path}:{number}"
        if metadata is None:
            kept = {
                key: value for key, value in row.items() if key not in (prompt, answer) and value is not None
            }
        else:
            kept = {field: pick(row, field, where) for field in metadata}
        asked = prompt_messages(pick(row, prompt, where), f"{where}: field '{prompt}'")
        reference = None if answer is None else answer_text(pick(row, answer, where))
        tasks.append(make_task(taskset, asked, reference, difficulty, heldout, kept))
    return tasks


def prompt_messages(value: object, where: str) -> tuple[Message, ...]:
    """A prompt as messages: a text is what a user says, a list of chat messages is taken as it is.

    Raises: RowError naming `where` for anything else, and for messages that end with an answer.
    """
    if isinstance(value, str):
        return ({"role": "user", "content": value},)
    if not isinstance(value, list):
        raise RowError(f"{where} holds {type(value).__name__}; a prompt is text or a list of chat messages.")
    messages = chat(value, where)
    if messages[-1]["role"] == "assistant":
        raise RowError(
            f"{where} ends with a message of the assistant, which would be part of the prompt; leave it out, "
            "or import the conversations (rft buffer import) and take the tasks with source: {use: stored}."
        )
    return tuple(messages)


def answer_text(value: object) -> str | None:
    """A reference answer as it is stored: text; JSON text of a list or an object; None for null."""
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return None if value is None else str(value)


def reasoning_gym_tasks(
    dataset: str,
    *,
    size: int,
    seed: int,
    args: Mapping[str, object],
    taskset: str,
    difficulty: float | None,
    heldout: float,
    metadata: Sequence[str] | None = None,
) -> list[Task]:
    """Distinct tasks among `size` generated by a dataset of the `reasoning-gym` package.

    Raises: MissingExtraError; UnknownComponentError for a dataset it does not have; RowError for
        arguments that dataset refuses.
    """
    gym = need("reasoning_gym", "train", f"taskset '{taskset}' (source reasoning_gym)")
    known = need("reasoning_gym.factory", "train", "source reasoning_gym").DATASETS
    if dataset not in known:
        raise UnknownComponentError(
            f"taskset '{taskset}': reasoning_gym has no dataset '{dataset}';{suggest(dataset, known)}"
        )
    try:
        items = gym.create_dataset(dataset, size=size, seed=seed, **args)
    except (TypeError, ValueError, AssertionError) as err:
        raise RowError(
            f"taskset '{taskset}': reasoning_gym dataset '{dataset}' refuses {dict(args)}: {err}"
        ) from err
    tasks = (
        make_task(
            taskset,
            item["question"],
            str(item["answer"]),
            difficulty,
            heldout,
            {field: pick(item["metadata"], field, f"dataset '{dataset}'") for field in metadata or ()},
        )
        for item in items
    )
    return list({task.task_id: task for task in tasks}.values())


def make_task(
    taskset: str,
    prompt: str | Sequence[Message],
    answer: str | None,
    difficulty: float | None,
    heldout: float,
    metadata: Mapping[str, object] | None = None,
) -> Task:
    """A task; it is held out when its content hash falls in the first `heldout` share.

    Args: prompt: what a user asks, or the messages.
    """
    messages = ({"role": "user", "content": prompt},) if isinstance(prompt, str) else tuple(prompt)
    split = Split.HELDOUT if prompt_share(messages) < heldout else Split.TRAIN
    return Task(taskset, messages, answer, split, difficulty, metadata or {})
