"""A program of the user's in a child process: its own environment, folder, deadline and process group.

It is the user's own code, so it is not sandboxed; programs that a model wrote run in `explorers/sandbox`.
Not a `Child` of `core/children.py`: it is no module of ours that calls `connected`, so a starter asks the
kernel to end it with the explorer, and hundreds at once are awaited in one event loop, without the thread
that each `Child` has. How what it started is found and killed, and words for its end, are the same code.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rft_data.core.children import how_it_ended
from rft_data.core.errors import RecipeError
from rft_data.core.lookup import own_file
from rft_data.core.process_tree import MARK, kill_descendants, new_mark

_KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SYSTEMROOT")
"""Variables of this process that a program gets; no others, for some are secrets."""
_PYTHON = ("python", "python3")
_CHUNK = 1 << 16
_HIDDEN = b"[key]"
"""Stands for the key of a rollout in what its program wrote: outputs become rows and messages of logs."""
_AFTER_S = 1.0
"""How long the last output is waited for: what a program left behind may hold the pipe open."""
_START = (
    "import ctypes, os, sys\n"
    "if sys.platform == 'linux': ctypes.CDLL(None).prctl(1, 9)\n"  # killed when the explorer ends
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "os.execvp(sys.argv[2], sys.argv[2:])\n"
)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended."""

    status: int
    """Its exit status, negative for a signal."""
    output: str
    """The end of what it wrote to stdout and stderr, bytes that are no UTF-8 replaced."""
    seconds: float

    @property
    def how(self) -> str:
        """In words: `exit code 3`, or `signal SIGKILL`."""
        return how_it_ended(self.status)


def resolved(command: object) -> list[str]:
    """A command whose program is there, with paths that do not depend on the working folder.

    `python` is the interpreter of this process; a word that names a file, from here or from the recipe's
    folder, is that file's whole path.
    Raises: RecipeError for no list of texts, and for a program that is not found.
    """
    if not isinstance(command, Sequence) or isinstance(command, str) or not command:
        raise RecipeError(f"workflow argument 'command' is {command!r}; wanted a list, [python, agent.py].")
    words = [str(word) for word in command]
    if words[0] in _PYTHON:
        words[0] = sys.executable
    made = [str(own_file(word)) if own_file(word).is_file() else word for word in words[1:]]
    missing = next((word for word in made if word.endswith(".py") and not Path(word).is_file()), None)
    if missing is not None:
        raise RecipeError(
            f"workflow argument 'command': there is no file {own_file(missing)}; give its path, from here or "
            "from the recipe's folder."
        )
    program = shutil.which(words[0])
    if program is None:
        raise RecipeError(f"workflow argument 'command': there is no program '{words[0]}' on the PATH.")
    return [os.path.abspath(program), *made]


def own_environment(more: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The variables of a program: few of this process's, none of which is a secret, and `more`."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    own = {"HOME": str(folder), "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1", "NO_PROXY": "127.0.0.1"}
    return {**kept, **own, **more}


async def run_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    *,
    output_kb: int,
    key: str = "",
) -> Ended:
    """Run a program to its end; when this is cancelled, it is killed with all that it started.

    Args: output_kb: how much of the end of its output is kept. key: what of it is kept nowhere.
    Raises: ConnectionError when it cannot be started, for want of processes or memory.
    """
    mark, now = new_mark(), asyncio.get_running_loop().time
    began = now()
    kept = bytearray()
    async with _pipe() as (output, written):
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", "-c", _START, str(os.getpid()), *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=written,
                stderr=asyncio.subprocess.STDOUT,
                env={**environment, MARK: mark},
                cwd=folder,
                start_new_session=True,
            )  # fmt: skip
        except OSError as err:
            raise ConnectionError(f"the program cannot be started: {err}") from err
        finally:
            os.close(written)
        reading = asyncio.create_task(_read(output, kept, (output_kb << 10) + len(key)))
        try:
            status = await process.wait()
        finally:
            await _kill(process, mark)
            await asyncio.wait({reading}, timeout=_AFTER_S)
            reading.cancel()
    return Ended(status, _shown(bytes(kept), output_kb << 10, key.encode()), now() - began)


def _shown(kept: bytes, most: int, key: bytes) -> str:
    """The last `most` bytes, of an output that was kept with some before it, for a key may be cut there."""
    text = kept.replace(key, _HIDDEN) if key else kept
    if len(kept) > most:  # it may begin with a part of the key
        text = text[len(key) :]
    return text.decode("utf-8", "replace")


@asynccontextmanager
async def _pipe() -> AsyncIterator[tuple[asyncio.StreamReader, int]]:
    """A pipe: its end to read, and the descriptor to write to, which the caller closes.

    With asyncio's own, `Process.wait` waits for all that hold the pipe open, like a server left behind.
    Raises: ConnectionError when too many files are open.
    """
    reader = asyncio.StreamReader()
    try:
        output, written = os.pipe()
    except OSError as err:
        raise ConnectionError(f"the program cannot be started: {err}") from err
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(output, "rb", 0)
    )
    try:
        yield reader, written
    finally:
        transport.close()


async def _read(pipe: asyncio.StreamReader, kept: bytearray, most: int) -> None:
    while part := await pipe.read(_CHUNK):
        kept += part
        del kept[:-most]


async def _kill(process: asyncio.subprocess.Process, mark: str) -> None:
    """End its process group, and what it started in other sessions."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await asyncio.to_thread(kill_descendants, mark, None)
    await process.wait()
