"""Rescoring: other rewards over stored rollouts, kept beside the stored ones as a version of the reward.

A version is feedback under the key `reward@VERSION`. Operators read it with `feedback_mapper`, so groups can
be judged and trained on by it; stored rows do not change. Repeated scoring has an author for each time.
"""

from __future__ import annotations

import asyncio
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from explorers.rewards.composition import WORLD
from explorers.rewards.group_scoring import score_group
from explorers.rewards.scoring import Rewards
from explorers.rewards.unscored import asked_again, stated_cause
from rft_data.buffer import Buffer
from rft_data.core.canonical import content_id
from rft_data.core.codec import to_experiences
from rft_data.core.filters import Compare
from rft_data.core.rows import Experience, Feedback, Task, TaskKey
from rft_data.core.trajectory import row_trajectory
from rft_data.exchange.feedback import feedback_about
from rft_data.reading.lineage import stored_task
from rft_data.reading.whole_groups import GroupRows

REWARD_KEY = "reward@"
"""Beginning of the feedback keys of reward versions."""
_AUTHOR = "rescore"
_GROUPS_PER_BATCH = 16
_DEADLINE_S = 600.0
"""Seconds for the rewards of one whole group."""
_SAME = 1e-9

Keep = Callable[[Sequence[Feedback]], object]
Known = set[tuple[str, str]]
"""Experience and author of what is scored already."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the reward: how it is called, and how often each rollout is scored for it."""

    name: str
    times: int = 1

    @property
    def key(self) -> str:
        """The key of its feedback."""
        return f"{REWARD_KEY}{self.name}"

    @property
    def authors(self) -> list[str]:
        """One for each time."""
        return [f"{_AUTHOR} {number}" for number in range(1, self.times + 1)]


@dataclass(slots=True)
class Rescored:
    """Result of rescoring. Counts are of rollouts, one for each time that they are scored."""

    version: str
    key: str
    times: int
    groups: int = 0
    scored: int = 0
    """Rollouts that were scored now, and stored."""
    before: int = 0
    """Rollouts that an earlier call scored."""
    unscored: int = 0
    """Rollouts that the rewards cannot judge; that is stored too."""
    failed: int = 0
    """Rollouts not scored because something outside the model failed; the next call tries them again."""
    without_task: int = 0
    """Rollouts whose task is not stored."""
    changed: int = 0
    """Rollouts that were scored now with another value than the stored reward."""
    mean_stored: float | None = None
    """Mean stored reward of what was scored now, where there is one."""
    mean_new: float | None = None
    spread: float | None = None
    """Mean over rollouts of the standard deviation of their values, where they were scored several times."""
    sandbox: str = ""
    """The sandbox in which programs of rollouts ran; empty if none ran."""

    def as_json(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(slots=True)
class _Values:
    """Values that were given now, for the means."""

    stored: list[float] = field(default_factory=list)
    new: list[float] = field(default_factory=list)


def version_name(components: Sequence[Mapping[str, object]]) -> str:
    """The name of the version that rewards make: the same for the same names and arguments."""
    return content_id([dict(one) for one in components])[:12]


def in_shard(group_id: str, number: int, of: int) -> bool:
    """Whether a group belongs to shard `number` (from 1) of `of`."""
    return zlib.crc32(group_id.encode()) % of == number - 1


def rescore(
    buffer: Buffer, rewards: Rewards, chosen: GroupRows, version: Version, *, keep: Keep, known: Known
) -> Rescored:
    """Score the rollouts of groups; a batch of groups is kept before the next begins.

    Args: keep: stores feedback. known: what was scored before and is not in the buffer.
    A call that was killed goes on where it stopped.
    """
    report = Rescored(version.name, version.key, version.times, groups=len(chosen))
    scoring = _Scoring(buffer, rewards, version, report)
    values = _Values()
    with asyncio.Runner() as loop:
        for seqs in chosen.batches(_GROUPS_PER_BATCH):
            rows = to_experiences(buffer.take(seqs.tolist()))
            found = loop.run(scoring.batch(rows, known | _scored_before(buffer, version, rows)))
            keep([said for _, said in found])
            _count(report, values, found)
    report.mean_stored, report.mean_new = _mean(values.stored), _mean(values.new)
    report.spread = _spread(buffer, version) if version.times > 1 else None
    return report


class _Scoring:
    """Scores rollouts of one version."""

    def __init__(self, buffer: Buffer, rewards: Rewards, version: Version, report: Rescored) -> None:
        self._buffer = buffer
        self._rewards = rewards
        self._version = version
        self._report = report
        self._tasks: dict[TaskKey, Task | None] = {}

    async def batch(self, rows: Sequence[Experience], known: Known) -> list[tuple[Experience, Feedback]]:
        """Scores of each rollout, by its last row; none of one that failed."""
        groups: dict[str, dict[int, list[Experience]]] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            groups[row.group_id][row.member].append(row)
        asked = [
            self._group(members, author, known)
            for members in groups.values()
            for author in self._version.authors
        ]
        return [one for part in await asyncio.gather(*asked) for one in part]

    async def _group(
        self, members: Mapping[int, Sequence[Experience]], author: str, known: Known
    ) -> list[tuple[Experience, Feedback]]:
        """One group, once."""
        last = {member: max(rows, key=lambda row: row.turn) for member, rows in members.items()}
        task = self._task(next(iter(last.values())))
        if task is None:
            self._report.without_task += len(last)
            return []
        missing = {member: row for member, row in last.items() if (row.experience_id, author) not in known}
        self._report.before += len(last) - len(missing)
        if not missing:
            return []
        asked = last if self._rewards.waits_for_group(task) else missing
        scored = await self._scored(task, {member: members[member] for member in asked})
        found = []
        for member, row in missing.items():
            said = _said(scored[member], self._version.key, author)
            if said is None:
                self._report.failed += 1
            else:
                found.append((row, said))
        return found

    async def _scored(self, task: Task, members: Mapping[int, Sequence[Experience]]) -> dict[int, Experience]:
        """The last row of each rollout with the reward columns that the rewards give it now."""
        columns = await asyncio.gather(
            *(self._rewards.score(task, row_trajectory(task, rows)) for rows in members.values())
        )
        fresh: dict[int, Sequence[Experience]] = {
            member: [_with_world(max(rows, key=lambda row: row.turn), given)]
            for (member, rows), given in zip(members.items(), columns, strict=True)
        }
        whole = await score_group(self._rewards, task, fresh, _DEADLINE_S)
        return {member: rows[-1] for member, rows in whole.items()}

    def _task(self, row: Experience) -> Task | None:
        key = TaskKey(row.taskset, row.task_id)
        if key not in self._tasks:
            self._tasks[key] = stored_task(self._buffer, key)
        return self._tasks[key]


def _with_world(row: Experience, columns: Mapping[str, Any]) -> Experience:
    """A row with other reward columns; the reward that its world gave stays a part of it."""
    world = {name: value for name, value in row.reward_parts.items() if name.split(".")[0] == WORLD}
    total = columns["reward"]
    return replace(
        row,
        reward=None if total is None else total + world.get(WORLD, 0.0),
        reward_parts={**columns["reward_parts"], **world},
        unscored_reason=columns["unscored_reason"],
    )


def _said(row: Experience, key: str, author: str) -> Feedback | None:
    """A row's new reward as feedback; None where another try may give one."""
    if row.reward is not None:
        parts = json.dumps({"parts": dict(row.reward_parts)}, sort_keys=True)
        return Feedback(row.experience_id, author, key, float(row.reward), parts)
    reason = row.unscored_reason or "it comes later"
    if asked_again(stated_cause(reason)):
        return None
    return Feedback(row.experience_id, author, key, None, json.dumps({"unscored": reason}))


def _scored_before(buffer: Buffer, version: Version, rows: Sequence[Experience]) -> Known:
    table = feedback_about(buffer, version.key, [row.experience_id for row in rows])
    return set(
        zip(table.column("experience_id").to_pylist(), table.column("author").to_pylist(), strict=True)
    )


def _count(report: Rescored, values: _Values, found: Sequence[tuple[Experience, Feedback]]) -> None:
    for row, said in found:
        if said.value is None:
            report.unscored += 1
            continue
        report.scored += 1
        values.new.append(said.value)
        if row.reward is not None:
            values.stored.append(row.reward)
        report.changed += row.reward is None or not math.isclose(row.reward, said.value, abs_tol=_SAME)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _spread(buffer: Buffer, version: Version) -> float | None:
    """How far the values of one rollout lie apart, on average; reads all feedback of the version."""
    given: dict[str, list[float]] = defaultdict(list)
    for experience_id, value in _stored_values(buffer, version):
        given[experience_id].append(value)
    several = [float(np.std(values)) for values in given.values() if len(values) > 1]
    return _mean(several)


def _stored_values(buffer: Buffer, version: Version) -> Iterator[tuple[str, float]]:
    for batch in buffer.batches("feedback", ["experience_id", "value"], Compare("key", "eq", version.key)):
        for row in batch.to_pylist():
            if row["value"] is not None:
                yield row["experience_id"], row["value"]
