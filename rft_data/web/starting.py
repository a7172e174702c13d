"""Starts a run from the page, where that is allowed: detached, in a new folder below the shown one."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from rft_data.core.errors import ConflictError, RecipeError
from rft_data.core.words import Mode

FILE, LOG = "form.yaml", "start.log"


@dataclass(frozen=True, slots=True)
class Start:
    """A run that may be started."""

    folder: Path
    """Its folder, which is not there yet."""
    arguments: tuple[str, ...]
    """Arguments of the command `rft`."""

    @property
    def command(self) -> str:
        """The command that is executed, as a person would type it."""
        return shlex.join(["rft", *self.arguments])


def planned(below: Path, name: str, places: Mapping[str, str]) -> Start:
    """How a recipe without mistakes would be run.

    Args: name: of the recipe: letters, digits, dots, dashes. places: its `mode`, `run_dir` and `buffer`.
    Raises: RecipeError for a data recipe, which `rft data run` runs; ConflictError when the folder is there.
    """
    if places["mode"] == Mode.DATA:
        raise RecipeError("a recipe of mode data is not started here; run it with: rft data run FILE")
    folder = below.absolute() / name
    if folder.exists():
        raise ConflictError(f"'{name}' is there already; give the recipe another name.")
    arguments = ["run", str(folder / FILE), f"run_dir={folder}"]
    inside = places["buffer"].removeprefix(places["run_dir"] + "/")
    if inside != places["buffer"]:  # its own folder's; another buffer stays where it is
        arguments.append(f"buffer.uri={folder / inside}")
    return Start(folder, tuple(arguments))


def begin(start: Start, text: str) -> None:
    """Write the recipe and run it in a process that goes on when the page ends.

    Raises: ConflictError when somebody else made the folder meanwhile.
    """
    try:
        start.folder.mkdir()
    except FileExistsError as err:
        raise ConflictError(f"'{start.folder.name}' is there already; give the recipe another name.") from err
    (start.folder / FILE).write_text(text)
    with (start.folder / LOG).open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - this package, no shell
            [sys.executable, "-m", "rft_data.cli.app", *start.arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    Thread(target=process.wait, name=f"run-{process.pid}", daemon=True).start()
