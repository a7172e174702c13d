"""What one optimizer step is made of, and how old it may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rft_data.recipe.modes import TrainingRecipe
from rft_data.recipe.online import OnlineRecipe
from rft_data.recipe.sections import ExplorerSection
from rft_data.run.outlook.memory import Batch

_STEP_ROWS = ("step_wise", "step_wise_fresh")


def group_size(recipe: TrainingRecipe) -> int:
    """Rollouts of a group that the trainer gets."""
    return recipe.explorer.group_size if isinstance(recipe, OnlineRecipe) else recipe.group_size


def accumulation(options: Mapping[str, object]) -> int:
    """Micro-batches of a step on each process. What is no count is refused when the run starts."""
    given = options.get("gradient_accumulation_steps", 1)
    return given if isinstance(given, int) and given > 0 else 1


def micro_batch(recipe: TrainingRecipe) -> Batch:
    """The largest of one trainer process, where rollouts are as long as they may be."""
    parts = accumulation(recipe.rl.trl) * recipe.placement.trainer.processes
    rows = -(-recipe.rl.groups_per_step * group_size(recipe) // parts)
    if isinstance(recipe, OnlineRecipe):
        longest = recipe.explorer.engine.max_model_len
        return Batch(rows, longest, most_sampled(recipe.explorer))
    return Batch(rows, 0, 0)


def most_sampled(explorer: ExplorerSection) -> int:
    """Tokens that a rollout can have sampled at most."""
    turns, longest = _turns(explorer), explorer.engine.max_model_len
    return longest if turns is None else min(longest, explorer.max_tokens * turns)


def batch_lines(recipe: TrainingRecipe) -> Iterator[tuple[str, str]]:
    """The arithmetic of a step, as (what, in words)."""
    stage, members = recipe.rl, group_size(recipe)
    rollouts = stage.groups_per_step * members
    yield (
        "step",
        f"{stage.groups_per_step} groups x {members} rollouts = {rollouts} rollouts; "
        f"{stage.steps} steps = {rollouts * stage.steps:,} rollouts trained on",
    )
    one, processes = micro_batch(recipe), recipe.placement.trainer.processes
    parts = accumulation(stage.trl)
    yield (
        "micro-batch",
        f"{counted(processes, 'process')} x {counted(parts, 'micro-batch')} of {one.rows} rows"
        + (f" of at most {one.tokens:,} tokens" if one.tokens else ""),
    )
    if isinstance(recipe, OnlineRecipe):
        yield from _explored(recipe, rollouts)


def staleness_line(recipe: TrainingRecipe) -> str:
    """How old what is trained on may be."""
    if not isinstance(recipe, OnlineRecipe):
        return "the groups were sampled before this run, by weights of any age"
    sync = recipe.sync
    if sync.synchronous:
        return "none: every trained token was sampled by the weights that are trained on it"
    return (
        f"weights reach the explorers every {counted(sync.every, 'step')}; a rollout whose oldest token is "
        f"more than {counted(sync.max_staleness, 'step')} behind is not trained on"
    )


def _explored(recipe: OnlineRecipe, rollouts: int) -> Iterator[tuple[str, str]]:
    explorer, stage = recipe.explorer, recipe.rl
    sampled, turns = most_sampled(explorer), _turns(explorer)
    yield (
        "tokens",
        f"at most {explorer.max_tokens:,} a turn, {sampled:,} a rollout, {rollouts * sampled:,} a step",
    )
    if explorer.workflow.args.get("shape") in _STEP_ROWS:
        most_rows = (
            f"up to {turns}, so up to {turns * rollouts:,} rows a step" if turns else "as many as it has"
        )
        yield "rows", f"a rollout is one row a turn: {most_rows}"
    groups = int(stage.groups_per_step * stage.max_explored)
    if groups > stage.groups_per_step:
        yield (
            "explored",
            f"{stage.groups_per_step} to {groups} groups a step, until operators have left enough of them; "
            "then the step trains on fewer ('max_explored')",
        )


def _turns(explorer: ExplorerSection) -> int | None:
    """Most turns of a rollout; None where the recipe does not say."""
    workflow = explorer.workflow
    given = workflow.args.get("turns", 1 if workflow.use == "single_turn" else None)
    return given if isinstance(given, int) and given > 0 else None


def counted(number: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith(("s", "ch")) else "s")
    return f"{number} {noun if number == 1 else plural}"
