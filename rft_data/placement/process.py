"""The process of a role, from its start to its end, as its parent sees it.

All methods run in the thread of one event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import threading
from collections import deque
from collections.abc import Coroutine, Mapping
from contextlib import suppress

from rft_data.core.children import Child, how_it_ended
from rft_data.core.errors import RftError, RoleDiedError, StalledError
from rft_data.core.logs import say_line
from rft_data.placement.calls import CLOSE, OWN_PYTHONPATH, START, Awaited, Patience, encode_call
from rft_data.placement.channel import BEAT_S, HEARTBEAT, Messages, message

log = logging.getLogger(__name__)
TERMINATE_S, KILL_S = 5.0, 30.0
"""How long to wait for the end of the process after SIGTERM, and after SIGKILL."""
_AFTER_S = 1.0
"""How long to wait for its last answers after it has ended."""
_LAST_LINES = 20
"""Lines of its output that are kept for error texts."""


class RoleProcess:
    """A child process with a role in it."""

    def __init__(self, name: str, environment: Mapping[str, str], patience: Patience) -> None:
        """Start the process; it then waits for `make_role`."""
        self.name = name
        self._patience = patience
        self._numbers = itertools.count(HEARTBEAT + 1)
        self._awaited: dict[int, Awaited] = {}
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._silent_beats: int | None = None
        self._ready = False
        self._why = ""
        self._end_message = ""
        self._ended = asyncio.Event()
        own = {OWN_PYTHONPATH: environment.get("PYTHONPATH", "")}
        self._child = Child(
            "rft_data.placement.child", environment={**environment, **own}, on_line=self._print
        )

    @property
    def where(self) -> str:
        """The process id, for error texts."""
        return f"pid {self._child.pid}"

    async def make_role(self, setup: bytes) -> None:
        """Make the role in the process.

        Raises: what its factory raises, RoleDiedError, or StalledError; then the process has ended.
        """
        reader, self._writer = await asyncio.open_connection(sock=self._child.socket)
        self._following = asyncio.create_task(self._follow(reader))
        awaited = Awaited(self.name, START, None, self._patience.start_s)
        self.send(awaited, setup)
        try:
            await asyncio.wrap_future(awaited.future)
        except BaseException:
            await self.end("did not start")
            raise
        self._ready = True

    def send(self, awaited: Awaited, call: bytes) -> None:
        """Send a call to the role; its answer settles `awaited`."""
        if self._end_message:
            awaited.failed(RoleDiedError(self._end_message))
            return
        number = next(self._numbers)
        self._awaited[number] = awaited
        awaited.future.add_done_callback(lambda _: self._awaited.pop(number))
        awaited.watch(asyncio.get_running_loop(), self.where)
        self._writer.write(message(number, call))

    async def close(self) -> None:
        """Ask the role to close, then end the process.

        Raises: StalledError if the process does not end.
        """
        self._why = self._why or "was closed"
        if self._ready and not self._end_message:
            await self._ask(self._patience.close_s)
        await self.end("was closed")

    async def end(self, why: str) -> None:
        """Terminate the process, then kill it. `why`: the reason, for the calls without an answer.

        Raises: StalledError if the process does not end.
        """
        self._why = self._why or why
        for number, wait_s in ((signal.SIGTERM, TERMINATE_S), (signal.SIGKILL, KILL_S)):
            if self._ended.is_set():
                return
            self._child.kill(number)
            await _within(self._ended.wait(), wait_s)
        if not self._ended.is_set():
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
            self._writer.write_eof()  # no more calls; its output is still read until it ends
            await _within(self._ended.wait(), end - loop.time())

    # --- the end of the process --------------------------------------------------------------------

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        """Wait for the end of the process, then fail the calls that have no answer."""
        reading = asyncio.create_task(self._read_answers(reader))
        watching = asyncio.create_task(self._notice_silence())
        exited = asyncio.Event()
        waiting = (asyncio.get_running_loop(), exited)
        threading.Thread(target=self._wait, args=waiting, name=f"wait-{self.name}", daemon=True).start()
        await exited.wait()
        watching.cancel()
        await asyncio.wait((reading,), timeout=_AFTER_S)
        reading.cancel()
        self._writer.close()
        self._end_message = self._describe_end()
        for awaited in list(self._awaited.values()):
            awaited.failed(RoleDiedError(self._end_message))
        self._ended.set()

    def _wait(self, loop: asyncio.AbstractEventLoop, exited: asyncio.Event) -> None:
        self._status = self._child.end(None)
        with suppress(RuntimeError):  # the loop is closed: there is no waiter left
            loop.call_soon_threadsafe(exited.set)

    async def _read_answers(self, reader: asyncio.StreamReader) -> None:
        messages = Messages()
        with suppress(OSError):  # the process has ended
            while part := await reader.read(1 << 20):
                self._silent_beats = 0
                for number, content in messages.feed(part):
                    if number in self._awaited:
                        self._awaited[number].answered(content)

    def _print(self, line: str) -> None:
        """Print a line that the process wrote to stdout or stderr; called in a thread."""
        self._last_lines.append(line)
        say_line(line, f"[{self.name}] ")

    async def _notice_silence(self) -> None:
        """Kill the process when it has sent messages and then none for `silent_s`.

        Beats are counted, not seconds: this process itself may have been stopped in between.
        """
        while self._silent_beats is None or self._silent_beats * BEAT_S < self._patience.silent_s:
            await asyncio.sleep(BEAT_S)
            if self._silent_beats is not None:
                self._silent_beats += 1
        self._why = f"sent no heartbeat for {self._patience.silent_s:g} s and was killed"
        self._child.kill()

    def _describe_end(self) -> str:
        how = how_it_ended(self._status)
        lines = "".join(f"\n  {line}" for line in list(self._last_lines))
        return (
            f"role '{self.name}' ({self.where}) {self._why or 'ended by itself'}: {how}; restart it, or "
            f"resume the run. {'Its last lines:' + lines if lines else 'It wrote nothing.'}"
        )


async def _within(work: Coroutine[object, None, object], wait_s: float) -> None:
    """Wait for `work`, at most `wait_s` seconds; then cancel it."""
    task = asyncio.ensure_future(work)
    await asyncio.wait((task,), timeout=max(0.0, wait_s))
    task.cancel()
