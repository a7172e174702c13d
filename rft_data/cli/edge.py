"""The edge of the process: logging to stderr, and deliberate failures to one message and an exit code."""

from __future__ import annotations

import json
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rft_data.cli.results import results, results_alone
from rft_data.core.errors import RftError, Stopped
from rft_data.core.logs import log_to_stderr
from rft_data.core.masking import masked, masked_streams
from rft_data.core.text import for_terminal

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

INTERRUPTED = 130
READER_GONE = 141
"""As of a program that SIGPIPE ended."""
_NOISY = ("httpx", "httpx2", "openai", "datasets", "filelock", "fsspec", "matplotlib")
_ABOUT_GPUS = ("torch._library.triton", "vllm.triton_utils", "vllm.triton_utils.importing")


@dataclass
class _Verbosity:
    quiet: bool = False
    verbose: bool = False


_said = _Verbosity()
"""Verbosity that `rft -q` and `rft -v` set for this process."""


def speak(*, quiet: bool = False, verbose: bool = False) -> None:
    """How much is said on stderr. Args: quiet: warnings only; verbose: also libraries, and tracebacks."""
    _said.quiet, _said.verbose = quiet, verbose


def quiet() -> bool:
    """Whether `rft -q` asked for warnings only."""
    return _said.quiet


@contextmanager
def edge(*, again: str = "") -> Iterator[None]:
    """Run a command's body; `again` is what to type after an interruption."""
    with masked_streams(), results_alone():
        yield from _edge(again)


def _edge(again: str) -> Iterator[None]:
    log_to_stderr(logging.WARNING if _said.quiet else logging.INFO)
    if not _said.verbose:
        for noisy in _NOISY:
            logging.getLogger(noisy).setLevel(logging.WARNING)
        for about_gpus in _ABOUT_GPUS:
            logging.getLogger(about_gpus).setLevel(logging.ERROR)
        logging.getLogger("huggingface_hub").propagate = False  # it prints each line itself
        warnings.filterwarnings("ignore", category=FutureWarning)
    try:
        yield
    except Stopped as err:
        say(f"{err}. {again}".strip(), err=True)
        raise typer.Exit(err.exit_code) from err
    except RftError as err:
        told(err)
        raise typer.Exit(err.exit_code) from err
    except OSError as err:
        told(err)
        raise typer.Exit(1) from err
    except KeyboardInterrupt as err:
        say(f"stopped. {again}".strip(), err=True)
        raise typer.Exit(INTERRUPTED) from err


def told(err: Exception) -> None:
    """Say what failed; with `rft -v` also where in the code."""
    if _said.verbose:
        say("".join(traceback.format_exception(err)), err=True)
    say(f"error: {err}", err=True)
    if isinstance(err, RftError):
        from rft_data.cli.troubles import PAGE, code

        known = code(err)
        say(f"help: rft help {known} ({PAGE}#{known})", err=True)


def say(text: str, *, err: bool = False, end: str = "\n") -> None:
    """Print a text for people; all that commands print passes here, and what is not printable is escaped."""
    stream = sys.stderr if err else results()
    try:
        typer.echo(for_terminal(masked(text)) + end, file=stream, nl=False)
    except BrokenPipeError:  # `rft ... | head`
        raise typer.Exit(READER_GONE) from None


def show(value: object, text: str, *, as_json: bool) -> None:
    """Print a result on stdout, for machines or for people."""
    say(json.dumps(value, default=str) if as_json else text)


def show_written(paths: Sequence[Path], *, as_json: bool) -> None:
    """Name the files that a command wrote."""
    show({"written": list(paths)}, "\n".join(map(str, paths)), as_json=as_json)


def show_address(address: str, *, as_json: bool) -> None:
    """Name the address where a server that was started is found."""
    show({"address": address}, address, as_json=as_json)
