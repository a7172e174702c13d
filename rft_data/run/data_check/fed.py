"""Whether what a recipe imports, or what its buffer holds, feeds its stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rft_data.buffer import Buffer
from rft_data.core.errors import TrainingError
from rft_data.recipe.kinds import that_only_trains_on_stored
from rft_data.recipe.modes import OfflineRecipe
from rft_data.recipe.preflight.problem import Problem
from rft_data.recipe.recipe import RunRecipe
from rft_data.run.stage_rows import require_heldout, require_stage_rows

Needs = Callable[[Buffer], None]


def unfed(recipe: RunRecipe, imported: Sequence[Buffer]) -> Iterator[Problem]:
    """What a recipe that only trains on stored rows needs and would not find; of other recipes nothing.

    Args: imported: what its imports made, each in a buffer of its own.
    """
    offline = that_only_trains_on_stored(recipe)
    if offline is None or "://" in offline.buffer.uri:
        return
    with ExitStack() as opened:
        buffers = list(imported)
        if Path(offline.buffer.uri).is_dir():
            own = opened.enter_context(Buffer(offline.buffer.uri, read_only=True))
            if offline.name in own.read("runs", ["run_id"])["run_id"].to_pylist():
                return  # it has begun: stages may be done whose rows are gone
            buffers.append(own)
        if not buffers:
            yield Problem(
                ("buffer",),
                f"there is no buffer at {offline.buffer.uri} yet and the recipe imports nothing: "
                "its stages have nothing to train on. Write 'imports: [{path: FILE}]' (docs/formats.md), "
                "fill the buffer with rft buffer import, or explore into it first.",
            )
            return
        yield from _stage_lacks(offline, buffers)
        if offline.heldout is not None:
            lack = _lack(partial(require_heldout, offline.heldout), buffers)
            yield from () if lack is None else [Problem(("heldout",), lack)]


def feeds_none(recipe: RunRecipe, imported: Sequence[Buffer]) -> Iterator[Problem]:
    """Why no stage of a recipe that only trains on stored rows can train on what a source makes."""
    offline = that_only_trains_on_stored(recipe)
    if offline is None:
        return
    lacks = list(_stage_lacks(offline, imported))
    if len(lacks) == len(offline.stages):
        yield from lacks


def _stage_lacks(recipe: OfflineRecipe, buffers: Sequence[Buffer]) -> Iterator[Problem]:
    """Stages for which none of the buffers has anything."""
    for number, stage in enumerate(recipe.stages):
        if (lack := _lack(partial(require_stage_rows, stage), buffers)) is not None:
            yield Problem(("stages", number), f"'{stage.algorithm}' has nothing to train on: {lack}")


def _lack(needs: Needs, buffers: Sequence[Buffer]) -> str | None:
    """Why none of the buffers has what is needed, as the first of them says it; None where one has."""
    said = []
    for buffer in buffers:
        try:
            needs(buffer)
        except TrainingError as err:
            said.append(str(err))
        else:
            return None
    return said[0]
