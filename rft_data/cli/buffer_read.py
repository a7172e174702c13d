"""`rft buffer info | head | query | search | lineage | tag | branch`: the commands that look into one."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rft_data.cli.edge import Json, edge, say, show
from rft_data.cli.results import results
from rft_data.core.text import for_terminal

if TYPE_CHECKING:
    import pyarrow as pa

    from rft_data.buffer import Buffer
    from rft_data.core.filters import Filter

Uri = Annotated[str, typer.Argument(help="The buffer's folder or object-store URL.")]
Where = Annotated[
    str | None,
    typer.Option(help="Only rows this lets through, e.g. \"reward >= 0.5 and source = 'rollout'\"."),
]


class Format(StrEnum):
    """How rows are printed."""

    TEXT = "text"
    """A table for people: long values are cut."""
    JSON = "json"
    CSV = "csv"


AsOf = Annotated[str | None, typer.Option("--as-of", help="Only the experiences this tag names.")]


def info(uri: Uri, as_json: Json = False) -> None:
    """Tables, disk, owner, runs, and the experiences in a few numbers."""
    with edge():
        from rft_data.buffer.location import owner_pid
        from rft_data.cli.buffer_text import overview_text
        from rft_data.reading.overview import overview
        from rft_data.reading.tags import tags

        with _open(uri) as buffer:
            facts, named = overview(buffer), tags(buffer)
        names = [tag_.name + (" (its filter cannot be read)" if tag_.fault else "") for tag_ in named]
        owner = "" if "://" in uri else owner_pid(Path(uri))
        value = {**facts.as_json(), "owner_pid": owner or None, "tags": [tag_.name for tag_ in named]}
        show(value, overview_text(facts, owner, names), as_json=as_json)


def head(
    uri: Uri,
    table: Annotated[str, typer.Option(help="Which table.")] = "experiences",
    n: Annotated[int, typer.Option("-n", min=1, help="How many of the newest rows.")] = 5,
    where: Where = None,
    columns: Annotated[str | None, typer.Option(help="Only these columns, separated by commas.")] = None,
    as_of: AsOf = None,
    as_json: Json = False,
) -> None:
    """The newest rows of a table, oldest of them first."""
    with edge():
        from rft_data.cli.buffer_text import rows_text
        from rft_data.core.named_tables import known_columns

        with _open(uri) as buffer:
            named = [name.strip() for name in columns.split(",") if name.strip()] if columns else None
            names = known_columns(table, named)
            chosen = _restricted(buffer, table, where, as_of)
            rows = _newest(buffer, table, names, chosen, n).to_pylist()
        show(rows, rows_text(rows) or f"table '{table}' has no such rows", as_json=as_json)


def query(
    uri: Uri,
    sql: Annotated[
        str, typer.Argument(help="One SELECT, e.g. 'select source, avg(reward) from experiences group by 1'.")
    ],
    limit: Annotated[int, typer.Option(min=1, help="Rows at most.")] = 1000,
    deadline_s: Annotated[float, typer.Option("--deadline", min=0.1, help="Seconds it may take.")] = 30.0,
    memory_mib: Annotated[int, typer.Option("--memory", min=64, help="MiB it may use.")] = 2048,
    as_of: AsOf = None,
    shape: Annotated[Format, typer.Option("--format", help="How rows are printed.")] = Format.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Ask a question in SQL over the buffer's tables; reads only, in a process of its own.

    Only whole rows (`select * from experiences`) are compared with their digests: an answer of some columns
    may show what a damaged disk made of them. `rft buffer verify` compares all.
    """
    with edge():
        from rft_data.cli.buffer_text import csv_text, table_text
        from rft_data.core.errors import RecipeError
        from rft_data.reading.query import query as ask

        if as_json and shape == Format.CSV:
            raise RecipeError("--json and --format csv exclude each other; give one of them.")
        with _open(uri) as buffer:
            found = ask(
                buffer,
                sql,
                where=_view_filter(buffer, as_of),
                max_rows=limit,
                deadline_s=deadline_s,
                memory_bytes=memory_mib << 20,
            )
        rows, names = found.rows.to_pylist(), found.rows.column_names
        if found.truncated:
            say(f"only the first {limit} rows are shown; see --limit", err=True)
        if shape == Format.CSV:
            text = csv_text(rows, names)
            results().write(f"{for_terminal(text) if results().isatty() else text}\n")
        else:
            value = {"rows": rows, "truncated": found.truncated}
            show(value, table_text(rows, names), as_json=as_json or shape == Format.JSON)


def search(
    uri: Uri,
    text: Annotated[str | None, typer.Argument(help="Words to find, or a text to find the like of.")] = None,
    like: Annotated[int | None, typer.Option(min=0, help="Find what is similar to this row number.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Search by meaning with this sentence-transformers model.")
    ] = None,
    hybrid: Annotated[
        bool, typer.Option("--hybrid", help="By words and by meaning, as one ranking.")
    ] = False,
    index: Annotated[
        bool, typer.Option("--index", help="First index (and with --model embed) the new rows; as owner.")
    ] = False,
    n: Annotated[int, typer.Option("-n", min=1, help="How many.")] = 10,
    where: Where = None,
    as_of: AsOf = None,
    as_json: Json = False,
) -> None:
    """Find experiences by the words of their completion, or by its meaning with --model."""
    with edge():
        from rft_data.cli.buffer_search import Wanted, search_rows
        from rft_data.cli.buffer_text import hits_text

        wanted = Wanted(text, like, model, hybrid=hybrid, k=n)
        with _open(uri, write=index) as buffer:
            rows = search_rows(buffer, wanted, _restricted(buffer, "experiences", where, as_of), index=index)
        show(rows, hits_text(rows) or "nothing found", as_json=as_json)


def lineage(
    uri: Uri,
    experience: Annotated[str | None, typer.Argument(help="Experience id, or row number.")] = None,
    group: Annotated[str | None, typer.Option(help="Show this group side by side instead.")] = None,
    as_json: Json = False,
) -> None:
    """Where an experience came from and what became of it."""
    with edge():
        from rft_data.cli.lineage_text import group_text, lineage_text
        from rft_data.core.errors import RecipeError
        from rft_data.reading.group_view import group_view
        from rft_data.reading.lineage import lineage as trace

        if (experience is None) == (group is None):
            raise RecipeError("name either an experience (id or row number) or --group.")
        with _open(uri) as buffer:
            if group is not None:
                members = group_view(buffer, group)
                show(members.as_json(), group_text(members), as_json=as_json)
            else:
                named = str(experience)
                line = trace(buffer, int(named) if named.isdecimal() and len(named) < 19 else named)
                show(line.as_json(), lineage_text(line), as_json=as_json)


def tag(
    uri: Uri,
    name: Annotated[
        str | None, typer.Argument(help="Name for the rows there are now; none: list tags.")
    ] = None,
    where: Where = None,
    note: Annotated[str, typer.Option(help="Why.")] = "",
    as_json: Json = False,
) -> None:
    """Name the experiences there are now (or some of them), so that they can be read again later."""
    with edge():
        from rft_data.cli.buffer_text import tags_text
        from rft_data.core.filters import parse_text
        from rft_data.core.schema import EXPERIENCES
        from rft_data.reading.tags import tag as make
        from rft_data.reading.tags import tags

        with _open(uri, write=name is not None) as buffer:
            if name is None:
                made = tags(buffer)
            else:
                made = [make(buffer, name, parse_text(where, EXPERIENCES) if where else None, note)]
        rows = [tag_.as_json() for tag_ in made]
        show(rows if name is None else rows[0], tags_text(rows) or "no tags", as_json=as_json)


def branch(
    uri: Uri,
    target: Annotated[str, typer.Argument(help="Folder of the new buffer.")],
    where: Where = None,
    as_of: AsOf = None,
    as_json: Json = False,
) -> None:
    """Copy experiences, with what is said about them, into another buffer; again: adds what is missing."""
    with edge():
        from dataclasses import asdict

        from rft_data.reading.branch import branch as copy
        from rft_data.reading.tags import View

        with _open(uri) as buffer:
            done = copy(buffer, target, View(None, _restricted(buffer, "experiences", where, as_of)))
        new = ", ".join(f"{count} {name}" for name, count in done.new.items() if count) or "nothing"
        show(asdict(done), f"{done.target} holds {done.experiences} experiences; new: {new}", as_json=as_json)


# --- what the commands share ---------------------------------------------------------------------------


def _open(uri: str, *, write: bool = False) -> Buffer:
    """Open a buffer that exists; writing to one must not create it."""
    from rft_data.buffer import Buffer

    if write:
        from rft_data.run.occupied import check_free

        Buffer(uri, read_only=True).close()
        check_free(uri)
    return Buffer(uri, read_only=not write)


def _view_filter(buffer: Buffer, as_of: str | None) -> Filter | None:
    from rft_data.reading.tags import view

    return None if as_of is None else view(buffer, as_of).filter


def _restricted(buffer: Buffer, table: str, where: str | None, as_of: str | None) -> Filter | None:
    """`--where` and `--as-of` as one filter."""
    from rft_data.core.errors import RecipeError
    from rft_data.core.filters import And, parse_text
    from rft_data.core.named_tables import table_schema

    if as_of is not None and table != "experiences":
        raise RecipeError(f"--as-of names experiences; table '{table}' has no such views.")
    given = None if where is None else parse_text(where, table_schema(table))
    parts = [part for part in (_view_filter(buffer, as_of), given) if part is not None]
    return None if not parts else parts[0] if len(parts) == 1 else And(tuple(parts))


def _newest(buffer: Buffer, table: str, names: list[str], where: Filter | None, n: int) -> pa.Table:
    if where is None:
        return buffer.tail(table, n, names)
    import pyarrow as pa

    from rft_data.core.named_tables import table_schema

    last = pa.schema([table_schema(table).field(name) for name in names]).empty_table()
    for batch in buffer.batches(table, names, where):
        last = pa.concat_tables([last, pa.Table.from_batches([batch])])
        last = last.slice(max(0, last.num_rows - n))
    return last
