"""Serves an ASGI application on a port or a Unix socket, in the event loop that is running."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from explorers.capture.asgi import App
from rft_data.core.errors import BusyError
from rft_data.core.lookup import need

LOOPBACK = "127.0.0.1"
_END_S = 5
"""How long requests under way may take at the end."""


@asynccontextmanager
async def listening(app: App, *, host: str = LOOPBACK, port: int = 0) -> AsyncIterator[str]:
    """Serve inside the block; gives the address, `http://HOST:PORT`.

    Args: port: 0 for a free one.
    Raises: BusyError for a port that is taken.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        bound = socket.create_server((host, port), family=family)
    except OSError as err:
        raise BusyError(
            f"{host}:{port} cannot be listened on ({err}); take another port, or 0 for any."
        ) from err
    named = f"[{host}]" if ":" in host else host
    async with _served(app, bound):
        yield f"http://{named}:{bound.getsockname()[1]}"


@asynccontextmanager
async def listening_at(app: App, path: Path) -> AsyncIterator[str]:
    """Serve inside the block at a Unix socket, in place of one that is there; gives its path.

    Who connects is a front, and says in `X-Forwarded-Proto` by which scheme its client came.
    """
    path.unlink(missing_ok=True)  # of a process that has ended
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        async with _served(app, bound, trusted="*"):
            yield str(path)


@asynccontextmanager
async def _served(app: App, bound: socket.socket, trusted: str | None = None) -> AsyncIterator[None]:
    """Serve inside the block at a socket, which is closed after it.

    Args: trusted: peers whose forwarded headers count; None: as uvicorn's environment says.
    """
    with bound:
        uvicorn = need("uvicorn", "web", "a capturing server")
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, ws="none", lifespan="off",
            timeout_graceful_shutdown=_END_S, forwarded_allow_ips=trusted,
        )  # fmt: skip
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None
        serving = asyncio.create_task(server._serve(sockets=[bound]))  # without its handlers of signals
        try:
            while not server.started and not serving.done():
                await asyncio.sleep(0.005)
            yield
        finally:
            server.should_exit = True
            await serving
