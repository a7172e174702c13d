"""The edge of the process: logging to stderr, and deliberate failures to one message and an exit code."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from rft_data.core.errors import RftError, Stopped
from rft_data.core.text import escaped

INTERRUPTED = 130


@contextmanager
def edge(*, again: str = "") -> Iterator[None]:
    """Run a command's body; `again` is what to type after an interruption."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S"
    )
    for noisy in ("httpx", "httpx2", "openai", "datasets", "filelock", "fsspec", "matplotlib"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    for about_gpus in ("torch._library.triton", "vllm.triton_utils", "vllm.triton_utils.importing"):
        logging.getLogger(about_gpus).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)
    try:
        yield
    except Stopped as err:
        typer.echo(f"{for_terminal(str(err))}. {again}".strip(), err=True)
        raise typer.Exit(err.exit_code) from err
    except RftError as err:
        typer.echo(f"error: {for_terminal(str(err))}", err=True)
        raise typer.Exit(err.exit_code) from err
    except OSError as err:
        typer.echo(f"error: {for_terminal(str(err))}", err=True)
        raise typer.Exit(1) from err
    except KeyboardInterrupt as err:
        typer.echo(f"stopped. {again}".strip(), err=True)
        raise typer.Exit(INTERRUPTED) from err


def for_terminal(text: str) -> str:
    """Lines as they are, what is not printable escaped: ids, files and model output must not act."""
    return "\n".join(map(escaped, text.split("\n")))


def show(value: object, text: str, *, as_json: bool) -> None:
    """Print a result on stdout, for machines or for people."""
    typer.echo(json.dumps(value, default=str) if as_json else text)
