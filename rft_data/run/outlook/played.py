"""The arithmetic of runs that explore or measure: rollouts, and stored rows."""

from __future__ import annotations

from collections.abc import Iterator

from rft_data.core.text import size_text
from rft_data.recipe.kinds import that_explores_and_trains, that_measures, that_only_explores
from rft_data.recipe.modes import DataRecipe, EvalRecipe, ExploreRecipe, ExplorerRecipe
from rft_data.recipe.online import OnlineRecipe
from rft_data.recipe.sections import ExplorerSection
from rft_data.run.outlook.batches import counted, most_sampled, turn_rows

_ROW_BYTES, _TOKEN_BYTES = 2_000, 20
"""About the bytes of a stored rollout: its names, text and digests; and of each token: id, logprob, masks and
text."""


def stored_bytes(explorer: ExplorerSection) -> int:
    """About the most bytes that a rollout takes in the buffer."""
    return _ROW_BYTES + _TOKEN_BYTES * most_sampled(explorer)


def explored_lines(recipe: ExploreRecipe) -> Iterator[tuple[str, str]]:
    """The arithmetic of a run that explores with a fixed policy."""
    members = recipe.explorer.group_size
    rollouts = recipe.groups * members
    yield "groups", f"{recipe.groups:,} groups x {counted(members, 'rollout')} = {rollouts:,} rollouts"
    yield from _sampled(recipe.explorer, rollouts)
    yield "staleness", "none: one version of the weights plays everything"


def evaluation_line(recipe: OnlineRecipe) -> str | None:
    """How often, and on how many tasks, an online run measures its model; None where it does not."""
    asked = recipe.evaluation
    if asked is None:
        return None
    times = 2 + sum(one.algorithm != "reward_model" for one in recipe.offline_stages)
    if asked.every is not None:
        times += (recipe.rl.steps - 1) // asked.every  # the last step is the final one
    each = asked.limit * asked.samples
    how = "" if asked.every is None else f", and every {counted(asked.every, 'step')}"
    return (
        f"at most {asked.limit:,} held-out tasks x {counted(asked.samples, 'answer')} = {each:,} rollouts, "
        f"before the first stage, after each{how}: {counted(times, 'time')}, {each * times:,} rollouts in all"
    )


def measured_lines(recipe: EvalRecipe, models: int) -> Iterator[tuple[str, str]]:
    """The arithmetic of a run that measures models. `models`: how many; 0: not known yet."""
    tasks, samples = recipe.evaluation.limit, recipe.evaluation.samples
    each = tasks * samples
    words = f"at most {tasks:,} held-out tasks x {counted(samples, 'answer')} = {each:,} rollouts a model"
    how = "one answer, greedy" if samples == 1 else f"sampled at temperature {recipe.explorer.temperature:g}"
    yield (
        "rollouts",
        f"{words}, {how}" + (f"; {counted(models, 'model')} = {each * models:,}" if models else ""),
    )
    yield from _sampled(recipe.explorer, each * max(1, models))


def data_lines(recipe: DataRecipe) -> Iterator[tuple[str, str]]:
    """The work of a run that cleans and scores data."""
    operators = [name for one in recipe.task_ops for name in one]
    yield (
        "cleaned",
        f"by {counted(len(operators), 'operator')} ({', '.join(operators)})" if operators else "not",
    )
    for one in recipe.rollouts:
        columns = counted(len(one.completions), "completion")
        yield "scored", f"'{one.name}', {columns} a row, by {counted(len(recipe.reward), 'reward')}"
    yield "memory", "no model is loaded; rows are read and cleaned in this process's memory"


def at_a_time(recipe: ExplorerRecipe) -> int:
    """The most rollouts that a run asks of its engines at once."""
    if (online := that_explores_and_trains(recipe)) is not None:
        groups = online.rl.groups_per_step * (online.sync.max_staleness + 1)
    elif (explores := that_only_explores(recipe)) is not None:
        groups = min(explores.groups, explores.checkpoint_every)
    else:
        measures = that_measures(recipe)
        return 0 if measures is None else measures.evaluation.limit * measures.evaluation.samples
    return groups * recipe.explorer.group_size


def explored_disk(recipe: ExploreRecipe) -> str:
    """Bytes of the rows that are stored."""
    group = recipe.explorer.group_size * stored_bytes(recipe.explorer)
    return f"at most {size_text(recipe.groups * group)} of rows, {size_text(1000 * group)} per 1,000 groups"


def measured_disk(recipe: EvalRecipe, models: int) -> str:
    """Bytes of the rows that are stored. `models`: how many are measured; 0: not known yet."""
    rollouts = recipe.evaluation.limit * recipe.evaluation.samples * max(1, models)
    return f"at most {size_text(rollouts * stored_bytes(recipe.explorer))} of rows"


def _sampled(explorer: ExplorerSection, rollouts: int) -> Iterator[tuple[str, str]]:
    sampled = most_sampled(explorer)
    yield (
        "tokens",
        f"at most {explorer.max_tokens:,} a turn, {sampled:,} a rollout, {rollouts * sampled:,} in all",
    )
    yield from turn_rows(explorer, rollouts, "in all")
