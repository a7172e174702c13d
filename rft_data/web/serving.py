"""Serves the page to those who have its link."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn

from rft_data.web.app import make_app
from rft_data.web.guard import PARAMETER, Guard
from rft_data.web.people import Person
from rft_data.web.place import Place
from rft_data.web.subjects import Subjects

PRIORITY = 10
"""How much lower the priority of the page is than that of a run (`nice`): where both want a core, the run
gets nine tenths of it."""


def serve(
    subjects: Subjects,
    place: Place,
    people: Sequence[Person],
    runs_below: Path | None,
    say: Callable[[str], None],
    *,
    renders: bool,
) -> None:
    """Serve until interrupted, at a lower priority than other processes of this machine.

    A page that may start runs keeps its priority, which they inherit.
    Args:
        people: each gets a link, and speaks for himself; none: the page only shows.
        runs_below: where runs may be started, None: nowhere. say: is given each link, with a name before it
        where there are several.
        renders: whether functions that recipes name may be run to show rows.
    Raises: RecipeError for a place that `Place.check` refuses, or that is taken.
    """
    place.check()
    if runs_below is None and hasattr(os, "nice"):
        os.nice(PRIORITY)
    tokens = [secrets.token_urlsafe(24) for _ in range(max(1, len(people)))]
    with place.listen() as listening, subjects:
        app = Guard(
            make_app(subjects, None, secrets.token_urlsafe(24), runs_below, renders=renders),
            token=tokens[0],
            hosts=place.names(),
            secure=place.secure,
            people=dict(zip(tokens, people, strict=True)) if people else None,
        )
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            ssl_certfile=place.cert,
            ssl_keyfile=place.key,
        )
        for number, token in enumerate(tokens):
            name = f"{people[number].name}: " if len(people) > 1 else ""
            say(f"{name}{place.url(listening.getsockname()[1])}/?{PARAMETER}={token}")
        uvicorn.Server(config).run(sockets=[listening])
