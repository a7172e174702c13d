"""Serves the page on this machine, to those who have its link."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn

from rft_data.web.app import make_app
from rft_data.web.guard import PARAMETER, Guard
from rft_data.web.people import Person
from rft_data.web.subjects import Subjects

HOST = "127.0.0.1"
PRIORITY = 10
"""By so much the page is nicer than a run: where both want a core, the run gets nine tenths of it."""


def serve(
    subjects: Subjects,
    port: int,
    people: Sequence[Person],
    runs_below: Path | None,
    say: Callable[[str], None],
    *,
    renders: bool,
) -> None:
    """Serve until interrupted, at a lower priority than other processes of this machine.

    A page that may start runs keeps its priority, which they inherit.
    Args:
        port: 0 for a free one. people: each gets a link, and speaks for himself; none: the page only shows.
        runs_below: where runs may be started, None: nowhere. say: is given each link, with a name before it
        where there are several.
        renders: whether functions that recipes name may be run to show rows.
    Raises: OSError when the port is taken.
    """
    if runs_below is None and hasattr(os, "nice"):
        os.nice(PRIORITY)
    tokens = [secrets.token_urlsafe(24) for _ in range(max(1, len(people)))]
    with socket.create_server((HOST, port)) as listening, subjects:
        app = Guard(
            make_app(subjects, None, secrets.token_urlsafe(24), runs_below, renders=renders),
            token=tokens[0],
            hosts=frozenset((HOST, "localhost")),
            people=dict(zip(tokens, people, strict=True)) if people else None,
        )
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, ws="none")
        for place, token in enumerate(tokens):
            name = f"{people[place].name}: " if len(people) > 1 else ""
            say(f"{name}http://{HOST}:{listening.getsockname()[1]}/?{PARAMETER}={token}")
        uvicorn.Server(config).run(sockets=[listening])
