"""Whether what a recipe imports, or what its buffer holds, feeds its stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError, TrainingError
from rft_data.recipe.kinds import (
    that_explores_and_trains,
    that_only_trains_on_stored,
    that_trains_on_stored_groups,
)
from rft_data.recipe.modes import TrainRecipe
from rft_data.recipe.offline import AnyOfflineStage
from rft_data.recipe.preflight.problem import Problem
from rft_data.recipe.recipe import RunRecipe
from rft_data.run.checks import check_stored_groups
from rft_data.run.record import RECIPE_FILE
from rft_data.run.stage_rows import require_heldout, require_stage_rows
from rft_data.sampler.ledger import Ledger
from rft_data.sampler.make import make_policy

Needs = Callable[[Buffer], None]


def unfed(recipe: RunRecipe, imported: Sequence[Buffer]) -> Iterator[Problem]:
    """Rows or groups that stages which train on stored ones need and would not find.

    Args: imported: what its imports made, each in a buffer of its own.
    """
    training = that_trains_on_stored_groups(recipe)
    if "://" in recipe.buffer.uri or not (training or recipe.offline_stages):
        return
    with ExitStack() as opened:
        buffers = list(imported)
        if Path(recipe.buffer.uri).is_dir():
            own = opened.enter_context(Buffer(recipe.buffer.uri, read_only=True))
            if recipe.name in own.read("runs", ["run_id"])["run_id"].to_pylist():
                return  # it has begun: stages may be done whose rows are gone
            buffers.append(own)
            yield from () if training is None else _group_lacks(training, own)
        elif that_explores_and_trains(recipe) is not None:
            buffers.append(opened.enter_context(Buffer(opened.enter_context(TemporaryDirectory()))))
        elif training is not None or not imported:
            yield _without_buffer(recipe)
        if buffers:
            yield from _stage_lacks(recipe, buffers)
            yield from _heldout_lacks(recipe, buffers)


def _without_buffer(recipe: RunRecipe) -> Problem:
    """A recipe that has nothing but its buffer, which is not there."""
    missing = f"there is no buffer at {recipe.buffer.uri} yet"
    if (training := that_trains_on_stored_groups(recipe)) is not None:
        told = (
            f"{missing}, and mode 'train' trains on groups that run '{training.explored_by}' explored into "
            "it. Run that recipe of mode 'explore' first, or write the place of its buffer."
        )
    else:
        told = (
            f"{missing} and the recipe imports nothing: its stages have nothing to train on. Write "
            "'imports: [{path: FILE}]' (docs/formats.md), fill the buffer with rft buffer import, or explore "
            "into it first."
        )
    return Problem(("buffer",), told)


def _group_lacks(recipe: TrainRecipe, buffer: Buffer) -> Iterator[Problem]:
    """The reason that a recipe cannot train on the groups of a buffer, unless it has begun."""
    if (recipe.folder / RECIPE_FILE).is_file():
        return
    uses = make_policy(recipe.sampler.use, recipe.sampler.args).max_uses
    try:
        check_stored_groups(recipe, buffer, Ledger(buffer, recipe.explored_by, 0, max_uses=uses))
    except RecipeError as err:
        yield Problem(("explored_by",), str(err))


def _heldout_lacks(recipe: RunRecipe, buffers: Sequence[Buffer]) -> Iterator[Problem]:
    offline = that_only_trains_on_stored(recipe)
    if offline is not None and offline.heldout is not None:
        lack = _lack(partial(require_heldout, offline.heldout), buffers)
        yield from () if lack is None else [Problem(("heldout",), lack)]


def feeds_none(recipe: RunRecipe, imported: Sequence[Buffer]) -> Iterator[Problem]:
    """The reason that a recipe which only trains on stored rows cannot train on the rows of a source."""
    offline = that_only_trains_on_stored(recipe)
    if offline is None:
        return
    lacks = list(_stage_lacks(offline, imported))
    if len(lacks) == len(offline.stages):
        yield from lacks


def _stage_lacks(recipe: RunRecipe, buffers: Sequence[Buffer]) -> Iterator[Problem]:
    """Stages for which none of the buffers has anything."""
    for number, stage in enumerate(recipe.offline_stages):
        if _may_be_made(recipe, stage):
            continue
        if (lack := _lack(partial(require_stage_rows, stage), buffers)) is not None:
            yield Problem(("stages", number), f"'{stage.algorithm}' has nothing to train on: {lack}")


def _may_be_made(recipe: RunRecipe, stage: AnyOfflineStage) -> bool:
    """Whether the run's own experts may make what a stage trains on; stored pairs they do not."""
    online = that_explores_and_trains(recipe)
    makes = online is not None and online.has_experts
    return makes and getattr(stage.data, "pairs", None) != "stored"


def _lack(needs: Needs, buffers: Sequence[Buffer]) -> str | None:
    """The reason that no buffer has the needed rows, as the first of them says it; None where one has."""
    said = []
    for buffer in buffers:
        try:
            needs(buffer)
        except TrainingError as err:
            said.append(str(err))
        else:
            return None
    return said[0]
