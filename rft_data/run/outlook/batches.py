"""The batch of one optimizer step, and how old it may be."""

from __future__ import annotations

from collections.abc import Iterator

from rft_data.recipe.modes import TrainingRecipe
from rft_data.recipe.sections import ExplorerSection
from rft_data.recipe.stages import RlStage
from rft_data.run.outlook.memory import Batch
from trainers.models.options import accumulation_steps, padded_rows

_STEP_ROWS = ("step_wise", "step_wise_fresh")


def micro_batch(recipe: TrainingRecipe) -> Batch:
    """The largest micro-batch of one trainer process, when every rollout is as long as it may be."""
    parts = accumulation_steps(recipe.rl.trl) * recipe.placement.trainer.processes
    rows = -(-_dealt_rows(recipe) // parts)
    if recipe.explorer is None:
        return Batch(rows, 0, 0)
    return Batch(rows, recipe.explorer.engine.max_model_len, most_sampled(recipe.explorer))


def _dealt_rows(recipe: TrainingRecipe) -> int:
    """Rows of a full lease, with the padding rows that give every rank the same number."""
    return padded_rows(
        recipe.rl.groups_per_step * recipe.group_size,
        micro_batches=accumulation_steps(recipe.rl.trl),
        ranks=recipe.placement.trainer.processes,
    )


def most_sampled(explorer: ExplorerSection) -> int:
    """The most tokens that one rollout can sample."""
    turns, longest = _turns(explorer), explorer.engine.max_model_len
    budget = explorer.workflow.args.get("budget")
    if isinstance(budget, int) and budget > 0:
        longest = min(longest, budget)
    return longest if turns is None else min(longest, explorer.max_tokens * turns)


def batch_lines(recipe: TrainingRecipe) -> Iterator[tuple[str, str]]:
    """The arithmetic of a step, as pairs of a subject and words."""
    stage, members = recipe.rl, recipe.group_size
    rollouts = stage.groups_per_step * members
    yield (
        "step",
        f"{stage.groups_per_step} groups x {members} rollouts = {rollouts} rollouts; "
        f"{stage.steps} steps = {rollouts * stage.steps:,} rollouts trained on",
    )
    yield "micro-batch", _dealt(recipe, rollouts)
    if recipe.explorer is not None:
        yield from _explored(stage, recipe.explorer, rollouts)


def _dealt(recipe: TrainingRecipe, rollouts: int) -> str:
    """Processes x micro-batches x rows x tokens, with the padding and the tokens at a time that follow."""
    one, processes = micro_batch(recipe), recipe.placement.trainer.processes
    parts = accumulation_steps(recipe.rl.trl)
    words = f"{counted(processes, 'process')} x {counted(parts, 'micro-batch')} of {one.rows} rows"
    if one.tokens:
        words += f" of at most {one.tokens:,} tokens"
    if processes > 1:
        padding = one.rows * parts * processes - rollouts
        words += f" = {one.rows * parts * processes} rows a step"
        words += f", {padding} of them padding that trains nothing" if padding else ", none of them padding"
    if one.tokens:
        words += f"; at most {one.rows * one.tokens:,} tokens at a time in a process"
    if parts > 1:
        words += f", gradients of {parts} micro-batches added up to one update"
    return words


def staleness_line(recipe: TrainingRecipe) -> str:
    """How old the rollouts of a step may be."""
    if recipe.explorer is None:
        return "the groups were sampled before this run, by weights of any age"
    sync = recipe.sync
    if sync.synchronous:
        return "none: every trained token was sampled by the weights that are trained on it"
    return (
        f"weights reach the explorers every {counted(sync.every, 'step')}; a rollout whose oldest token is "
        f"more than {counted(sync.max_staleness, 'step')} behind is not trained on"
    )


def _explored(stage: RlStage, explorer: ExplorerSection, rollouts: int) -> Iterator[tuple[str, str]]:
    sampled = most_sampled(explorer)
    yield (
        "tokens",
        f"at most {explorer.max_tokens:,} a turn, {sampled:,} a rollout, {rollouts * sampled:,} a step",
    )
    yield from turn_rows(explorer, rollouts, "a step")
    groups = int(stage.groups_per_step * stage.max_explored)
    if groups > stage.groups_per_step:
        yield (
            "explored",
            f"{stage.groups_per_step} to {groups} groups a step, until operators have left enough of them; "
            "then the step trains on fewer ('max_explored')",
        )


def turn_rows(explorer: ExplorerSection, rollouts: int, of: str) -> Iterator[tuple[str, str]]:
    """The rows of rollouts that have a row for each turn. `of`: what has so many rollouts, like 'a step'."""
    if explorer.workflow.args.get("shape") in _STEP_ROWS:
        turns = _turns(explorer)
        most = f"up to {turns}, so up to {turns * rollouts:,} rows {of}" if turns else "as many as it has"
        yield "rows", f"a rollout is one row a turn: {most}"


def _turns(explorer: ExplorerSection) -> int | None:
    """The most turns that a rollout may have; None where the recipe does not say."""
    workflow = explorer.workflow
    given = workflow.args.get("turns", 1 if workflow.use == "single_turn" else None)
    return given if isinstance(given, int) and given > 0 else None


def counted(number: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith(("s", "ch")) else "s")
    return f"{number} {noun if number == 1 else plural}"
