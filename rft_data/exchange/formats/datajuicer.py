"""Data-Juicer's post-tuning rows: `query`, `response`, `history`, `system`, or `messages`.

The columns that its operators compute (`__dj__stats__`, `__dj__meta__`) stay in metadata and are written
again.
"""

from __future__ import annotations

from collections.abc import Sequence

from rft_data.core.chat import chat, first_answer, one_text, tools, written
from rft_data.core.errors import RowError
from rft_data.core.json_types import JsonObject
from rft_data.core.rows import Experience, Message
from rft_data.exchange.formats.records import (
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

_COMPUTED = ("__dj__stats__", "__dj__meta__")


def read_query(row: Row, origin: Origin) -> Sequence[Record]:
    """An experience: the response is the completion, all messages before it are the prompt."""
    messages: list[Message] = []
    system = row.get("system")
    if system is not None and not isinstance(system, str):
        raise RowError(f"column 'system' holds {type(system).__name__}; text is needed")
    if system:
        messages.append({"role": "system", "content": system})
    history = row.get("history") or []
    if not isinstance(history, list):
        raise RowError(f"column 'history' holds {type(history).__name__}; a list of pairs is needed")
    for place, turn in enumerate(history):
        if not isinstance(turn, list) or len(turn) != 2 or not all(isinstance(text, str) for text in turn):
            raise RowError(f"history[{place}] is not a pair of query and response")
        messages += [{"role": "user", "content": turn[0]}, {"role": "assistant", "content": turn[1]}]
    messages.append({"role": "user", "content": text_cell(row, "query")})
    answer = {"role": "assistant", "content": text_cell(row, "response")}
    metadata = extra_columns(row, ("system", "history", "query", "response"))
    return [imported_experience(origin, [*messages, answer], len(messages), metadata=metadata)]


def read_messages(row: Row, origin: Origin) -> Sequence[Record]:
    """An experience; its completion begins with the first answer."""
    messages = chat(row.get("messages"), "column 'messages'")
    metadata = extra_columns(row, ("messages", "tools"))
    return [
        imported_experience(
            origin, messages, first_answer(messages), tools=tools(row.get("tools")), metadata=metadata
        )
    ]


def write_query(record: Experience, _: Choices) -> Row:
    """System, history, query and response; one that is missing is "" or []."""
    split = record.prompt_messages
    if record.tools:
        raise RowError("the row has tools; write it as data-juicer-messages")
    prompt, system = list(record.messages[:split]), ""
    if prompt and prompt[0]["role"] == "system":
        system = one_text([prompt.pop(0)], "system", "the system message")
    if not prompt:
        raise RowError("there is no query")
    past = prompt[:-1]
    if len(past) % 2:
        raise RowError("the history is not pairs of query and response; write it as data-juicer-messages")
    row: Row = {
        "system": system,
        "history": [
            [_text(past[i], "user"), _text(past[i + 1], "assistant")] for i in range(0, len(past), 2)
        ],
        "query": _text(prompt[-1], "user"),
        "response": one_text(record.messages[split:], "assistant", "the completion"),
    }
    return _with_computed(row, record.metadata)


def _text(item: JsonObject, role: str) -> str:
    return one_text([item], role, "a turn of the prompt")


def write_messages(record: Experience, _: Choices) -> Row:
    """All messages, and the tools when there are any."""
    if not record.messages:
        raise RowError("the row has no messages")
    row: Row = {"messages": written(record.messages)}
    if record.tools:
        row["tools"] = [dict(tool) for tool in record.tools]
    return _with_computed(row, record.metadata)


def _with_computed(row: Row, metadata: JsonObject) -> Row:
    computed = {name: metadata[name] for name in _COMPUTED if name in metadata}
    return with_metadata({**row, **computed}, metadata, but=_COMPUTED)


DATA_JUICER = Format(
    "data-juicer",
    ("query, response and optionally history, system, __dj__stats__",),
    (frozenset({"query", "response"}),),
    read_query,
    write_query,
    ("experiences",),
)
DATA_JUICER_MESSAGES = Format(
    "data-juicer-messages",
    ("messages, __dj__stats__ and optionally tools",),
    (frozenset({"messages", "__dj__stats__"}),),
    read_messages,
    write_messages,
    ("experiences",),
)
