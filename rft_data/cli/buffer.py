"""`rft buffer ...`: which function stands behind each command."""

from __future__ import annotations

from collections.abc import Callable

import typer

from rft_data.cli import buffer_accounting, buffer_care, buffer_io, buffer_read

buffer_app = typer.Typer(
    help="Read, search, check and repair a buffer; rows in and out.", no_args_is_help=True
)
_COMMANDS: dict[str, Callable[..., None]] = {
    "info": buffer_read.info,
    "head": buffer_read.head,
    "query": buffer_read.query,
    "search": buffer_read.search,
    "lineage": buffer_read.lineage,
    "tag": buffer_read.tag,
    "branch": buffer_read.branch,
    "import": buffer_io.import_,
    "export": buffer_io.export,
    "verify": buffer_care.verify,
    "repair": buffer_care.repair,
    "compact": buffer_care.compact,
    "quarantine": buffer_care.quarantine,
    "books": buffer_accounting.books,
    "upgrade": buffer_accounting.upgrade,
}
for _name, _command in _COMMANDS.items():
    buffer_app.command(_name)(_command)
