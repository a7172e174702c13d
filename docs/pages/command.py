"""The page of the command line, from the commands: `python -m docs.pages.command > docs/command.md`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from rft_data.cli.app import app

_HEAD = """\
# The command line

Every command of `rft`, with its arguments and options. Written by `python -m docs.pages.command` from
`rft_data/cli/`; a test keeps it current.

- `RECIPE` is a file, or the name of a shipped recipe where no such file is (`rft recipe list`). `OVERRIDES`
  change it: `seed=1 stages.1.steps=20`, `over.yaml`, `'~evaluation'`; see
  [recipes from recipes](recipe.md#recipes-from-recipes), which also says from where paths are seen.
- `rft --install-completion` lets a shell complete recipes, runs, operators and keys of a recipe.
- Results go to stdout, everything else to stderr. With `--json` stdout is one JSON value; `status`, `logs`
  and the servers print an object a line. A command that fails prints no result; `recipe validate` prints its
  mistakes. Exit codes: [exit_codes.md](exit_codes.md).
- `rft -q COMMAND` says on stderr only what is wrong; `rft -v COMMAND` also what libraries log, and tracebacks
  of errors. `NO_COLOR=1` prints help and progress without colours.
"""


def page() -> str:
    """The whole page as Markdown."""
    return "\n".join([_HEAD, *_commands(typer.main.get_command(app), "rft")]).rstrip() + "\n"


def _commands(command: Any, name: str) -> Iterator[str]:
    """A command's own part, or those of the commands in it."""
    inside = getattr(command, "commands", None)
    if inside is None:
        yield from _one(command, name)
        return
    if name.count(" ") == 1:
        yield from (f"## {name}", "", str(command.help or "").strip(), "")
    for below in inside:
        yield from _commands(inside[below], f"{name} {below}")


def _one(command: Any, name: str) -> Iterator[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and one.name != "help"]
    words = " ".join(_argument(one) for one in arguments)
    yield from (f"#{'#' * name.count(' ')} {name}", "", " ".join(str(command.help or "").split()), "")
    yield f"`{name}{' ' + words if words else ''}{' [OPTIONS]' if options else ''}`"
    yield ""
    rows = [(f"`{_argument(one)}`", one) for one in arguments]
    rows += [(", ".join(f"`{flag}`" for flag in [*one.opts, *one.secondary_opts]), one) for one in options]
    if rows:
        yield from ("| | |", "|---|---|")
        yield from (f"| {shown} | {_about(one)} |" for shown, one in rows)
        yield ""


def _argument(one: Any) -> str:
    shown = one.name.rstrip("_").upper() + ("..." if one.nargs == -1 else "")
    return shown if one.required else f"[{shown}]"


def _about(one: Any) -> str:
    default = one.default if isinstance(one.default, int | float | str) else None
    unset = default is None or isinstance(default, bool) or default == ""
    text = " ".join(str(one.help or "").split()).replace("|", "\\|")
    return text if unset else f"{text} Default: `{default}`."


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 - the page is the output
