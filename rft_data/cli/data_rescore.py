"""`rft data rescore`: other rewards over stored rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rft_data.cli.edge import Json, edge, show
from rft_data.cli.recipe_path import Overrides, RecipePath

if TYPE_CHECKING:
    from rft_data.run.rejudge import Rescored


def rescore(
    recipe: RecipePath,
    overrides: Overrides = None,
    buffer: Annotated[str | None, typer.Option("--buffer", help="The buffer; else the recipe's own.")] = None,
    run_id: Annotated[str | None, typer.Option("--run", help="Only this run's groups.")] = None,
    where: Annotated[str | None, typer.Option(help="Only groups with a row this lets through.")] = None,
    name: Annotated[
        str | None, typer.Option("--as", help="Name of the reward version; else a hash of the rewards.")
    ] = None,
    times: Annotated[int, typer.Option(min=1, help="How often each rollout is scored.")] = 1,
    shard: Annotated[
        str, typer.Option(help="Only a share of the groups: 2/8 is the second of eight.")
    ] = "1/1",
    out: Annotated[
        Path | None, typer.Option(help="Write to this .jsonl, not to the buffer; then: feedback import.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Score stored rollouts by RECIPE's explorer.reward, beside the stored rewards; goes on after a kill."""
    with edge():
        from rft_data.buffer import Buffer
        from rft_data.cli.data_people import owning, parsed_filter
        from rft_data.core.errors import RecipeError
        from rft_data.reading.whole_groups import whole_groups
        from rft_data.recipe.load import load_recipe
        from rft_data.run.build import prepare_process
        from rft_data.run.rejudge import in_shard
        from rft_data.run.rejudge.rescoring import rescored

        prepare_process()
        number, of = _shard(shard)
        loaded = load_recipe(recipe, overrides or [])
        section = getattr(loaded, "explorer", None)
        if section is None or not section.reward:
            raise RecipeError(
                f"{recipe} (mode {loaded.mode}) has no 'explorer.reward' to score by; name one that has."
            )
        uri = buffer or loaded.buffer.uri
        with Buffer(uri, read_only=True) if out else owning(uri) as opened:
            chosen = whole_groups(opened, run_id, parsed_filter(where))
            chosen = chosen.only([one for one in chosen.names if in_shard(one, number, of)])
            found = rescored(opened, section, chosen, name=name, times=times, out=out)
        show(found.as_json(), rescored_text(found, out), as_json=as_json)


def rescored_text(found: Rescored, out: Path | None) -> str:
    """Groups that were scored, and how to train on them."""
    repeated = f", each rollout {found.times} times" if found.times > 1 else ""
    counts = [
        f"{found.groups} groups{repeated}",
        f"  scored now            {found.scored:>9}  ({found.changed} other than the stored reward)",
        f"  scored before         {found.before:>9}",
        f"  cannot be scored      {found.unscored:>9}",
        f"  failed, tried again   {found.failed:>9}  (by the next call)",
        f"  without a stored task {found.without_task:>9}",
    ]
    means = [
        f"  {what:<22}{value:>9.4g}"
        for what, value in (
            ("mean stored reward", found.mean_stored),
            ("mean new reward", found.mean_new),
            ("spread of one rollout", found.spread),
        )
        if value is not None
    ]
    first = [] if out is None else [f"store it:  rft data feedback import {out} --buffer BUFFER"]
    how = [
        "train on it: put this first in experience_ops, then rft data readmit RECIPE --run RUN --all",
        f'  - feedback_mapper: {{key: "{found.key}", how: mean, replace: true}}',
    ]
    sandbox = [f"programs ran in {found.sandbox}"] if found.sandbox else []
    return "\n".join([*counts, *means, *sandbox, *first, *how])


def _shard(text: str) -> tuple[int, int]:
    """Number and count of `2/8`. Raises: RecipeError."""
    from rft_data.core.errors import RecipeError

    number, _, of = text.partition("/")
    if number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of):
        return int(number), int(of)
    raise RecipeError(f"--shard is {text!r}; wanted a number and a count, such as 2/8.")
