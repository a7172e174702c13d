"""Serves the page on this machine, to those who have its link."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable

import uvicorn

from rft_data.web.app import make_app
from rft_data.web.guard import PARAMETER, Guard
from rft_data.web.subjects import Subjects

HOST = "127.0.0.1"


def serve(subjects: Subjects, port: int, author: str | None, say: Callable[[str], None]) -> None:
    """Serve until interrupted.

    Args: port: 0 for a free one; author: who speaks, None: the page only shows; say: is given the link.

    Raises: OSError when the port is taken.
    """
    token = secrets.token_urlsafe(24)
    with socket.create_server((HOST, port)) as listening, subjects:
        app = Guard(
            make_app(subjects, author, secrets.token_urlsafe(24)),
            token=token,
            hosts=frozenset((HOST, "localhost")),
        )
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, ws="none")
        say(f"http://{HOST}:{listening.getsockname()[1]}/?{PARAMETER}={token}")
        uvicorn.Server(config).run(sockets=[listening])
