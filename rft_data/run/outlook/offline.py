"""The stages that train on stored rows: their rows, updates and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

from rft_data.buffer import Buffer
from rft_data.core.errors import MissingFileError
from rft_data.recipe.modes import StagedRecipe
from rft_data.recipe.offline import AnyOfflineStage, DpoStage, KtoStage, RewardModelStage, SftStage
from rft_data.recipe.tasksets import StoredExperts
from rft_data.run.outlook.batches import counted
from rft_data.run.outlook.memory import Batch, Training, training_memory
from rft_data.run.outlook.model_size import ModelSize
from rft_data.run.outlook.places import Place

_ROWS, _EPOCHS = 8, 3
"""Defaults of transformers: rows of a micro-batch, passes over all of them."""
_TOKENS = 1024
"""Row length for which memory is computed, where the recipe cuts no rows and the model could read more."""
_LOGITS = 5
"""Float32 copies of all logits that TRL's losses hold at their peak (measured on a CPU: 4.7 sft, 4.6 dpo)."""
_PAIRED = (DpoStage, RewardModelStage)

Count = Callable[[AnyOfflineStage], int | None]
"""At most how many rows, or pairs, of the buffer a stage trains on; None where that is not known."""


def stage_lines(recipe: StagedRecipe, count: Count | None) -> Iterator[tuple[str, str]]:
    """The arithmetic of each stage. `count`: counts the stage's rows; None: the buffer is not read."""
    why = "how many there are is not looked up here" if count is None else _why_unknown(recipe)
    for number, stage in enumerate(recipe.offline_stages):
        rows = None if count is None else count(stage)
        yield f"stage {number}", f"{stage.algorithm}: {_arithmetic(stage, rows, why)}"


def stage_places(recipe: StagedRecipe, size: ModelSize, *, shared_gpu: bool) -> Iterator[Place]:
    """The process that trains each stage; only one of them runs at a time."""
    gpus = 1 if shared_gpu else min(recipe.placement.trainer.gpus, 1.0)
    for number, stage in enumerate(recipe.offline_stages):
        tokens = _cut(stage) or min(_TOKENS, size.context or _TOKENS)
        rows = _whole(stage.trl, "per_device_train_batch_size", _ROWS) * (1 + isinstance(stage, _PAIRED))
        how = Training(
            options=stage.trl,
            lora=stage.lora,
            reference=isinstance(stage, DpoStage | KtoStage)
            and not stage.trl.get("precompute_ref_log_probs"),
            critic=False,
            on_gpu=gpus > 0,
            logits=0 if isinstance(stage, RewardModelStage) else _LOGITS,
        )
        parts = training_memory(size, how, Batch(rows, tokens, tokens))
        cut = "" if _cut(stage) else f", if no row is longer than {tokens:,} tokens ('trl.max_length' cuts)"
        shared = shared_gpu or recipe.placement.colocate
        yield Place(f"stage {number}, {stage.algorithm}{cut}", 1, gpus, parts, shared, in_turns=True)


def counted_in(recipe: StagedRecipe) -> Count:
    """Counts a stage's rows in the recipe's buffer, where that is a folder here and nothing is imported."""

    def count(stage: AnyOfflineStage) -> int | None:
        if stage.data is None:
            return _expert_rows(recipe)
        if recipe.imports or "://" in recipe.buffer.uri:
            return None
        try:
            buffer = Buffer(recipe.buffer.uri, read_only=True)
        except MissingFileError:
            return None
        with closing(buffer):
            return _stored(stage, buffer)

    return count


def _stored(stage: AnyOfflineStage, buffer: Buffer) -> int:
    from trainers.offline.stored_pairs import PairChoice, most_pairs
    from trainers.offline.stored_rows import RowChoice, most_rows

    given = {} if stage.data is None else stage.data.model_dump(exclude={"threshold"})
    if isinstance(stage, SftStage | KtoStage):
        return most_rows(buffer, RowChoice(**given))
    return most_pairs(buffer, PairChoice(**given))


def _expert_rows(recipe: StagedRecipe) -> int | None:
    """Solutions that the recipe's experts make at most; None where one has no limit."""
    total = 0
    for one in getattr(recipe, "experts", []):
        if one.limit is None:
            return None
        total += one.limit * (1 if isinstance(one, StoredExperts) else len(one.tasksets))
    return total


def _arithmetic(stage: AnyOfflineStage, rows: int | None, why_unknown: str) -> str:
    what = "pair" if isinstance(stage, _PAIRED) else "row"
    each = _whole(stage.trl, "per_device_train_batch_size", _ROWS)
    parts = _whole(stage.trl, "gradient_accumulation_steps", 1)
    update = f"{counted(parts, 'micro-batch')} of {counted(each, what)}"
    steps, given = _whole(stage.trl, "max_steps", -1), stage.trl.get("num_train_epochs", _EPOCHS)
    epochs = given if isinstance(given, int | float) else _EPOCHS
    if rows is None:
        length = f"{steps:,} updates" if steps > 0 else _epochs(epochs)
        return f"{update} an update, {length}; {why_unknown}"
    where = "experts' rows" if stage.data is None else f"{what}s in the buffer"
    epoch = -(-rows // (each * parts))
    length = (
        f"{steps:,} updates = {steps / max(1, epoch):.3g} epochs"
        if steps > 0
        else f"{_epochs(epochs)} = {round(epoch * epochs):,} updates"
    )
    return f"at most {rows:,} {where}, {update} an update: {epoch:,} updates an epoch, {length}"


def _epochs(number: float) -> str:
    return f"{number:g} epoch{'' if number == 1 else 's'}"


def _why_unknown(recipe: StagedRecipe) -> str:
    if recipe.imports:
        return "how many there are is known when 'imports' are read (rft data check SOURCE counts them)"
    if "://" in recipe.buffer.uri:
        return f"how many there are is not looked up in {recipe.buffer.uri}"
    if not Path(recipe.buffer.uri).is_dir():
        return f"how many there are is known when the buffer '{recipe.buffer.uri}' is there"
    return "how many there are is known when the experts have no limit but the tasks"


def _cut(stage: AnyOfflineStage) -> int | None:
    given = stage.trl.get("max_length")
    return given if isinstance(given, int) and given > 0 else None


def _whole(options: Mapping[str, object], name: str, default: int) -> int:
    """An option that is a whole number; what is none, TRL's own configuration refuses at the start."""
    given = options.get(name, default)
    return given if isinstance(given, int) and (given > 0 or default < 0) else default
