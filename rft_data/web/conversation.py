"""A conversation as a person reads it: roles, texts, thinking, images, tool calls and what answers them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rft_data.core.images import REFERENCE

_IMAGES = ("image", "image_url")


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of a message."""

    name: str
    arguments: tuple[tuple[str, str], ...]
    """Name and value of each; one without a name where they are no JSON object."""
    answer_to: str
    """Its id, which the message of its result names; may be empty."""


@dataclass(frozen=True, slots=True)
class Said:
    """One message."""

    role: str
    text: str
    thinking: str
    images: tuple[str, ...]
    """Payload ids of its images."""
    calls: tuple[Call, ...]
    answers: str
    """Name or id of the tool call that it is the result of; else empty."""
    sampled: bool
    """Whether it is part of the completion."""


def conversation(messages: Sequence[object], prompt: int) -> list[Said]:
    """The messages, of whatever form; those after the first `prompt` are the completion."""
    found = []
    for place, one in enumerate(messages):
        message = one if isinstance(one, Mapping) else {"content": one}
        parts = list(_parts(message.get("content")))
        calls = message.get("tool_calls")
        answers = message.get("name") or message.get("tool_call_id") or ""
        found.append(
            Said(
                role=str(message.get("role", "")),
                text="\n".join(text for text, image in parts if not image),
                thinking=_plain(message.get("reasoning_content")),
                images=tuple(image for _, image in parts if image),
                calls=tuple(map(_call, calls)) if isinstance(calls, list) else (),
                answers=_plain(answers) if message.get("role") == "tool" else "",
                sampled=place >= prompt,
            )
        )
    return found


def _parts(content: object) -> Iterator[tuple[str, str]]:
    """Text and payload id of each part of a content, one of them empty."""
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, Mapping):
            text, image = part.get("text"), _image(part)
            if image or isinstance(text, str):
                yield (text if isinstance(text, str) and not image else ""), image
                continue
        if part is not None:
            yield _plain(part), ""


def _image(part: Mapping[str, object]) -> str:
    """The payload id of a stored image; empty for anything else, which is shown as text."""
    if part.get("type") not in _IMAGES:
        return ""
    value = part.get(str(part["type"]))
    if isinstance(value, Mapping):
        value = value.get("url")
    named = REFERENCE.fullmatch(value) if isinstance(value, str) else None
    return named[1] if named else ""


def _call(given: object) -> Call:
    """A tool call in OpenAI's form; of any other, all of it as one argument."""
    call = given if isinstance(given, Mapping) else {}
    function = call.get("function", call)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return Call("", (("", _plain(given)),), "")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    pairs = arguments.items() if isinstance(arguments, Mapping) else [("", arguments)]
    written = tuple((str(name), _plain(value)) for name, value in pairs)
    return Call(str(function["name"]), written, _plain(call.get("id") or ""))


def _plain(value: object) -> str:
    """A text as it is, anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
