"""`rft status`: what a run is doing, once or again and again in place."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rft_data.cli.completion import run_folders
from rft_data.cli.edge import edge, say
from rft_data.cli.results import results

if TYPE_CHECKING:
    from rft_data.run.status import RunStatus

RunDir = Annotated[
    str,
    typer.Argument(
        help="Folder of a run, for example runs/quickstart, or s3://bucket/prefix.",
        autocompletion=run_folders,
    ),
]
_HOME_AND_CLEAR = "\x1b[H\x1b[2J"


def status(
    run_dir: RunDir,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until the run ends.")] = False,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between refreshes.")] = 2.0,
) -> None:
    """What a run is doing: reads its folder and its buffer, or asks its hub (`hub://...`, RFT_HUB_TOKEN)."""
    with edge():
        from rft_data.cli.status_text import status_text
        from rft_data.reading.patience import patiently
        from rft_data.run.mirror import run_folder
        from rft_data.run.seen_by_hub import hub_copy
        from rft_data.run.status import open_buffer, run_status

        buffer = None
        try:
            while True:
                folder = hub_copy(run_dir) if run_dir.startswith("hub://") else run_folder(run_dir)
                buffer = buffer or (open_buffer(folder) if watch else None)
                found = patiently(partial(run_status, folder, buffer=buffer))
                _show(found, json.dumps(found.as_json()) if as_json else status_text(found), as_json, watch)
                if not watch or not found.standing.alive:
                    return
                time.sleep(every)
        finally:
            if buffer is not None:
                buffer.close()


def _show(found: RunStatus, text: str, as_json: bool, watch: bool) -> None:
    if watch and not as_json and results().isatty():
        results().write(_HOME_AND_CLEAR)
    elif watch and not as_json:
        text += "\n"
    say(text)
