"""Values of a row by the names of its columns: a column, one inside another, or a template of several."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence

from rft_data.core.chat import chat
from rft_data.core.errors import RecipeError, RowError
from rft_data.core.rows import Message

_BRACES = "write '{{' and '}}' for braces that stay"


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


def is_template(text: str) -> bool:
    """Whether a text has braces, so that it is no name of a column."""
    return "{" in text or "}" in text


def template_fields(text: str) -> list[str]:
    """The columns that a template names.

    Raises: RecipeError for braces that are no column's name.
    """
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as err:
        raise RecipeError(f"the template {text!r} is broken: {err}; {_BRACES}") from err
    for _, name, spec, conversion in parts:
        if name is not None and (not name or name != name.strip() or spec or conversion):
            said = name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            raise RecipeError(f"the template {text!r} has '{{{said}}}', which is no column's name; {_BRACES}")
    return [name for _, name, _, _ in parts if name is not None]


def filled(template: str, row: Mapping[str, object], where: str) -> str:
    """A template with a row's values in place of its fields; a list of texts has one a line.

    Raises: RowError for a field that is not there, is null, or holds neither text nor a number.
    """
    made = ""
    for literal, name, _, _ in string.Formatter().parse(template):
        made += literal + ("" if name is None else _text(pick(row, name, where), f"{where}: field '{name}'"))
    return made


def _text(value: object, where: str) -> str:
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return "\n".join(value)
    if isinstance(value, str | int | float):
        return str(value)
    found = "nothing" if value is None else type(value).__name__
    raise RowError(f"{where} holds {found}; a template takes text, numbers and lists of texts.")


def value_at(row: Mapping[str, object], column: str, where: str) -> object:
    """Text that a template makes of a row, or the value of a column. Raises: RowError."""
    return filled(column, row, where) if is_template(column) else pick(row, column, where)


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
            f"{where} ends with a message of the assistant, which would be part of the prompt; leave it "
            "out. For whole conversations use source: {use: file, path: ...} without 'prompt': the task is "
            "then what comes before the first answer."
        )
    return tuple(messages)


def answer_text(value: object) -> str | None:
    """A reference answer as it is stored: text; JSON text of a list or an object; None for null."""
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return None if value is None else str(value)


def with_system(messages: Sequence[Message], system: str, where: str) -> tuple[Message, ...]:
    """A prompt after a system message. Raises: RowError when it has one."""
    if messages[0]["role"] == "system":
        raise RowError(
            f"{where}: the prompt has a system message of its own; remove 'system' of the taskset."
        )
    return ({"role": "system", "content": system}, *messages)
