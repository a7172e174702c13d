"""Calls of rewards and their answers as lines of JSON, between an explorer and its reward processes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from explorers.rewards.contract import TASK, Judged, Outcome, RewardKind, Score, Subject, subject_of
from rft_data.core.rows import Task
from rft_data.core.trajectory import Trajectory
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored

_TASK_FIELDS = tuple(field.name for field in fields(Task))
_ROLLOUT_FIELDS = tuple(field.name for field in fields(Trajectory) if field.name != "task")


@dataclass(frozen=True, slots=True)
class Scored:
    """The outcome of one call of a reward, and its seconds."""

    outcomes: tuple[Outcome, ...]
    """One, or one for each rollout of a group."""
    seconds: float
    spent: bool = False
    """Whether its process has used up its memory and ends."""

    @property
    def outcome(self) -> Outcome:
        """The outcome of the only rollout, or of the first."""
        return self.outcomes[0]

    @property
    def value(self) -> float | Unscored:
        """The value of the only rollout, or of the first."""
        first = self.outcomes[0]
        return first if isinstance(first, Unscored) else first.value


def encode_line(message: Mapping[str, object]) -> bytes:
    """A message as one line."""
    return json.dumps(message, default=_plain).encode() + b"\n"


def encode_call(number: int, reward: str, task: Task, judged: Judged) -> bytes:
    """One call as a line; numbers begin at 1."""
    call: dict[str, object] = {
        "number": number,
        "reward": reward,
        TASK: {name: getattr(task, name) for name in _TASK_FIELDS},
    }
    if isinstance(judged, str):
        call[Subject.COMPLETION] = judged
    elif isinstance(judged, Trajectory):
        call[Subject.TRAJECTORY] = _rollout(judged)
    else:
        call[Subject.GROUP] = [_rollout(one) for one in judged]
    return encode_line(call)


def decode_call(call: Mapping[str, Any]) -> tuple[Task, Judged]:
    """The task and what is judged, as the reward gets them."""
    task = Task(**{**call[TASK], "messages": tuple(call[TASK]["messages"])})
    if Subject.COMPLETION in call:
        return task, str(call[Subject.COMPLETION])
    if Subject.TRAJECTORY in call:
        return task, Trajectory(task=task, **call[Subject.TRAJECTORY])
    return task, [Trajectory(task=task, **one) for one in call[Subject.GROUP]]


def encode_outcomes(outcomes: Sequence[Outcome]) -> list[dict[str, object]]:
    """Outcomes as JSON values."""
    return [
        {"unscored": one.reason, "cause": one.cause}
        if isinstance(one, Unscored)
        else {"value": one.value, "parts": dict(one.parts)}
        for one in outcomes
    ]


def decode_answer(answer: Mapping[str, object]) -> Scored | None:
    """The outcome in an answer; None when it has not the form of one."""
    found, seconds = answer.get("outcomes"), answer.get("seconds")
    if not isinstance(seconds, float) or not math.isfinite(seconds):
        return None
    outcomes = [_outcome(one) for one in found] if isinstance(found, list) else []
    if not outcomes or None in outcomes:
        return None
    return Scored(tuple(one for one in outcomes if one is not None), seconds, spent="spent" in answer)


def encode_kind(kind: RewardKind) -> dict[str, object]:
    """A kind as JSON values."""
    return {"takes": kind.takes, "asynchronous": kind.asynchronous, "deadline_s": kind.deadline_s}


def decode_kind(values: Mapping[str, Any]) -> RewardKind:
    """The inverse of `encode_kind`."""
    takes = tuple(values["takes"])
    return RewardKind(subject_of(takes), takes, values["asynchronous"], values["deadline_s"])


def _outcome(one: object) -> Outcome | None:
    if not isinstance(one, Mapping):
        return None
    if isinstance(one.get("unscored"), str):
        cause = one.get("cause")
        return Unscored(one["unscored"], UnscoredCause(cause)) if cause in set(UnscoredCause) else None
    value, parts = one.get("value"), one.get("parts")
    numbers = [value, *parts.values()] if isinstance(parts, Mapping) else [None]
    if not all(isinstance(number, float) and math.isfinite(number) for number in numbers):
        return None
    return Score(value, parts)  # type: ignore[arg-type]


def _rollout(trajectory: Trajectory) -> dict[str, object]:
    return {name: getattr(trajectory, name) for name in _ROLLOUT_FIELDS}


def _plain(value: Any) -> object:
    """Arrays as lists, other mappings as dicts."""
    return value.tolist() if hasattr(value, "tolist") else dict(value)
