"""Serves the page on this machine, to those who have its link."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from rft_data.web.app import make_app
from rft_data.web.guard import PARAMETER, Guard
from rft_data.web.subjects import Subjects

HOST = "127.0.0.1"
PRIORITY = 10
"""By so much the page is nicer than a run: where both want a core, the run gets nine tenths of it."""


def serve(
    subjects: Subjects,
    port: int,
    author: str | None,
    runs_below: Path | None,
    say: Callable[[str], None],
    *,
    renders: bool,
) -> None:
    """Serve until interrupted, at a lower priority than other processes of this machine.

    A page that may start runs keeps its priority, which they inherit.
    Args:
        port: 0 for a free one. author: who speaks, None: the page only shows.
        runs_below: where runs may be started, None: nowhere. say: is given the link.
        renders: whether functions that recipes name may be run to show rows.
    Raises: OSError when the port is taken.
    """
    if runs_below is None and hasattr(os, "nice"):
        os.nice(PRIORITY)
    token = secrets.token_urlsafe(24)
    with socket.create_server((HOST, port)) as listening, subjects:
        app = Guard(
            make_app(subjects, author, secrets.token_urlsafe(24), runs_below, renders=renders),
            token=token,
            hosts=frozenset((HOST, "localhost")),
        )
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, ws="none")
        say(f"http://{HOST}:{listening.getsockname()[1]}/?{PARAMETER}={token}")
        uvicorn.Server(config).run(sockets=[listening])
