"""New tasks from played ones: a function makes variants of a task out of its stored experiences.

A variant stores the experience it was made from as its parent. The caller decides which variants are used:
they pass the same operators as any task. No model is called here; a maker function of yours may call one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rft_data.core.codec import to_experiences
from rft_data.core.effective_reward import ShapedRewards
from rft_data.core.errors import RowError
from rft_data.core.filters import And, In
from rft_data.core.lookup import lookup
from rft_data.core.reader import TableReader
from rft_data.core.rows import Experience, Task, TaskKey
from rft_data.core.words import TRAINABLE_SOURCES, RowSource, Split

log = logging.getLogger(__name__)

Maker = Callable[..., Sequence[Task]]
"""`function(task, experiences, rng, **args)`: variants of a task; its newest experiences, newest first."""

SYNTHESISED = "synthesised"
"""Tag of a task made here."""
_NEWEST = 16
"""At most so many experiences of a task are given to its maker."""


class Rows(TableReader, Protocol):
    """The buffer methods that synthesis calls."""

    def take(self, seqs: Sequence[int]) -> pa.Table:
        """Experiences by row number."""
        ...


@dataclass(frozen=True, slots=True)
class Synthesis:
    """The maker of variants, and the rule for which tasks get variants."""

    make: Maker
    args: Mapping[str, object]
    parents: int
    """At most so many tasks get variants at a time."""
    target_pass_rate: float = 0.5
    """Tasks whose pass rate is nearest to it come first; tasks always or never solved get no variants."""

    def choose(
        self, passes: npt.NDArray[np.float64], rollouts: npt.NDArray[np.int64], barred: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.int64]:
        """Those of N tasks that get variants, by their passes and rollouts; `barred` ones do not."""
        rate = passes / np.maximum(rollouts, 1)
        able = (rate > 0) & (rate < 1) & ~barred
        order = np.argsort(np.abs(rate - self.target_pass_rate), kind="stable")
        return order[able[order]][: self.parents]


@dataclass(frozen=True, slots=True)
class Variants:
    """The variants of one round of synthesis."""

    tasks: tuple[Task, ...]
    """Each once."""
    failures: Mapping[TaskKey, str]
    """Tasks whose maker raised, with the error."""


def make_synthesis(
    use: str, args: Mapping[str, object], *, parents: int, target_pass_rate: float = 0.5
) -> Synthesis:
    """A synthesis by the name of a built-in maker, or the import path of yours (`module:function`).

    Raises: UnknownComponentError.
    """
    return Synthesis(lookup(use, MAKERS, "synthesis"), dict(args), parents, target_pass_rate)


def synthesise(
    parents: Sequence[Task],
    store: Rows,
    synthesis: Synthesis,
    seed: Sequence[int],
    *,
    run_id: str | None = None,
    set_aside: Collection[str] = (),
) -> Variants:
    """Variants of each parent that has a stored experience; the same arguments and rows give the same.

    If a maker raises, only that parent gets no variants. A variant without a parent experience gets the
    newest one; a variant that equals its parent task is left out.
    Args:
        seed: of the generators; each parent has its own generator, which depends on no other parent.
        run_id: makers get only this run's rollouts; None: rollouts of every run.
        set_aside: groups whose rollouts makers do not get (stale groups, those of an interrupted step).
    Raises: RowError when a maker returns anything but training tasks.
    """
    found = _newest(store, parents, run_id, set_aside)
    made: dict[TaskKey, Task] = {}
    failures: dict[TaskKey, str] = {}
    for parent in parents:
        experiences = found.get(parent.key, [])
        if not experiences:
            continue
        rng = np.random.default_rng([*seed, int(parent.task_id[:12], 16)])
        try:
            variants = list(synthesis.make(parent, experiences, rng, **synthesis.args))
        except Exception as err:  # noqa: BLE001  the edge of user code: the failure becomes a record
            failures[parent.key] = f"{type(err).__name__}: {err}"
            log.warning("no variants of task %s: %s", parent.task_id, failures[parent.key])
            continue
        for variant in variants:
            checked = _checked(variant, parent, experiences[0])
            if checked.key != parent.key:
                made.setdefault(checked.key, checked)
    return Variants(tuple(made.values()), failures)


def hinted(
    task: Task, experiences: Sequence[Experience], rng: np.random.Generator, share: float = 0.5
) -> list[Task]:
    """The same task with the first lines of a correct solution in its prompt, which makes it easier.

    The start states of a reverse curriculum (R3, arXiv:2402.05808), as prompts: `share` of the lines, at
    least one, never the last. A task without a rewarded experience of two lines or more has no variant.
    """
    solved = [(exp, exp.completion_text.strip().splitlines()) for exp in experiences if (exp.reward or 0) > 0]
    solved = [(exp, lines) for exp, lines in solved if len(lines) > 1]
    if not solved:
        return []
    best = max(exp.reward or 0 for exp, _ in solved)
    exp, lines = next(pair for pair in solved if pair[0].reward == best)
    shown = min(max(1, round(share * len(lines))), len(lines) - 1)
    *before, last = task.messages
    hint = "\n".join([str(last["content"]), "", "A correct solution begins like this:", *lines[:shown]])
    messages = (*before, {**last, "content": hint})
    return [replace(task, messages=messages, parent_experience_id=exp.experience_id)]


MAKERS: Mapping[str, Maker] = {"hinted": hinted}


def _checked(variant: Task, parent: Task, newest: Experience) -> Task:
    if not isinstance(variant, Task) or variant.split != Split.TRAIN or not variant.messages:
        got = f"split '{variant.split}'" if isinstance(variant, Task) else type(variant).__name__
        raise RowError(
            f"the synthesis gave for task '{parent.task_id}' a {got}; wanted tasks of split 'train' with "
            "messages: a training task is never made into a held-out task, nor the reverse."
        )
    return replace(
        variant,
        parent_experience_id=variant.parent_experience_id or newest.experience_id,
        tags=tuple(dict.fromkeys([*variant.tags, SYNTHESISED])),
    )


def _newest(
    store: Rows, parents: Sequence[Task], run_id: str | None, set_aside: Collection[str]
) -> dict[TaskKey, list[Experience]]:
    """The newest experiences of each task, with effective rewards, newest first, without measured ones."""
    gone = frozenset(set_aside)
    wanted = {task.key for task in parents}
    where = And(
        (
            In("task_id", tuple(sorted({key.task_id for key in wanted}))),
            In("source", TRAINABLE_SOURCES),
        )
    )
    rows = store.read("experiences", ["seq", "taskset", "task_id", "source", "run_id", "group_id"], where)
    seqs: dict[TaskKey, list[int]] = {}
    for row in rows.to_pylist():
        key = TaskKey(row["taskset"], row["task_id"])
        ours = row["group_id"] not in gone and run_id in (None, row["run_id"])
        if key in wanted and (ours or row["source"] != RowSource.ROLLOUT):
            seqs.setdefault(key, []).append(row["seq"])
    newest = {key: sorted(found, reverse=True)[:_NEWEST] for key, found in seqs.items()}
    flat = [seq for found in newest.values() for seq in found]
    experiences = dict(zip(flat, to_experiences(ShapedRewards(store).counted(store.take(flat))), strict=True))
    return {key: [experiences[seq] for seq in found] for key, found in newest.items()}
