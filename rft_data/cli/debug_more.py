"""One input of `rft debug` after another: what is loaded for the first stays for the others."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from rft_data.cli.edge import say, told
from rft_data.core.errors import RecipeError, RftError

More = Annotated[
    bool,
    typer.Option("--more", help="Then read further ones from stdin, one a line; what is loaded stays."),
]


def each(first: str | None, answer: Callable[[str | None], None], *, more: bool, wanted: str) -> None:
    """Answer the first input; with `more` then those of stdin, where an error ends only its own line.

    Args: wanted: what a line holds; the prompt on a terminal.
    """
    answer(first)
    for line in _lines(wanted) if more else ():
        try:
            answer(line)
        except RftError as err:
            told(err)


def _lines(wanted: str) -> Iterator[str]:
    """The lines of stdin that are not empty, until it ends."""
    while True:
        if sys.stdin.isatty():
            say(f"{wanted}; Ctrl-D ends: ", err=True, end="")
        line = sys.stdin.readline()
        if not line:
            return
        if text := line.strip():
            yield text


def completion(line: str) -> str:
    """A completion as a line: as it is, or a JSON string, which may hold line breaks. Raises: RecipeError."""
    if not line.startswith('"'):
        return line
    try:
        text = json.loads(line)
    except ValueError as err:
        raise RecipeError(
            f"a line that begins with a double quote is a JSON string, and this is none ({err}): {line}"
        ) from err
    return str(text)


def conversation(line: str) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
    """Messages and tools of a line: a JSON list of messages, or {"messages": [...], "tools": [...]}.

    Raises: RecipeError.
    """
    try:
        value = json.loads(line)
    except ValueError as err:
        raise RecipeError(f"a line is JSON, and this is none ({err}): {line}") from err
    messages, tools = (
        (value.get("messages"), value.get("tools")) if isinstance(value, dict) else (value, None)
    )
    whole = isinstance(messages, list) and all(isinstance(one, dict) and "role" in one for one in messages)
    if not whole or not messages:
        raise RecipeError(f'a line holds messages: [{{"role": "user", "content": "Hi"}}]; found: {line}')
    return messages, tools or ()
