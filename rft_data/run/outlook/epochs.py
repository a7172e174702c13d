"""How many tasks a run has, as far as that can be seen without its code and its network, and its epochs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rft_data.buffer import Buffer
from rft_data.core.errors import RftError
from rft_data.core.filters import And, Compare
from rft_data.core.words import GroupOutcome, Split
from rft_data.recipe.kinds import that_explores_and_trains, that_only_explores
from rft_data.recipe.modes import TrainRecipe
from rft_data.recipe.recipe import TasksRecipe
from rft_data.recipe.task_sources import (
    FileTasks,
    HuggingFaceTasks,
    JsonLines,
    ReasoningGym,
    StoredTasks,
)
from rft_data.recipe.tasksets import Taskset
from rft_data.run.taskset_rows import table_rows

_MOST = 200_000
"""Rows of a file that are counted; reading more would keep a person waiting."""


@dataclass(frozen=True, slots=True)
class Found:
    """About how many tasks a taskset has; repeated tasks, and those that operators drop, are counted too."""

    train: int
    heldout: int
    more: bool = False
    """Whether there are more than were counted."""


def task_lines(recipe: TasksRecipe) -> Iterator[tuple[str, str]]:
    """How many tasks there are, and how often the run plays them."""
    counts = {one.name: _count(one, recipe) for one in recipe.tasks}
    unknown = [name for name, found in counts.items() if found is None]
    known = [found for found in counts.values() if found is not None]
    if unknown:
        yield (
            "tasks",
            f"how many {', '.join(unknown)} has is known when it is read: rft data check counts them",
        )
    if not known:
        return
    more = "more than " if any(one.more for one in known) else "about "
    train, heldout = sum(one.train for one in known), sum(one.heldout for one in known)
    yield (
        "tasks",
        f"{more}{train:,} to train on, {heldout:,} held out{_epochs(recipe, 0 if unknown else train)}",
    )


def stored_groups_line(recipe: TrainRecipe) -> str | None:
    """How many groups there are to train on, and how far the steps go; None where no buffer is here."""
    if "://" in recipe.buffer.uri or not Path(recipe.buffer.uri).is_dir():
        return None
    arrived = Compare("outcome", "eq", GroupOutcome.ARRIVED)
    kept = Compare("dropped_by", "eq", "")
    where = And((Compare("run_id", "eq", recipe.explored_by), arrived, kept))
    with closing(Buffer(recipe.buffer.uri, read_only=True)) as buffer:
        groups = len(buffer.read("groups", ["group_id"], where))
    step, steps = recipe.rl.groups_per_step, recipe.rl.steps
    return (
        f"{groups:,} of '{recipe.explored_by}' that operators kept: an epoch is {-(-groups // step):,} steps "
        f"of {step}, and {steps:,} steps are {steps * step / max(1, groups):.3g} epochs"
    )


def _epochs(recipe: TasksRecipe, train: int) -> str:
    """How far the run's groups go through its tasks."""
    if not train:
        return ""
    if (online := that_explores_and_trains(recipe)) is not None:
        step, steps = online.rl.groups_per_step, online.rl.steps
        epoch = -(-train // step)
        return (
            f"; a step plays {step} of them, an epoch is {epoch:,} steps, and {steps:,} steps are "
            f"{steps * step / train:.3g} epochs"
        )
    if (explores := that_only_explores(recipe)) is not None:
        return f"; {explores.groups:,} groups are {explores.groups / train:.3g} epochs"
    return ""


def _count(section: Taskset, recipe: TasksRecipe) -> Found | None:
    """The tasks of a taskset; None where that takes a user's code, a host or a buffer that is not there."""
    source = section.source
    try:
        if isinstance(source, ReasoningGym):
            return _split(source.size, section.heldout)
        if isinstance(source, StoredTasks):
            return _stored(section, recipe)
        if isinstance(source, JsonLines | FileTasks):
            return _rows(section, source)
        if isinstance(source, HuggingFaceTasks) and Path(source.path).is_dir():
            return _rows(section, source)
    except (RftError, OSError):
        return None  # rft data check says what is wrong with it
    return None


def _rows(section: Taskset, source: JsonLines | FileTasks | HuggingFaceTasks) -> Found:
    number = sum(1 for _ in islice(table_rows(source), _MOST + 1))
    return _split(min(number, _MOST), section.heldout, more=number > _MOST)


def _stored(section: Taskset, recipe: TasksRecipe) -> Found | None:
    """The tasks that are in the recipe's buffer; None where the run has to import them first."""
    if getattr(recipe, "imports", []) or not Path(recipe.buffer.uri).is_dir():
        return None
    with closing(Buffer(recipe.buffer.uri, read_only=True)) as buffer:
        splits = buffer.read("tasks", ["split"], Compare("taskset", "eq", section.name))["split"].to_pylist()
    heldout = splits.count(Split.HELDOUT)
    found = _split(len(splits) - heldout, section.heldout)
    return Found(found.train, found.heldout + heldout)


def _split(number: int, share: float, *, more: bool = False) -> Found:
    heldout = round(number * share)
    return Found(number - heldout, heldout, more)
