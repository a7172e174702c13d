"""Lineages and groups as lines of text, for terminals. What is not printable is escaped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rft_data.core.text import escaped, shown
from rft_data.core.words import ENDPOINT, Verdict

if TYPE_CHECKING:  # these open LanceDB, which who only wants to escape a line never needs
    from rft_data.core.rows import Task
    from rft_data.reading.group_view import GroupView, Member
    from rft_data.reading.lineage_parts import Judgement, Lineage, Use, Weights


def lineage_text(line: Lineage) -> str:
    """A lineage, top down: task, experience, judgements, uses, what was said about it."""
    return "\n".join(_lineage_lines(line))


def _lineage_lines(line: Lineage) -> Iterator[str]:
    row = line.experience
    yield f"task        {escaped(row['taskset'])}/{escaped(row['task_id'])}"
    yield from _task_lines(line.task)
    origin = f"seq {row['seq']}, {row['source']}, run {escaped(row['run_id'])}"
    yield f"experience  {escaped(row['experience_id'])}  ({origin})"
    place = ", ".join(f"{name} {row[name]}" for name in ("member", "turn", "attempt"))
    yield f"  group     {escaped(row['group_id'])}, {place}"
    yield f"  text      {shown(row['completion_text'])}"
    yield f"  reward    {_reward(row['reward'], row['unscored_reason'])}  {escaped(str(row['reward_parts']))}"
    yield f"  sampled   {', '.join(map(_weights, line.sampled_by)) or _elsewhere(row['sampling'])}"
    yield "judged      " + ("; ".join(map(_judgement, line.judgements)) or "by no operator")
    yield "used        " + ("" if line.uses or line.stages else "in no lease, by no stage")
    yield from (f"  {_use(use)}" for use in line.uses)
    yield from (
        f"  by stage {escaped(at.stage)} of run {escaped(at.run_id)} (examples {at.digest})"
        for at in line.stages
    )
    for mark in line.retired:
        who = f"{escaped(mark.consumer) or 'anyone'} of run {escaped(mark.run_id)}"
        yield f"  never by {who}: {shown(mark.reason)}"
    for said in line.feedback:
        value = "" if said["value"] is None else f" {said['value']:g}"
        who = shown(said["author"])
        yield f"feedback    {shown(said['key'])}{value} by {who}: {shown(said['text'] or '')}"
    if line.preferences:
        yield f"preferences {', '.join(map(escaped, line.preferences))}"


def _task_lines(task: Task | None) -> Iterator[str]:
    if task is None:
        yield "  (not stored)"
        return
    last = task.messages[-1]["content"] if task.messages else ""
    yield f"  prompt    {shown(str(last))}"
    yield f"  answer    {'none' if task.answer is None else shown(task.answer)}"


def _use(use: Use) -> str:
    who = f"{escaped(use.consumer)} of run {escaped(use.run_id)}"
    text = f"step {use.step} by {who} (epoch {use.epoch}): {use.state}"
    if use.reason:
        text += f", {shown(use.reason)}"
    if use.reward_version:
        text += f", rewards {shown(use.reward_version)}"
    if use.checkpoint_step is not None:
        text += f", checkpoint {use.checkpoint_step}"
    return text if use.weights is None else f"{text} -> {_weights(use.weights)}"


def _elsewhere(sampling: str) -> str:
    """Author of a row that no version sampled."""
    endpoint = json.loads(sampling).get(ENDPOINT)
    if not isinstance(endpoint, dict):
        return "by no recorded version"
    return escaped(f"by {endpoint.get('model')} at {endpoint.get('base_url')}")


def _weights(weights: Weights) -> str:
    where = escaped(weights.path) or "not published"
    return f"version {weights.version} (step {weights.step}, {where})"


def _judgement(judgement: Judgement) -> str:
    if judgement.verdict != Verdict.KEPT:
        return (
            f"{judgement.verdict} by {escaped(judgement.dropped_by or '?')} ({shown(judgement.reason, 60)})"
        )
    values = judgement.advantage or ()
    advantage = f"{values[0]:+.4g}" if len(values) == 1 else f"{len(values)} values"
    return f"kept, advantage {advantage}{', masked' if judgement.masked else ''}"


def _reward(reward: float | None, reason: str | None) -> str:
    if reward is not None:
        return f"{reward:.4g}"
    return f"none ({shown(reason, 60)})" if reason else "not known yet"


def group_text(view: GroupView) -> str:
    """A group as a small table: one line per member."""
    outcome = view.outcome or "not closed"
    dropped = f", dropped by {escaped(view.dropped_by)}" if view.dropped_by else ""
    error = f", {shown(view.error)}" if view.error else ""
    lines = [f"group {escaped(view.group_id)}: {outcome}{dropped}{error}"]
    lines += list(_task_lines(view.task))
    lines.append(f"{'seq':>8} {'member':>6} {'reward':>8} {'tokens':>6}  judged, then what it said")
    return "\n".join([*lines, *(line for member in view.members for line in _member_lines(member))])


def _member_lines(member: Member) -> Iterator[str]:
    place = f"{member.member}.{member.turn}" if member.turn else str(member.member)
    reward = "-" if member.reward is None else f"{member.reward:.4g}"
    tokens = "-" if member.completion_tokens is None else member.completion_tokens
    judged = "; ".join(map(_judgement, member.judgements)) or "not judged"
    yield f"{member.seq:>8} {place:>6} {reward:>8} {tokens:>6}  {judged}"
    yield f"{'':>32}{shown(member.completion_text, 78)}"
