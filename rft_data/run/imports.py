"""The imports of a recipe: rows of files, stored before the run is checked and begins."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.exchange.formats import ImportReport, import_into
from rft_data.recipe.imports import Import
from rft_data.run.taskset_rows import opened_rows

log = logging.getLogger(__name__)


def import_sources(sources: Sequence[Import], buffer: Buffer) -> None:
    """Import every source; what is stored already is not stored again.

    Raises: RecipeError for a source of which no row can be stored; what an import raises.
    """
    for place, one in enumerate(sources):
        report = stored_import(one, buffer)
        if report.quarantined == report.rows:
            raise RecipeError(
                f"imports.{place}.{one.key}: none of the {report.rows} rows of {report.source} can be stored "
                f"as format '{report.format}', the first because of {report.problems[0]}; name the right "
                "'format', or mend the file."
            )
        log.info(
            "%s: %d rows as '%s', %d new in taskset '%s', %d set aside",
            report.source, report.rows, report.format, report.stored, report.taskset, report.quarantined,
        )  # fmt: skip
        for problem in report.problems:
            log.warning("set aside: %s", problem)


def stored_import(section: Import, buffer: Buffer) -> ImportReport:
    """Import one source. Raises: what an import raises."""
    return import_into(
        buffer,
        str(section.path) if section.source is None else opened_rows(section.source),
        format=section.columns.format() or section.format,
        taskset=section.taskset,
        split=section.split,
        limit=section.limit,
    )
