"""TRL's types for prompts and completions: prompt-only, prompt-completion, language modelling, unpaired.

Each has plain strings or messages. A string is stored as one message, with the metadata key `PLAIN`; it is
written as a string again, and no chat template is applied to it.
"""

from __future__ import annotations

from collections.abc import Sequence

from rft_data.core.chat import chat, first_answer, message_text, one_text, tools, written
from rft_data.core.errors import RowError
from rft_data.core.json_types import Json, JsonObject
from rft_data.core.rows import Experience, Message, Task
from rft_data.exchange.formats.records import (
    PLAIN,
    Choices,
    Format,
    Origin,
    Record,
    Row,
    extra_columns,
    imported_experience,
    text_cell,
    with_metadata,
)

_BESIDE = ("tools", "images")


def text_or_messages(value: Json, role: str, where: str) -> tuple[list[JsonObject], bool]:
    """(messages, whether the column held a plain string) for the column named `where`.

    Raises: RowError if it holds neither.
    """
    if isinstance(value, str):
        return ([{"role": role, "content": value}] if value else []), True
    if value is None:
        raise RowError(f"column '{where}' is empty; text or a list of messages is needed")
    return chat(value, f"column '{where}'"), False


def trl_metadata(row: Row, known: Sequence[str], *, plain: bool) -> Row:
    """Metadata of a TRL row: its columns that are not known, its images, and whether it is plain."""
    metadata = extra_columns(row, (*known, *_BESIDE))
    if row.get("images"):
        metadata["images"] = row["images"]
    return {**metadata, PLAIN: True} if plain else metadata


def as_column(messages: Sequence[Message], role: str, what: str, *, plain: bool) -> Json:
    """A column for a prompt or an answer: a string if it was imported as one, else messages."""
    if not plain:
        if not messages:
            raise RowError(f"{what} is empty")
        return written(messages)
    return one_text(messages, role, what) if messages else ""


def with_extras(row: Row, record: Experience | Task, offered: Sequence[JsonObject] | None) -> Row:
    """The row with columns for tools, images and metadata, as far as there are any."""
    images = record.metadata.get("images")
    row = {
        **row,
        **({"tools": [dict(tool) for tool in offered]} if offered else {}),
        **({"images": images} if images else {}),
    }
    return with_metadata(row, record.metadata, but=_BESIDE)


def _pair(row: Row) -> tuple[list[JsonObject], int, bool]:
    """(prompt and completion as messages, how many are the prompt, whether both were plain strings)."""
    prompt, plain = text_or_messages(row.get("prompt"), "user", "prompt")
    completion, same = text_or_messages(row.get("completion"), "assistant", "completion")
    if plain != same:
        kinds = ("text", "messages") if plain else ("messages", "text")
        raise RowError("prompt is {} but completion is {}; both must be of one kind".format(*kinds))
    if not completion:
        raise RowError("column 'completion' is empty")
    return [*prompt, *completion], len(prompt), plain


def read_prompt(row: Row, origin: Origin) -> Sequence[Record]:
    """A task; `answer` is its reference answer."""
    prompt, plain = text_or_messages(row.get("prompt"), "user", "prompt")
    if not prompt:
        raise RowError("column 'prompt' is empty")
    answer = None if row.get("answer") in (None, "") else text_cell(row, "answer")
    metadata = trl_metadata(row, ("prompt", "answer"), plain=plain)
    known_tools = tools(row.get("tools"))
    if known_tools:
        metadata["tools"] = known_tools
    return [Task(origin.taskset, tuple(prompt), answer, origin.split, metadata=metadata)]


def write_prompt(record: Task, _: Choices) -> Row:
    """The prompt, and the answer if the task has one."""
    plain = record.metadata.get(PLAIN) is True
    row: Row = {"prompt": as_column(record.messages, "user", "the prompt", plain=plain)}
    if record.answer is not None:
        row["answer"] = record.answer
    return with_extras(row, record, tools(record.metadata.get("tools")))


def read_completion(row: Row, origin: Origin) -> Sequence[Record]:
    """An experience without reward."""
    messages, split, plain = _pair(row)
    metadata = trl_metadata(row, ("prompt", "completion"), plain=plain)
    return [imported_experience(origin, messages, split, tools=tools(row.get("tools")), metadata=metadata)]


def write_completion(record: Experience, _: Choices) -> Row:
    """Prompt and completion."""
    plain = record.metadata.get(PLAIN) is True
    split = record.prompt_messages
    if split == len(record.messages):
        raise RowError("the completion is empty")
    row: Row = {
        "prompt": as_column(record.messages[:split], "user", "the prompt", plain=plain),
        "completion": as_column(record.messages[split:], "assistant", "the completion", plain=plain),
    }
    return with_extras(row, record, record.tools)


def read_language(row: Row, origin: Origin) -> Sequence[Record]:
    """An experience; its completion is the whole text, or all messages from the first answer on."""
    if row.get("messages") is not None:
        if row.get("text") is not None:
            raise RowError("both 'text' and 'messages' are filled; one is needed")
        messages = chat(row["messages"], "column 'messages'")
        split, plain = first_answer(messages), False
    else:
        text = text_cell(row, "text")
        messages, split, plain = [{"role": "assistant", "content": text}], 0, True
    metadata = trl_metadata(row, ("text", "messages"), plain=plain)
    return [imported_experience(origin, messages, split, tools=tools(row.get("tools")), metadata=metadata)]


def write_language(record: Experience, _: Choices) -> Row:
    """The text, or all messages."""
    if not record.messages:
        raise RowError("the row has no messages")
    if record.metadata.get(PLAIN) is True:
        return with_extras({"text": "".join(map(message_text, record.messages))}, record, record.tools)
    return with_extras({"messages": written(record.messages)}, record, record.tools)


def read_unpaired(row: Row, origin: Origin) -> Sequence[Record]:
    """An experience with reward 1 or 0."""
    messages, split, plain = _pair(row)
    reward = float(_label(row.get("label")))
    metadata = trl_metadata(row, ("prompt", "completion", "label"), plain=plain)
    return [
        imported_experience(
            origin,
            messages,
            split,
            tools=tools(row.get("tools")),
            metadata=metadata,
            reward=reward,
            reward_parts={"label": reward},
        )
    ]


def _label(value: Json) -> bool:
    names = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
    found = names.get(str(value).lower())
    if found is None:
        raise RowError(f"column 'label' holds {value!r}; true or false is needed")
    return found


def write_unpaired(record: Experience, choices: Choices) -> Row:
    """Prompt, completion, and whether the reward reaches the threshold."""
    if record.reward is None:
        raise RowError("the row has no reward yet")
    row = write_completion(record, choices)
    return {
        "prompt": row.pop("prompt"),
        "completion": row.pop("completion"),
        "label": record.reward >= choices.threshold,
        **row,
    }


PROMPT = Format(
    "trl-prompt",
    ("prompt (text or messages) and optionally answer, tools, images",),
    (frozenset({"prompt"}),),
    read_prompt,
    write_prompt,
    ("tasks",),
    flat=True,
)
COMPLETION = Format(
    "trl-prompt-completion",
    ("prompt, completion (both text or both messages)",),
    (frozenset({"prompt", "completion"}),),
    read_completion,
    write_completion,
    ("experiences",),
    flat=True,
)
LANGUAGE = Format(
    "trl-language-modeling",
    ("text", "messages and optionally tools"),
    (frozenset({"text"}), frozenset({"messages"})),
    read_language,
    write_language,
    ("experiences",),
    flat=True,
)
UNPAIRED = Format(
    "trl-unpaired",
    ("prompt, completion, label (true or false)",),
    (frozenset({"prompt", "completion", "label"}),),
    read_unpaired,
    write_unpaired,
    ("experiences",),
    flat=True,
)
