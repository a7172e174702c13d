"""Resuming a run from its last checkpoint and its stored groups.

A synchronous run continues exactly. Groups explored for a step that has no lease yet are set aside. The
rounds of a step that was leased are repeated in the selector when its lease is trained again. Exploring
starts again after them. An asynchronous run keeps every group that arrived, and plays the tasks again whose
tickets were lost.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from rft_data.core.groups import GroupResult
from rft_data.core.words import GroupOutcome
from rft_data.loop.closing import GroupCloser
from rft_data.loop.dispatch import Dispatcher
from rft_data.sampler.ledger import CONSUMER, Ledger
from rft_data.weights import checkpoint
from rft_data.weights.versions import VersionRegistry

log = logging.getLogger(__name__)

SUPERSEDED = "superseded"
"""Reason for which a group of an interrupted synchronous step is retired."""


@dataclass(frozen=True, slots=True)
class Position:
    """The step from which a run goes on, and what it had by then."""

    step: int
    """Optimizer steps the checkpoint holds; 0 without one."""
    directory: Path | None
    """The checkpoint; None at the start."""
    state: Mapping[str, Any]
    """The state of selector, dispatcher and sampler that the checkpoint holds; empty without one."""
    history: Sequence[GroupResult]
    """Every group of the run that is closed, and those that wait for rewards (outcome `awaiting`)."""
    repeats: Mapping[int, Sequence[Sequence[GroupResult]]] = field(default_factory=dict)
    """In a synchronous run: the rounds of each step since the checkpoint that was leased."""


def resume(
    closer: GroupCloser,
    ledger: Ledger,
    versions: VersionRegistry,
    dispatcher: Dispatcher,
    *,
    checkpoints: Path,
    synchronous: bool,
) -> Position:
    """Close the groups that a killed run left open, and restore the dispatcher's state at its last step.

    Args:
        closer: keeps groups open that wait for delayed rewards. A synchronous run has none: it explores the
            interrupted step again.
        synchronous: weights are published after every step and nothing older is trained.
    """
    # the state comes first: it brings back the tasks that the run had made, whose groups may be open
    at = _newest(checkpoints, dispatcher)
    _close_open_groups(closer, dispatcher)
    if at.directory is not None:
        ledger.consume(CONSUMER, at.step)
    history = closer.history()
    repeats: dict[int, list[list[GroupResult]]] = {}
    if synchronous:
        again = _set_aside(history, versions, ledger, at.step)
        repeats = _leased_rounds(history, versions, ledger, at.step)
    else:
        again = _resume_asynchronous(dispatcher, history, ledger.retired(CONSUMER))
    if again:
        log.info("%d groups are played again", again)
    return replace(at, history=history, repeats=repeats)


def resume_exploring(closer: GroupCloser, dispatcher: Dispatcher, *, checkpoints: Path) -> Position:
    """`resume` for a run that only explores: its steps are groups, and no lease is consumed."""
    _close_open_groups(closer, dispatcher)
    at = _newest(checkpoints, dispatcher)
    history = closer.history()
    _resume_asynchronous(dispatcher, history, {})
    return replace(at, history=history)


def _close_open_groups(closer: GroupCloser, dispatcher: Dispatcher) -> None:
    found = closer.recover(dispatcher.tasks)
    if found:
        log.info("%d groups were stored but not closed; they are closed now", len(found))
    if closer.awaiting:
        log.info("%d groups wait for their rewards", len(closer.awaiting))


def _newest(checkpoints: Path, dispatcher: Dispatcher) -> Position:
    found = checkpoint.newest(checkpoints)
    if found is None:
        return Position(0, None, {}, ())
    log.info("continuing from the checkpoint of step %d", found.step)
    dispatcher.selector.load_state_dict(found.state["selector"])
    dispatcher.load_state_dict(found.state["dispatcher"])
    return Position(found.step, found.directory, found.state, ())


def _set_aside(history: Sequence[GroupResult], versions: VersionRegistry, ledger: Ledger, step: int) -> int:
    """Retire the groups explored for the first step from `step` on that has no lease; returns how many.

    In a synchronous run the version that a group was admitted under tells for which step it was explored.
    """
    leased = {lease.step for lease in ledger.leases(CONSUMER)}
    unleased = next(s for s in range(step, step + len(leased) + 1) if s not in leased)
    gone = ledger.retired(CONSUMER)
    late = [
        result.ticket.group_id
        for result in history
        if versions.optimizer_step(result.ticket.version) >= unleased and result.ticket.group_id not in gone
    ]
    ledger.retire(CONSUMER, late, SUPERSEDED)
    return len(late)


def _leased_rounds(
    history: Sequence[GroupResult], versions: VersionRegistry, ledger: Ledger, step: int
) -> dict[int, list[list[GroupResult]]]:
    """The rounds explored for each step from `step` on, without the groups that are retired."""
    gone = ledger.retired(CONSUMER)
    steps: dict[int, list[list[GroupResult]]] = {}
    live = [result for result in history if result.ticket.group_id not in gone]
    for _, members in groupby(sorted(live, key=lambda r: r.ticket.ordinal), key=lambda r: r.ticket.round):
        round_ = list(members)
        at = versions.optimizer_step(round_[0].ticket.version)
        if at >= step:
            steps.setdefault(at, []).append(round_)
    return steps


def _resume_asynchronous(
    dispatcher: Dispatcher, history: Sequence[GroupResult], retired: Mapping[str, str]
) -> int:
    """Observe the groups that arrived since the checkpoint; give back the tasks whose tickets were lost.

    The tickets of groups that wait for rewards stay open. The selector draws again what it drew since the
    checkpoint; a task drawn without a group was lost.
    Returns: how many tasks are played again.
    """
    live = [result for result in history if result.outcome != GroupOutcome.CANCELLED]
    arrived = {result.ticket.ordinal for result in live}
    was_open = [result for result in live if result.ticket.ordinal in dispatcher.open]
    since = [result for result in live if result.ticket.ordinal >= dispatcher.admitted]
    lost = [key for ordinal, key in dispatcher.open.items() if ordinal not in arrived]
    dispatcher.open = {r.ticket.ordinal: r.task for r in live if r.outcome == GroupOutcome.AWAITING}
    played = Counter(result.task for result in since)
    last = max((result.ticket.ordinal for result in history), default=-1)
    for _ in range(last + 1 - dispatcher.admitted):
        if not played.total():
            break
        drawn = dispatcher.draw(1)
        if not drawn:
            break  # this run does not explore
        [key] = drawn
        if played[key]:
            played[key] -= 1
        else:
            lost.append(key)
    dispatcher.admitted = max(dispatcher.admitted, last + 1)
    dispatcher.give_back(lost)
    closed = [r for r in (*was_open, *since) if r.outcome != GroupOutcome.AWAITING]
    dispatcher.selector.observe([r for r in closed if r.ticket.group_id not in retired])
    return len(lost)
