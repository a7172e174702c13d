"""Commands as pages write them: read by the parsers that will read them, and not run."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer

from rft_data.cli.app import app

ROOT = Path(__file__).parents[2]
SHELL = {"cd", "export", "for", "done", "git", "ray", "curl", "mkdir", "bash", "docker", "pip"}
"""Words of the shell, and programs of others."""
_UsageError: Any = typer.BadParameter.__base__
_ASSIGNED = re.compile(r"^[A-Z_0-9]+=")
_OUR_FILE = re.compile(r"^(?!.*/[A-Z]+\.)(docker|recipes|requirements|tests|docs|benchmarks)/[\w/.-]+\.\w+$")
_PLACEHOLDER = re.compile(r"^[A-Z][A-Z_0-9]*$")


def commands(body: str) -> Iterator[list[str]]:
    """The words of every command of a console block, without comments and variables set before it."""
    lines = body.replace("\\\n", " ").splitlines()
    for line in lines:
        words = shlex.split(re.sub(r"\$\((.*?)\)", "VALUE", line.strip().removeprefix("do ")), comments=True)
        while words and _ASSIGNED.match(words[0]):
            words = words[1:]
        words = words[: words.index(">")] if ">" in words else words
        if words:
            yield words


def wrong(words: list[str]) -> str | None:
    """What is wrong with a command, or None."""
    program = Path(words[0]).name
    if gone := [word for word in words if _OUR_FILE.match(word) and not (ROOT / word).exists()]:
        return f"no file {gone[0]}"
    if program == "rft":
        check = named if "..." in words else _parsed
        return next((found for one in alternatives(words[1:]) if (found := check(one))), None)
    if program == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        return None if set(words[1:2]) <= targets else f"no target {words[1]}"
    if program in ("python", "python3") and words[1:2] == ["-m"]:
        return None if importlib.util.find_spec(words[2]) else f"no module {words[2]}"
    if program == "pip" and words[1:2] == ["install"]:
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        found = re.findall(r"rft-data\[([\w,-]+)\]", " ".join(words))
        unknown = {extra for extras in found for extra in extras.split(",")} - set(known)
        return f"no extra {sorted(unknown)}" if unknown else None
    return None if program in SHELL else f"'{program}' is no program that this test knows"


def alternatives(words: list[str]) -> Iterator[list[str]]:
    """`buffer info|head B [--json] ...` stands for several commands; what is in brackets may be given."""
    plain = [word.strip("[]") for word in words if word not in ("...", "[...]")]
    for place, word in enumerate(plain[:3]):
        if re.fullmatch(r"[a-z-]+(\|[a-z-]+)+", word):
            for one in word.split("|"):
                yield from alternatives([*plain[:place], one, *plain[place + 1 :]])
            return
    yield plain


@cache
def _command() -> Any:
    return typer.main.get_command(app)


def _parsed(words: list[str]) -> str | None:
    """What the parser says against these words; a group of commands, or `--help`, needs nothing after it.

    A name in capitals stands for what the command wants, be it a number.
    """
    command, words = _command(), ["1" if _PLACEHOLDER.match(word) else word for word in words]
    while hasattr(command, "commands"):
        if not words or words[0] in ("--help", "--version"):
            return None
        if words[0] not in command.commands:
            return f"no command '{words[0]}'"
        command, words = command.commands[words[0]], words[1:]
    try:
        command.make_context("rft", list(words)).close()
    except _UsageError as err:
        return str(err.format_message())
    return None


def named(words: list[str]) -> str | None:
    """What of a command does not exist, the command or an option; arguments may be left out."""
    for given in alternatives(words):
        command = _command()
        while given and hasattr(command, "commands"):
            if given[0] not in command.commands:
                return f"no command '{given[0]}'"
            command, given = command.commands[given[0]], given[1:]
        known = {name for one in command.params for name in [*one.opts, *one.secondary_opts]}
        asked = {word.partition("=")[0] for word in given if word.startswith("-")}
        if asked - known:
            return f"no option {sorted(asked - known)}"
    return None
