"""Beliefs of a run's selector about its tasks at the newest checkpoint, from the state that is stored."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rft_data.buffer import Buffer
from rft_data.core.errors import RftError
from rft_data.core.filters import Compare
from rft_data.core.rows import TaskKey
from rft_data.core.words import Split
from rft_data.run.status import stored_recipe
from rft_data.tasks.selectors.base import TaskSelector
from rft_data.tasks.selectors.make import SELECTORS, make_selector

MOST_TASKS = 50_000
"""A selector of more tasks is not built again for a view."""


@dataclass(frozen=True, slots=True)
class Belief:
    """A Beta posterior of a task's pass rate."""

    alpha: float
    beta: float

    @property
    def mean(self) -> float:
        """Expected pass rate."""
        return self.alpha / (self.alpha + self.beta)

    @property
    def spread(self) -> float:
        """Standard deviation."""
        total = self.alpha + self.beta
        return float(np.sqrt(self.alpha * self.beta / (total**2 * (total + 1))))


@dataclass(frozen=True, slots=True)
class SelectorView:
    """A selector as it was stored."""

    name: str
    """As the recipe names it."""
    step: int | None
    """Optimizer step of the newest state; None: none is stored."""
    beliefs: Mapping[TaskKey, Belief] = field(default_factory=dict)
    """Empty for a selector without such posteriors."""
    retired: frozenset[TaskKey] = frozenset()
    """Tasks that the run's operators over tasks retired."""
    why_not: str = ""
    """Reason why there are no beliefs."""


def selector_view(
    buffer: Buffer, run_dir: Path | None, run_id: str, keys: Iterable[TaskKey]
) -> SelectorView | None:
    """Beliefs of a run's selector about some tasks; None of a buffer, and of a run that draws no tasks."""
    recipe: Mapping[str, object] = {} if run_dir is None else stored_recipe(run_dir)
    section = recipe.get("selector")
    if not isinstance(section, Mapping):
        return None
    name = str(section.get("use", ""))
    states = buffer.read("task_state", ["step", "selector"], Compare("run_id", "eq", run_id))
    if not states.num_rows:
        return SelectorView(name, None, why_not="no checkpoint has stored its state yet")
    step, state = states["step"][-1].as_py(), json.loads(states["selector"][-1].as_py())
    retired = frozenset(TaskKey(*key) for key in state.get("retired", ()))
    inner = state["selector"] if isinstance(state.get("selector"), Mapping) else state
    if buffer.counts()["tasks"] > MOST_TASKS:
        return SelectorView(name, step, {}, retired, f"the buffer has more than {MOST_TASKS:,} tasks")
    selector = _restored(buffer, recipe, inner)
    if selector is None:
        return SelectorView(name, step, {}, retired, "this selector keeps no posterior for each task")
    wanted = list(keys)
    shapes = zip(wanted, selector.posterior(wanted), strict=True)
    beliefs = {key: Belief(*shape) for key, shape in shapes if shape is not None}
    why_not = "" if beliefs else "this selector keeps no posterior for each task"
    return SelectorView(name, step, beliefs, retired, why_not)


def _restored(buffer: Buffer, recipe: Mapping[str, Any], state: Mapping[str, Any]) -> TaskSelector | None:
    """The selector with its stored state; None where it is composed of others, or the user's own code."""
    section = recipe["selector"]
    tasksets = {part.get("name") for part in recipe.get("tasks") or ()}
    tasks = [task for task in buffer.tasks(Split.TRAIN) if task.taskset in tasksets]
    if section["use"] not in SELECTORS or not tasks:
        return None
    try:
        selector = make_selector(section["use"], section.get("args") or {}, tasks, recipe.get("seed", 0))
        if not isinstance(selector, TaskSelector):
            return None
        selector.load_state_dict(state)
    except (RftError, KeyError, ValueError):  # of another release, or of a part that another recipe names
        return None
    return selector
