"""The commands that look at a run or steer it from outside: `rft status | stop | logs | token`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import IO, Annotated, Literal

import typer

from rft_data.cli.edge import Json, edge, say, show
from rft_data.cli.status import RunDir, status

run_status_app = typer.Typer(help="Look at a run, or end it.", no_args_is_help=True)
run_status_app.command("status")(status)

_LOOK_S = 0.2
_TAIL_BYTES = 1 << 20


@run_status_app.command()
def stop(
    run_dir: RunDir,
    now: Annotated[
        bool, typer.Option("--now", help="End at once, without a checkpoint; nothing stored is lost.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Ask a run to finish what is under way, write a checkpoint and end; `rft resume` continues it."""
    with edge():
        from rft_data.run.mirror import stop_run

        _show_outcome(run_dir, stop_run(run_dir, now=now), as_json=as_json)


@run_status_app.command()
def scale(
    run_dir: RunDir,
    explorers: Annotated[int, typer.Argument(min=1, help="How many explorers the run should have.")],
    as_json: Json = False,
) -> None:
    """Ask a run whose `placement.explorers.count` is a range for more explorers, or for fewer."""
    with edge():
        from rft_data.run.mirror import run_folder
        from rft_data.run.scaling import ask_for_explorers

        _show_outcome(run_dir, ask_for_explorers(run_folder(run_dir), explorers), as_json=as_json)


@run_status_app.command()
def token(
    role: Annotated[
        Literal["feedback", "curator", "reader", "explorer", "trainer"],
        typer.Argument(help="What its holder may do at the hub; see docs/hub.md."),
    ],
    name: Annotated[str, typer.Option(help="Name of the one client that will use it.")],
    as_json: Json = False,
) -> None:
    """Print a token for one client of a run's hub, made from the run's secret in RFT_HUB_TOKEN."""
    with edge():
        from rft_data.core.errors import RecipeError
        from rft_data.core.words import HubRole
        from rft_data.placement.hub.access import make_token, parse_token
        from rft_data.placement.hub.client import HUB_TOKEN

        secret = os.environ.get(HUB_TOKEN, "")
        if not secret or parse_token(secret) is not None:
            raise RecipeError(
                f"the environment variable {HUB_TOKEN} has {'a token' if secret else 'no secret'}; tokens "
                "are made from the secret that the run was started with: set it to that."
            )
        made = make_token(secret, HubRole(role), name)
        show({"token": made}, made, as_json=as_json)


@run_status_app.command()
def logs(
    run_dir: RunDir,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="Start with the last so many.")] = 50,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Go on until the run ends.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> None:
    """Print the end of a run's log, and what is added to it until the run ends."""
    with edge():
        from rft_data.core.errors import MissingFileError
        from rft_data.run.mirror import run_folder
        from rft_data.run.record import COPY_FILE, LOG_FILE, standing

        folder = run_folder(run_dir)
        alive = standing(folder).alive and not (folder / COPY_FILE).is_file()  # a copy does not grow
        path = folder / LOG_FILE
        if not path.is_file():
            raise MissingFileError(
                f"the run in {run_dir} has no {LOG_FILE}: it was never started by this release."
            )
        with path.open("rb") as file:
            texts = iter(_last_lines(file, lines))
            if follow and alive:
                texts = chain(texts, _added(file, lambda: standing(folder).alive))
            for text in _whole_lines(texts) if as_json else texts:
                say(json.dumps({"line": text}) if as_json else text, end="\n" if as_json else "")


def _show_outcome(run_dir: str, said: str, *, as_json: bool) -> None:
    """Answer to a request to a run."""
    from rft_data.run.mirror import run_folder
    from rft_data.run.record import standing

    value = {"run_dir": run_dir, "state": standing(run_folder(run_dir)).state, "said": said}
    show(value, said, as_json=as_json)


def _whole_lines(texts: Iterable[str]) -> Iterator[str]:
    """The lines of a text that comes in pieces, without their ends."""
    begun = ""
    for text in texts:
        *whole, begun = (begun + text).split("\n")
        yield from whole
    if begun:
        yield begun


def _last_lines(file: IO[bytes], n: int) -> list[str]:
    """The last n lines, of at most the last megabyte; leaves the file at its end."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _TAIL_BYTES))
    found = file.read().decode("utf-8", "replace").splitlines(keepends=True)
    return found[-n:] if n else []


def _added(file: IO[bytes], alive: Callable[[], bool]) -> Iterator[str]:
    """Text written to the file from here on, until nothing more can come."""
    while True:
        living = alive()  # asked before reading: what a run wrote last is read after it ended
        text = file.read().decode("utf-8", "replace")
        if text:
            yield text
        elif not living:
            return
        time.sleep(_LOOK_S)
