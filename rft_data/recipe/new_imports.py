"""The section of a new recipe that imports answers or pairs, tried with the first rows of the data."""

from __future__ import annotations

from tempfile import TemporaryDirectory

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.exchange.formats import import_into
from rft_data.recipe.import_columns import ImportColumns
from rft_data.recipe.named_source import named_rows, source_section
from rft_data.recipe.yaml_text import flow

_TRIED = 20
"""Rows that are imported to see what they become."""
_MISSING = {
    "experiences": "no answer to imitate; name the columns of both with --prompt and --answer.",
    "preferences": "no preference pair. Each row needs a better and a worse answer to one prompt: columns "
    "'chosen' and 'rejected' (and 'prompt'), or yours, named with --chosen, --rejected and --prompt. Pairs "
    "are mined of answers that have rewards with 'data: {pairs: mined}': docs/offline.md.",
}


def import_entry(data: str, columns: ImportColumns, taskset: str, table: str) -> str:
    """The entry of `imports` that reads the data, on one line.

    Args: data: as `named_rows` takes it. table: of the buffer, which the rows must reach.
    Raises: RecipeError for rows that fit no format or become something else; what an import raises.
    """
    with TemporaryDirectory() as folder, Buffer(folder) as buffer:
        report = import_into(buffer, named_rows(data), format=columns.format(), limit=_TRIED)
    if not report.new[table]:
        made = ", ".join(f"{count} {name}" for name, count in report.new.items() if count) or "nothing"
        first = f" (the first is set aside: {report.problems[0]})" if report.problems else ""
        raise RecipeError(
            f"{data}: its first {report.rows} rows are read as '{report.format}' and become {made}{first}, "
            f"{_MISSING[table]}"
        )
    use = str(source_section(data)["use"])
    named = {"source": {"use": use}} if ":" in use else {"path": data}
    return flow({**named, "taskset": taskset, **columns.named})
