"""One life of a role's process, as its parent sees it; everything here runs in the thread of one loop."""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import sys
import threading
from collections import deque
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any

from rft_data.core.children import Child, how_it_ended
from rft_data.core.errors import RftError, RoleDiedError, StalledError
from rft_data.placement.calls import CLOSE, START, Awaited, Patience, encode_call
from rft_data.placement.channel import BEAT_S, HEARTBEAT, Messages, message

log = logging.getLogger(__name__)
TERMINATE_S, KILL_S = 5.0, 30.0
"""How long an end is waited for after SIGTERM, and after SIGKILL."""
_AFTER_S = 1.0
"""How long its last answers are waited for once it has ended."""
_LAST_LINES = 20


class RoleProcess:
    """A child process with a role in it."""

    def __init__(self, name: str, environment: Mapping[str, str], patience: Patience) -> None:
        """Start the process; it waits for its birth."""
        self.name = name
        self._patience = patience
        self._numbers = itertools.count(HEARTBEAT + 1)
        self._awaited: dict[int, Awaited] = {}
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._beats: int | None = None
        self._born = False
        self._why = ""
        self._dead = ""
        self._gone = asyncio.Event()
        self._child = Child("rft_data.placement.child", environment=environment, on_line=self._print)

    @property
    def where(self) -> str:
        """Its place, for messages."""
        return f"pid {self._child.pid}"

    async def be_born(self, birth: bytes) -> None:
        """Make the role.

        Raises: what its factory raises, RoleDiedError, or StalledError; then the process has ended.
        """
        reader, self._writer = await asyncio.open_connection(sock=self._child.socket)
        self._life = asyncio.create_task(self._live(reader))
        awaited = Awaited(self.name, START, None, self._patience.start_s)
        self.send(awaited, birth)
        try:
            await asyncio.wrap_future(awaited.future)
        except BaseException:
            await self.end("did not start")
            raise
        self._born = True

    def send(self, awaited: Awaited, call: bytes) -> None:
        """Have the role answer a call."""
        if self._dead:
            awaited.failed(RoleDiedError(self._dead))
            return
        number = next(self._numbers)
        self._awaited[number] = awaited
        awaited.future.add_done_callback(lambda _: self._awaited.pop(number))
        awaited.watch(asyncio.get_running_loop(), self.where)
        self._writer.write(message(number, call))

    async def close(self) -> None:
        """Ask it to close, then end it.

        Raises: StalledError if even that does not end it.
        """
        self._why = self._why or "was closed"
        if self._born and not self._dead:
            await self._ask(self._patience.close_s)
        await self.end("was closed")

    async def end(self, why: str) -> None:
        """Terminate it, then kill it. `why`: what the calls under way are told.

        Raises: StalledError if even that does not end it.
        """
        self._why = self._why or why
        for number, wait_s in ((signal.SIGTERM, TERMINATE_S), (signal.SIGKILL, KILL_S)):
            if self._gone.is_set():
                return
            self._child.kill(number)
            await _within(self._gone.wait(), wait_s)
        if not self._gone.is_set():
            raise StalledError(
                f"role '{self.name}' ({self.where}) did not end within {KILL_S:g} s of SIGKILL; it hangs in "
                "the kernel (a device or a network disk). Look at the machine."
            )

    async def _ask(self, ask_s: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + ask_s
        awaited = Awaited(self.name, CLOSE, None, ask_s)
        self.send(awaited, encode_call(self.name, CLOSE, {}))
        try:
            await asyncio.wrap_future(awaited.future)
        except RftError as err:
            log.warning("role '%s' did not close as asked: %s", self.name, err)
        else:
            self._writer.write_eof()  # it may still speak while it ends
            await _within(self._gone.wait(), end - loop.time())

    # --- its life ----------------------------------------------------------------------------------

    async def _live(self, reader: asyncio.StreamReader) -> None:
        """Follow it to its end, then fail what is under way."""
        hearing = asyncio.create_task(self._hear(reader))
        watching = asyncio.create_task(self._notice_silence())
        exited = asyncio.Event()
        waiting = (asyncio.get_running_loop(), exited)
        threading.Thread(target=self._wait, args=waiting, name=f"wait-{self.name}", daemon=True).start()
        await exited.wait()
        watching.cancel()
        await asyncio.wait((hearing,), timeout=_AFTER_S)
        hearing.cancel()
        self._writer.close()
        self._dead = self._obituary()
        for awaited in list(self._awaited.values()):
            awaited.failed(RoleDiedError(self._dead))
        self._gone.set()

    def _wait(self, loop: asyncio.AbstractEventLoop, exited: asyncio.Event) -> None:
        self._status = self._child.end(None)
        with suppress(RuntimeError):  # the loop was closed before: nobody waits
            loop.call_soon_threadsafe(exited.set)

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        messages = Messages()
        with suppress(OSError):  # it is gone
            while part := await reader.read(1 << 20):
                self._beats = 0
                for number, content in messages.feed(part):
                    if number in self._awaited:
                        self._awaited[number].answered(content)

    def _print(self, line: str) -> None:
        """Pass on, in a thread, what it wrote to stdout or stderr."""
        self._last_lines.append(line)
        sys.stderr.write(f"[{self.name}] {line}\n")
        sys.stderr.flush()

    async def _notice_silence(self) -> None:
        """Kill it when it was heard once, and then not for long; counted, since we may have been stopped."""
        while self._beats is None or self._beats * BEAT_S < self._patience.silent_s:
            await asyncio.sleep(BEAT_S)
            if self._beats is not None:
                self._beats += 1
        self._why = f"gave no sign of life for {self._patience.silent_s:g} s and was killed"
        self._child.kill()

    def _obituary(self) -> str:
        how = how_it_ended(self._status)
        said = "".join(f"\n  {line}" for line in self._last_lines)
        return (
            f"role '{self.name}' ({self.where}) {self._why or 'ended by itself'}: {how}; restart it, or "
            f"resume the run. {'Its last lines:' + said if said else 'It wrote nothing.'}"
        )


async def _within(work: Coroutine[Any, Any, Any], wait_s: float) -> None:
    """Wait for something, but no longer than that."""
    task = asyncio.ensure_future(work)
    await asyncio.wait((task,), timeout=max(0.0, wait_s))
    task.cancel()
