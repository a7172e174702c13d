"""`rft buffer import` and `rft buffer export`: rows in and out of a buffer, in the formats others use."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rft_data.cli.edge import Json, edge, show
from rft_data.core.errors import RecipeError

if TYPE_CHECKING:
    from rft_data.core.filters import Filter
    from rft_data.exchange.formats import ExportReport

Uri = Annotated[str, typer.Argument(help="The buffer's folder or object-store URL.")]


def import_(
    uri: Uri,
    source: Annotated[
        str,
        typer.Argument(
            help="A file, a dataset folder (FOLDER:SPLIT), or hf:// or modelscope:// org/name:split@revision."
        ),
    ],
    format_: Annotated[
        str | None, typer.Option("--format", help="What the rows are; found from their columns if left out.")
    ] = None,
    taskset: Annotated[str | None, typer.Option(help="What to call the rows; else the file's name.")] = None,
    split: Annotated[str, typer.Option(help="Split of the tasks made: train or heldout.")] = "train",
    limit: Annotated[int | None, typer.Option(min=1, help="Read at most so many rows.")] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Column, or template, of the prompt, where no format fits.")
    ] = None,
    completion: Annotated[str | None, typer.Option(help="Column of the answer to it.")] = None,
    chosen: Annotated[str | None, typer.Option(help="Column of a pair's better answer.")] = None,
    rejected: Annotated[str | None, typer.Option(help="Column of a pair's worse answer.")] = None,
    label: Annotated[str | None, typer.Option(help="Column that says if the answer is desirable.")] = None,
    as_json: Json = False,
) -> None:
    """Store rows of a file or dataset; bad rows go to quarantine. Importing again stores nothing twice."""
    with edge():
        from rft_data.buffer import Buffer
        from rft_data.exchange.formats import ready_import
        from rft_data.recipe.import_columns import ImportColumns
        from rft_data.run.occupied import check_free

        mapped = ImportColumns(prompt, completion, chosen, rejected, label).format()
        if mapped is not None and format_ is not None:
            raise RecipeError(
                "--format says what the columns are, and other options name them; leave one out."
            )
        ready = ready_import(source, format=mapped or format_, taskset=taskset, split=split, limit=limit)
        check_free(uri)
        with Buffer(uri) as buffer:  # made only for a source that can be read
            report = ready.into(buffer)
        new = ", ".join(f"{count} {name}" for name, count in report.new.items() if count) or "nothing"
        lines = [
            f"{report.source} ({report.format}) into taskset '{report.taskset}'",
            f"  rows          {report.rows:>9}",
            f"  stored        {report.stored:>9}  new: {new}",
            f"  already there {report.already_there:>9}",
            f"  quarantined   {report.quarantined:>9}",
            *(f"    {problem}" for problem in report.problems),
        ]
        if report.quarantined > len(report.problems):
            lines.append(f"    ... all of them: rft buffer head {uri} --table quarantine")
        show(asdict(report), "\n".join(lines), as_json=as_json)
        if report.quarantined == report.rows:
            raise typer.Exit(1)  # nothing of the source was taken: no success for a script to build on


def export(
    uri: Uri,
    target: Annotated[
        Path,
        typer.Argument(
            help="FILE.jsonl, .jsonl.gz, .jsonl.zst, .parquet or .csv, or a name without suffix for a folder."
        ),
    ],
    format_: Annotated[
        str, typer.Option("--format", help="For a trainer: sft, sft-messages, dpo, kto, grpo. All rows: rft.")
    ],
    table: Annotated[
        str | None, typer.Option(help="Table to write from, where a format is written from several.")
    ] = None,
    where: Annotated[str | None, typer.Option(help="Which rows, as a filter.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier export.")] = False,
    margin: Annotated[float, typer.Option(help="dpo: a mined pair needs a reward gap above this.")] = 0.0,
    threshold: Annotated[float, typer.Option(help="kto: a reward from here on is desirable.")] = 0.5,
    as_json: Json = False,
) -> None:
    """Write rows to a file or a dataset folder, with a card that says what they are."""
    with edge():
        from rft_data.buffer import Buffer
        from rft_data.exchange.formats import export as export_rows

        with Buffer(uri, read_only=True) as buffer:
            report = export_rows(
                buffer,
                target,
                format=format_,
                table=table,
                where=None if where is None else _filter(where, format_, table),
                overwrite=overwrite,
                margin=margin,
                threshold=threshold,
            )
        show(asdict(report), _written(report), as_json=as_json)


def _filter(text: str, format_: str, table: str | None) -> Filter:
    """The filter a line of text describes, over the table that the export reads."""
    from rft_data.core.filters import parse_text
    from rft_data.core.lookup import lookup
    from rft_data.core.schema import TABLES
    from rft_data.exchange.formats import FORMATS
    from rft_data.exchange.formats.exporting import export_tables

    names = export_tables(lookup(format_, FORMATS, "format"), table, filtered=True)
    return parse_text(text, TABLES[names[0]][0])


def _written(report: ExportReport) -> str:
    lines = [
        f"{report.target} ({report.format}, from {' and '.join(report.tables)})",
        f"  written  {report.written:>9} of {report.selected} selected",
        *(f"  left out {count:>9}: {reason}" for reason, count in sorted(report.skipped.items())),
        f"  card     {report.card}",
    ]
    return "\n".join(lines)
