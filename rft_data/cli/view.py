"""`rft view | report`: the page over runs and buffers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rft_data.cli.edge import Json, edge, say, show_address, show_written
from rft_data.cli.status import RunDir


def report(
    run_dir: RunDir,
    out: Annotated[Path, typer.Option("-o", "--out", help="The file to write.")] = Path("report.html"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier report.")] = False,
    as_json: Json = False,
) -> None:
    """Write a run as one HTML page that needs nothing else: numbers, rollouts, recipe."""
    with edge():
        from rft_data.core.errors import ConflictError
        from rft_data.core.files import write_text
        from rft_data.core.lookup import need

        need("jinja2", "web", "rft report")
        from rft_data.web.report import report as written

        if out.exists() and not overwrite:
            raise ConflictError(f"{out} exists; name another file with -o, or give --overwrite.")
        write_text(out, written(run_dir))
        show_written([out], as_json=as_json)


def view(
    paths: Annotated[
        list[str],
        typer.Argument(
            help="Runs, folders of runs, and buffers: runs/quickstart, s3://bucket/prefix, hub://HOST:PORT/..."
        ),
    ],
    author: Annotated[
        list[str] | None,
        typer.Option(
            help="Your name, to give feedback of every kind. Again for each person, who gets an own link."
        ),
    ] = None,
    rater: Annotated[
        list[str] | None,
        typer.Option(
            help="The same for people who score, comment, tag and choose, but do not decide on training."
        ),
    ] = None,
    allow_run: Annotated[
        bool, typer.Option("--allow-run", help="Let the recipe form start runs in the shown folder of runs.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")] = 0,
    host: Annotated[
        str,
        typer.Option(help="Name or address of this machine to listen on; others than loopback need TLS."),
    ] = "127.0.0.1",
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file of a certificate for --host.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of its key.")] = None,
    behind_proxy: Annotated[
        str, typer.Option(help="https://NAME of a proxy that people open; it speaks TLS for the page.")
    ] = "",
    render: Annotated[
        bool,
        typer.Option("--render", help="Show rows by the functions that recipes name: it runs their code."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Look at runs and their rollouts in a browser, also beside a running owner."""
    with edge():
        from rft_data.core.lookup import need
        from rft_data.web.subjects import Subjects, folder_of_runs

        need("fastapi", "web", "rft view")
        need("jinja2", "web", "rft view")
        need("python_multipart", "web", "rft view")
        need("uvicorn", "web", "rft view")
        from rft_data.web.people import people
        from rft_data.web.place import Place
        from rft_data.web.serving import serve

        visitors = people(author or [], rater or [])
        place = Place(host, port, tls_cert, tls_key, behind_proxy)
        place.check()
        say("open this link; it carries the page's token. Ctrl-C ends it.", err=True)
        below = folder_of_runs(paths) if allow_run else None
        told = partial(show_address, as_json=as_json)
        serve(Subjects(paths), place, visitors, below, told, renders=render)
