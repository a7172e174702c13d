"""`rft view`: the page over runs and buffers."""

from __future__ import annotations

from typing import Annotated

import typer

from rft_data.cli.edge import edge, say


def view(
    paths: Annotated[
        list[str], typer.Argument(help="Runs, folders of runs, and buffers; for example runs/quickstart.")
    ],
    author: Annotated[
        str | None, typer.Option(help="Who you are: then scores and comments may be given.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")] = 0,
) -> None:
    """Look at runs and their rollouts in a browser, also beside a running owner."""
    with edge():
        from rft_data.core.lookup import need
        from rft_data.web.subjects import Subjects

        need("fastapi", "web", "rft view")
        need("jinja2", "web", "rft view")
        need("python_multipart", "web", "rft view")
        need("uvicorn", "web", "rft view")
        from rft_data.web.serving import serve

        say("open this link; it carries the page's token. Ctrl-C ends it.", err=True)
        serve(Subjects(paths), port, author, say)
