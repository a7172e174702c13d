"""`rft data feedback | label-studio | annotate`: what people, and programs that come later, say."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rft_data.cli.edge import Json, edge, say, show

if TYPE_CHECKING:
    from rft_data.buffer import Buffer
    from rft_data.core.filters import Filter
    from rft_data.placement.hub.client import HubClient

BufferUri = Annotated[str, typer.Option("--buffer", help="The buffer's folder or object-store URL.")]
RunId = Annotated[str | None, typer.Option("--run", help="Only this run's rows.")]
Where = Annotated[str | None, typer.Option(help="Only rows this lets through, e.g. 'reward is null'.")]
feedback_app = typer.Typer(help="Delayed rewards, scores and comments.", no_args_is_help=True)
label_studio_app = typer.Typer(help="Tasks for Label Studio, and its annotations.", no_args_is_help=True)


@feedback_app.command("add")
def add(
    buffer: BufferUri,
    author: Annotated[str, typer.Option(help="Name of the person or program that says it.")],
    experience: Annotated[str | None, typer.Option(help="Id of the experience it is about.")] = None,
    trajectory: Annotated[
        str | None, typer.Option(help="Or the id of a served trajectory, whose last row it is about.")
    ] = None,
    key: Annotated[str, typer.Option(help="What is said: reward, score, or a name of your own.")] = "reward",
    value: Annotated[float | None, typer.Option(help="The number.")] = None,
    text: Annotated[str | None, typer.Option(help="The words.")] = None,
    as_json: Json = False,
) -> None:
    """Say something about one stored experience; it is stored again even if it was said before."""
    with edge():
        from rft_data.core.errors import RecipeError
        from rft_data.core.rows import Feedback, now
        from rft_data.exchange.feedback import storable
        from rft_data.exchange.trajectory_row import trajectory_row

        if value is None and text is None:
            raise RecipeError("feedback says nothing: give --value, --text or both.")
        if (experience is None) is (trajectory is None):
            raise RecipeError("feedback is about one row: give --experience or --trajectory.")
        if not key or not author:
            raise RecipeError(f"--key is {key!r} and --author {author!r}; both need a name.")
        about = experience or trajectory or ""
        given = {"id": about, "--author": author, "--key": key, "--text": text or ""}
        for name, words in given.items():
            storable(words, name)
        with _taking_feedback(buffer) as opened:
            row = trajectory_row(opened, about) if experience is None else experience
            new = opened.add_feedback([Feedback(row, author, key, value, text, now())])
        show({"new": new}, "stored", as_json=as_json)


@feedback_app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="JSON lines: experience_id, key, value and/or text, author.")],
    buffer: BufferUri,
    author: Annotated[str | None, typer.Option(help="Author of lines that name none.")] = None,
    as_json: Json = False,
) -> None:
    """Store the feedback of a file, all of it or, if a line is wrong, none."""
    with edge():
        from rft_data.core.errors import MissingFileError
        from rft_data.exchange.feedback import read_feedback

        if not file.is_file():
            raise MissingFileError(
                f"there is no file {file}; name one with a line of JSON for each feedback."
            )
        said = read_feedback(file, author)
        with _taking_feedback(buffer) as opened:
            new = opened.add_feedback(said)
        show({"read": len(said), "new": new}, f"{len(said)} read, {new} new", as_json=as_json)


@label_studio_app.command("export")
def export(
    file: Annotated[Path, typer.Argument(help="FILE.json for the tasks; FILE.xml gets the configuration.")],
    buffer: BufferUri,
    kind: Annotated[
        Literal["rating", "pairwise"],
        typer.Option(help="Rate completions, or choose between two of a group."),
    ] = "rating",
    run_id: RunId = None,
    where: Where = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Tasks at most.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier export.")] = False,
    as_json: Json = False,
) -> None:
    """Write stored completions as Label Studio tasks, with a labeling configuration."""
    with edge():
        from dataclasses import asdict

        from rft_data.buffer import Buffer
        from rft_data.exchange.annotate import export_tasks

        with Buffer(buffer, read_only=True) as opened:
            done = export_tasks(
                opened,
                file,
                kind,
                run_id=run_id,
                where=parsed_filter(where),
                limit=limit,
                overwrite=overwrite,
            )
        text = (
            f"{done.tasks} tasks in {done.tasks_file}\n"
            f"paste {done.config_file} into the project's labeling interface before importing them"
        )
        show(asdict(done), text, as_json=as_json)


@label_studio_app.command("import")
def import_annotations(
    file: Annotated[Path, typer.Argument(help="The project, exported from Label Studio as JSON.")],
    buffer: BufferUri,
    as_json: Json = False,
) -> None:
    """Store Label Studio's annotations: ratings as feedback, choices as preference pairs."""
    with edge():
        from rft_data.core.errors import MissingFileError
        from rft_data.exchange.annotate import import_annotations as take_in

        if not file.is_file():
            raise MissingFileError(f"there is no file {file}; export the project from Label Studio as JSON.")
        with owning(buffer) as opened:
            done = take_in(opened, file)
        lines = [
            f"{done.annotations} annotations of {done.tasks} tasks: {done.feedback_new} new feedback, "
            f"{done.preferences_new} new preference pairs",
            *(f"  left out {count:>7}: {reason}" for reason, count in sorted(done.skipped.items())),
        ]
        show(done.as_json(), "\n".join(lines), as_json=as_json)


def annotate(
    buffer: BufferUri,
    author: Annotated[str, typer.Option(help="Who you are; you go on where you stopped.")],
    pairwise: Annotated[bool, typer.Option("--pairwise", help="Choose between two of a group.")] = False,
    run_id: RunId = None,
    where: Where = None,
    as_json: Json = False,
) -> None:
    """Rate stored completions, or choose between two, in the terminal; each answer is stored at once."""
    with edge(again="What you answered is stored; the same command goes on."):
        import sys

        from rft_data.exchange.annotate import Session, comparisons, ratings
        from rft_data.exchange.annotate.terminal import annotate as ask
        from rft_data.exchange.annotate.terminal import key_presses
        from rft_data.exchange.feedback import storable

        storable(author, "--author")
        with owning(buffer) as opened:
            subjects = (comparisons if pairwise else ratings)(opened, run_id, parsed_filter(where))
            session = Session(opened, author, subjects)
            try:
                with key_presses(sys.stdin.fileno()) as keys:
                    ask(session, keys, lambda text: say(text, err=True))
            finally:
                pairs = session.close()
        counts = {key: count for key, count in session.counts.items() if count}
        text = ", ".join(f"{count} {key}" for key, count in counts.items()) or "nothing answered"
        show({**counts, "pairs_new": pairs}, f"{text}; {pairs} new preference pairs", as_json=as_json)


def _taking_feedback(uri: str) -> Buffer | HubClient:
    """A buffer to write to; or the hub of the run that has it open (`hub://...`).

    RFT_HUB_TOKEN has a token for feedback, or the run's secret; the secret itself is not sent.
    """
    if not uri.startswith("hub://"):
        return owning(uri)
    from rft_data.core.words import HubRole
    from rft_data.placement.hub.access import narrowed
    from rft_data.placement.hub.client import HUB_TOKEN, HubClient

    return HubClient(uri, narrowed(os.environ.get(HUB_TOKEN, ""), HubRole.CURATOR, "rft data feedback"))


def owning(uri: str) -> Buffer:
    """Open a buffer that exists for writing; it is not created."""
    from rft_data.buffer import Buffer
    from rft_data.run.occupied import check_free

    Buffer(uri, read_only=True).close()
    check_free(uri)
    return Buffer(uri)


def parsed_filter(text: str | None) -> Filter | None:
    from rft_data.core.filters import parse_text
    from rft_data.core.schema import EXPERIENCES

    return None if text is None else parse_text(text, EXPERIENCES)
