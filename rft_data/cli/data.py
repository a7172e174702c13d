"""`rft data run | check | dry-run | readmit | rescore`: data recipes, and recipes tried on stored rows.

The commands for feedback of people (`feedback`, `label-studio`, `annotate`) are in `data_people.py`.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rft_data.cli.data_check import check
from rft_data.cli.data_people import annotate, feedback_app, label_studio_app
from rft_data.cli.data_rescore import rescore
from rft_data.cli.edge import Json, edge, show
from rft_data.cli.recipe_path import Overrides, RecipePath

if TYPE_CHECKING:
    from ops.runtime.pipeline import OperatorPipeline
    from rft_data.buffer import Buffer
    from rft_data.recipe.modes import OperatorRecipe
    from rft_data.run.rejudge import StoredVerdicts

BufferUri = Annotated[str | None, typer.Option("--buffer", help="The buffer; else the recipe's own.")]
STORED = "stored"
"""Name of the verdicts in the buffer for `--against`."""
_SINK = "lancedb_write_mapper"
"""The operator that writes rows elsewhere."""

data_app = typer.Typer(
    help="Data recipes, operators tried on stored experiences, people in the loop.", no_args_is_help=True
)
data_app.command("annotate")(annotate)
data_app.command("check")(check)
data_app.command("rescore")(rescore)
data_app.add_typer(feedback_app, name="feedback")
data_app.add_typer(label_studio_app, name="label-studio")


@data_app.command("run")
def run(recipe: RecipePath, overrides: Overrides = None, as_json: Json = False) -> None:
    """Run a data recipe: load tasks, clean them, store and score rollouts."""
    with edge():
        from rft_data.recipe.load import load_data_recipe
        from rft_data.run.curate import curate, report_text

        report = curate(load_data_recipe(recipe, overrides or []))
        show(report, report_text(report), as_json=as_json)


@data_app.command("dry-run")
def dry_run(
    recipe: RecipePath,
    overrides: Overrides = None,
    buffer: BufferUri = None,
    run_id: Annotated[str | None, typer.Option("--run", help="Only this run's groups.")] = None,
    where: Annotated[
        str | None, typer.Option(help="Only groups with a row this lets through, e.g. 'reward is null'.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Compare with another recipe, or with the 'stored' verdicts.")
    ] = None,
    rows: Annotated[int, typer.Option(min=0, help="Rows, and differences, to show.")] = 10,
    as_json: Json = False,
) -> None:
    """Show what a recipe's experience_ops would do with stored experiences; writes nothing."""
    with edge():
        from rft_data.cli.rejudge_text import dry_run_text
        from rft_data.core.errors import RecipeError
        from rft_data.core.filters import parse_text
        from rft_data.core.schema import EXPERIENCES
        from rft_data.reading.whole_groups import whole_groups
        from rft_data.run.build import experience_pipeline, prepare_process
        from rft_data.run.rejudge import dry_run as replay
        from rft_data.run.rejudge import groups_per_batch

        prepare_process()
        loaded = _recipe_without_sink(recipe, overrides or [])
        with ExitStack() as stack:
            opened = stack.enter_context(_reading(buffer or loaded.buffer.uri))
            pipeline = stack.enter_context(closing(experience_pipeline(loaded, opened)))
            other = _other_side(against, opened, stack)
            chosen = whole_groups(opened, run_id, None if where is None else parse_text(where, EXPERIENCES))
            if run_id is not None and where is None and not len(chosen):
                raise RecipeError(
                    f"buffer {opened.location} has no rollout of a run '{run_id}'; see `rft buffer info`."
                )
            found = replay(
                opened,
                pipeline,
                chosen,
                groups_per_batch=groups_per_batch(loaded),
                against=other,
                shown=rows,
            )
        show(found.as_json(), dry_run_text(found, (str(recipe), against or "")), as_json=as_json)


@data_app.command("readmit")
def readmit(
    recipe: RecipePath,
    run_id: Annotated[str, typer.Option("--run", help="The run whose rejected groups are judged again.")],
    overrides: Overrides = None,
    buffer: BufferUri = None,
    book: Annotated[
        str | None, typer.Option("--as", help="Run id that they get; else RUN-readmitted.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Also groups that the run kept.")] = False,
    as_json: Json = False,
) -> None:
    """Judge a run's rejected groups again, by a recipe; those kept can be trained on (mode: train)."""
    with edge():
        from rft_data.buffer import Buffer
        from rft_data.cli.rejudge_text import readmitted_text
        from rft_data.recipe.load import load_operator_recipe
        from rft_data.run.build import experience_pipeline, prepare_process
        from rft_data.run.occupied import check_free
        from rft_data.run.rejudge import check_not_running, groups_per_batch
        from rft_data.run.rejudge import readmit as admit

        prepare_process()
        loaded = load_operator_recipe(recipe, overrides or [])
        uri = buffer or loaded.buffer.uri
        with _reading(uri) as looked_at:
            check_not_running(looked_at, run_id)
        check_free(uri)
        with Buffer(uri) as opened, closing(experience_pipeline(loaded, opened)) as pipeline:
            found = admit(
                opened,
                run_id,
                book or f"{run_id}-readmitted",
                pipeline,
                groups_per_batch=groups_per_batch(loaded),
                every=every,
            )
        show(found.as_json(), readmitted_text(found), as_json=as_json)


# --- what the commands share ---------------------------------------------------------------------------


def _reading(uri: str) -> Buffer:
    from rft_data.buffer import Buffer

    return Buffer(uri, read_only=True)


def _recipe_without_sink(path: Path, overrides: list[str]) -> OperatorRecipe:
    """A recipe whose `experience_ops` have no sink among them."""
    from rft_data.core.errors import RecipeError
    from rft_data.recipe.load import load_operator_recipe

    loaded = load_operator_recipe(path, overrides)
    if any(_SINK in entry for entry in loaded.experience_ops):
        raise RecipeError(
            f"{path} has '{_SINK}' among its experience_ops, which writes the rows it sees, and a dry run "
            "writes nothing; take it out, or run the list with dj-process."
        )
    return loaded


def _other_side(
    against: str | None, opened: Buffer, stack: ExitStack
) -> OperatorPipeline | StoredVerdicts | None:
    from rft_data.run.build import experience_pipeline
    from rft_data.run.rejudge import StoredVerdicts

    if against is None:
        return None
    if against == STORED:
        return StoredVerdicts(opened)
    return stack.enter_context(closing(experience_pipeline(_recipe_without_sink(Path(against), []), opened)))
