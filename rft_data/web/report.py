"""A run as one page that needs nothing else: `rft report`."""

from __future__ import annotations

import json
from pathlib import Path

from markupsafe import Markup

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.core.rows import now
from rft_data.core.scratch import on_hub, on_store
from rft_data.core.version import __version__
from rft_data.reading.lineage import trained_on
from rft_data.run.record import RECIPE_FILE
from rft_data.run.status import RunStatus, run_status, stored_run_id
from rft_data.web import runs
from rft_data.web.alarms import NUMBERS, alarms
from rft_data.web.listing import COLUMNS, ShownRow, with_verdicts
from rft_data.web.subjects import Subjects
from rft_data.web.templates import STATIC, environment

MOST_ROLLOUTS = 16


def report(run_dir: str) -> str:
    """The HTML of a run: state, held-out accuracies, numbers as pictures, rollouts, recipe.

    Raises: MissingFileError if the folder holds no run.
    """
    run_dir = run_dir if on_store(run_dir) else str(Path(run_dir))
    with Subjects([run_dir]) as subjects:
        one = next(iter(subjects))
        key, where = one.key, one.where
        if where != run_dir:
            raise RecipeError(f"'{run_dir}' is a folder of runs; name one of them, for example {where}.")
        if one.run_dir is None:
            what = "the hub of a buffer that no run owns" if on_hub(where) else "a buffer"
            raise RecipeError(
                f"'{where}' is {what}, and a report is about a run: give a run's folder, URL or hub."
            )
        folder, buffer = runs.run_folder(subjects, key), runs.opened(subjects, key)
        status, run_id = run_status(folder, buffer=buffer), stored_run_id(folder)
        first = runs.first_names(folder)
        names = list(dict.fromkeys((*first, *NUMBERS)))
        frame = None if buffer is None else runs.metrics(buffer, run_id, names)
        return (
            environment()
            .get_template("report.html")
            .render(
                status=status,
                made=now(),
                version=__version__,
                style=Markup((STATIC / "page.css").read_text()),  # noqa: S704 - a file of this package
                alarms=alarms(status, frame),
                accuracies=_accuracies(folder),
                outcomes={} if buffer is None else runs.outcomes(buffer, run_id),
                charts=[] if frame is None else runs.first_charts(frame, first),
                rows=[] if buffer is None else _last_rollouts(buffer, run_id, status),
                recipe=json.dumps(
                    json.loads((folder / RECIPE_FILE).read_text()), indent=1, ensure_ascii=False
                ),
            )
        )


def _accuracies(folder: Path) -> dict[str, float]:
    """Held-out accuracy after each part of a finished run; empty before its end."""
    file = folder / "summary.json"
    found = json.loads(file.read_text()).get("heldout_accuracy") if file.is_file() else None
    return found or {}


def _last_rollouts(buffer: Buffer, run_id: str, status: RunStatus) -> list[ShownRow]:
    """Rollouts of the last recorded step, each n-th where there are many."""
    if status.progress is None:
        return []
    try:
        table = trained_on(buffer, run_id, status.progress.step - 1).select(COLUMNS)
    except RecipeError:  # nothing was leased: a run that trains on no groups
        return []
    every = -(-table.num_rows // MOST_ROLLOUTS)
    rows: list[ShownRow] = table.take(list(range(0, table.num_rows, every))).to_pylist()
    with_verdicts(buffer, rows)
    return rows
