"""Findings of `rft debug`, as text. What is not printable is escaped where it is printed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rft_data.core.text import escaped, shown, size_text

if TYPE_CHECKING:
    from rft_data.core.rows import Task
    from rft_data.run.debug.chosen import Prompt
    from rft_data.run.debug.playing import PlayedRow
    from rft_data.run.debug.probing import Probe

_VALUE = 200


def task_text(task: Task, prompt: Prompt) -> str:
    """A task and its prompt."""
    facts = {
        "task": task.task_id,
        "taskset": task.taskset,
        "split": task.split,
        "answer": task.answer,
        "metadata": dict(task.metadata) or None,
    }
    lines = [*_facts(facts), "", "messages:"]
    lines += [f"  {one['role']}: {escaped(str(one['content']))}" for one in prompt.messages]
    if prompt.tools:
        lines += ["", "tools:", *(f"  {escaped(json.dumps(one))}" for one in prompt.tools)]
    if not prompt.ids:
        return "\n".join([*lines, "", "the endpoint gets these messages, and renders them itself"])
    return "\n".join([*lines, "", rendered_text(prompt.text, prompt.ids)])


def rendered_text(text: str, ids: Sequence[int]) -> str:
    """A prompt as text and as ids."""
    lines = ["prompt, as the template makes it:", *(f"  {line}" for line in text.split("\n"))]
    return "\n".join([*lines, "", f"{len(ids)} tokens: {' '.join(map(str, ids))}"])


def reward_text(task: Task, scored: Mapping[str, Any], hint: str = "") -> str:
    """The reward of a completion, and what would have helped."""
    lines = [f"task     {task.task_id}", f"prompt   {shown(str(task.messages[-1]['content']), _VALUE)}"]
    lines += [f"answer   {task.answer}", f"reward   {scored['reward']}"]
    lines += [f"  {name}: {value}" for name, value in (scored["reward_parts"] or {}).items()]
    if scored["unscored_reason"]:
        lines.append(f"not scored: {scored['unscored_reason']}")
    if hint:
        lines.append(f"hint     {hint}")
    return "\n".join(lines)


def verdict_text(row: Mapping[str, object]) -> str:
    """An operator's verdict on a row."""
    return "\n".join(_facts({key: value for key, value in row.items() if value not in (None, "", [])}))


def played_text(row: PlayedRow) -> str:
    """A row of a rollout: its tokens, rewards and verdict."""
    lines = ["token                 id   logprob"] if row.tokens else ["no tokens: an endpoint gives none"]
    for token in row.tokens:
        logprob = "   prompt" if token.logprob is None else f"{token.logprob:>9.4f}"
        lines.append(f"{shown(json.dumps(token.text, ensure_ascii=False), 16):<16} {token.id:>7} {logprob}")
    return "\n".join([*lines, "", *_facts(row.row), *_facts(row.verdict)])


def probe_text(probe: Probe) -> str:
    """A task through explorer, operators and loss."""
    lines = [
        f"prompt, {len(probe.prompt.ids)} tokens:",
        *(f"  {line}" for line in probe.prompt.text.split("\n")),
    ]
    for row in probe.rows:
        sampled = [one.logprob for one in row.tokens if one.logprob is not None]
        tokens = f"{len(sampled)}, mean logprob {fmean(sampled):.3f}" if sampled else "0"
        lines += ["", *_facts({**row.row, "tokens": tokens, **row.verdict})]
    lines += ["", f"no loss: {probe.no_loss}" if probe.no_loss else "loss and gradient (nothing is updated):"]
    lines += [f"  {line}" for line in _facts({key: f"{one:g}" for key, one in probe.trained.items()})]
    lines += [
        "",
        "seconds:",
        *(f"  {line}" for line in _facts({k: f"{s:.1f}" for k, s in probe.seconds.items()})),
    ]
    peaks = {name: size_text(count) for name, count in probe.memory.items()}
    return "\n".join([*lines, "", "most memory:", *(f"  {line}" for line in _facts(peaks))])


def _facts(values: Mapping[str, object]) -> Iterator[str]:
    width = max(map(len, values), default=0)
    for key, value in values.items():
        if value is not None and value != "":
            yield f"{key:<{width}}  {shown(str(value), _VALUE)}"
