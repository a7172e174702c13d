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
from rft_data.recipe.recipe import RunRecipe
from rft_data.run.stage_rows import require_heldout, require_stage_rows

Needs = Callable[[Buffer], None]


def unfed(recipe: RunRecipe, imported: Sequence[Buffer]) -> Iterator[str]:
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
            yield (
                f"there is no buffer at {offline.buffer.uri} yet and the recipe imports nothing: "
                "its stages have nothing to train on. Write 'imports: [{path: FILE}]' (docs/formats.md), "
                "fill the buffer with rft buffer import, or explore into it first."
            )
            return
        for place, needs in _needs(offline):
            if (lack := _lack(needs, buffers)) is not None:
                yield f"{place}: {lack}"


def feeds_none(recipe: RunRecipe, imported: Sequence[Buffer]) -> Iterator[str]:
    """Why no stage of a recipe that only trains on stored rows can train on what a source makes."""
    offline = that_only_trains_on_stored(recipe)
    if offline is None:
        return
    lacks = [_lack(partial(require_stage_rows, stage), imported) for stage in offline.stages]
    if None not in lacks:
        stages = [f"stages.{number} ({stage.algorithm})" for number, stage in enumerate(offline.stages)]
        yield from (f"{place}: {lack}" for place, lack in zip(stages, lacks, strict=True))


def _needs(recipe: OfflineRecipe) -> Iterator[tuple[str, Needs]]:
    for number, stage in enumerate(recipe.stages):
        yield f"stages.{number} ({stage.algorithm})", partial(require_stage_rows, stage)
    if recipe.heldout is not None:
        yield "heldout", partial(require_heldout, recipe.heldout)


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
