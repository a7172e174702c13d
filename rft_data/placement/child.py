"""The process of one role on this machine, started by `process.py`.

Its instructions, with any secrets, arrive over its socket.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from itertools import chain
from typing import NoReturn

from rft_data.core.children import connected
from rft_data.core.collector import collector_paused
from rft_data.core.errors import RftError
from rft_data.placement.calls import OWN_PYTHONPATH, RoleSetup, encode_failure
from rft_data.placement.channel import BEAT_S, HEARTBEAT, Line
from rft_data.placement.host import Host
from rft_data.placement.hub.wire import encode_result


def main() -> None:
    """Make the role, then answer calls until the parent closes the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the conductor asks this process to close
    line = Line(connected())
    _restore_python_path()
    calls = line.received()
    number, first = next(calls, (0, b""))
    if not first:
        return
    threading.Thread(target=_beat, args=(line,), name="heartbeat", daemon=True).start()
    setup = RoleSetup.decode(first)
    sys.path[:] = setup.path
    try:
        with collector_paused():  # it imports torch
            host = Host(setup)
    except RftError as err:
        line.send(number, encode_failure(err))
        sys.exit(1)
    line.send(number, encode_result(None))
    asyncio.run(_serve(line, calls, host))


def _restore_python_path() -> None:
    """Give what the role starts the user's own PYTHONPATH; this process was started with a longer one."""
    if own := os.environ.pop(OWN_PYTHONPATH, ""):
        os.environ["PYTHONPATH"] = own
    else:
        os.environ.pop("PYTHONPATH", None)


async def _serve(line: Line, calls: Iterator[tuple[int, bytes]], host: Host) -> None:
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()

    def read_calls() -> None:
        for call in chain(calls, [(HEARTBEAT, b"")]):
            if not call[1] and not host.closed:
                os._exit(1)  # the parent has ended: the results cannot be used any more
            loop.call_soon_threadsafe(arrived.put_nowait, call)

    async def answer(number: int, call: bytes) -> None:
        line.send(number, await host.answer(call))

    threading.Thread(target=read_calls, name="calls", daemon=True).start()
    under_way: set[asyncio.Task[None]] = set()  # the loop itself keeps only weak references
    while (call := await arrived.get())[1]:
        task = loop.create_task(answer(*call))
        under_way.add(task)
        task.add_done_callback(under_way.discard)


def _beat(line: Line) -> NoReturn:
    while True:
        try:
            line.send(HEARTBEAT)
        except OSError:
            os._exit(1)
        time.sleep(BEAT_S)


if __name__ == "__main__":
    main()
