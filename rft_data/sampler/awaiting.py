"""Groups that wait for delayed rewards, which come as feedback: which rewards they wait for, and until when.

Nothing is stored here. Whether a group waits follows from its stored rows, and how long from the time these
were made, so a restarted run finds the same groups waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypedDict

import numpy as np
import pyarrow as pa

from rft_data.buffer import Buffer
from rft_data.core.groups import GroupResult, Played
from rft_data.core.rows import now
from rft_data.core.words import FeedbackKey, GroupOutcome
from rft_data.exchange.feedback import Folded, How, feedback_about, fold

log = logging.getLogger(__name__)

REWARD_COLUMNS = ("experience_id", "member", "turn", "reward", "unscored_reason")
_READ = (*REWARD_COLUMNS, "group_id", "version_min", "created_at")


class RewardRow(TypedDict):
    """The columns REWARD_COLUMNS of an experience."""

    experience_id: str
    member: int
    turn: int
    reward: float | None
    unscored_reason: str | None


class _MemberRow(RewardRow):
    group_id: str
    version_min: int
    created_at: datetime


def missing_rewards(rows: Iterable[RewardRow]) -> list[str]:
    """Ids of the experiences of one group that wait for a reward: it is null, and no reason is stored.

    Of several turns of a rollout, the last one's reward counts.
    """
    last = {row["member"]: row for row in sorted(rows, key=lambda row: int(row["turn"]))}
    return [
        row["experience_id"]
        for row in last.values()
        if row["reward"] is None and row["unscored_reason"] is None
    ]


@dataclass(frozen=True, slots=True)
class Delayed:
    """How to read delayed rewards from feedback; `key` and `how` as in the run's `feedback_mapper`."""

    wait_s: float
    """Longest wait of a group, in seconds, from the time its last row was made."""
    key: str = FeedbackKey.REWARD
    """Key of the feedback that is a reward."""
    how: How = "last"
    """See `rft_data.exchange.feedback.fold`."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A group that is not judged yet, because rewards are missing."""

    played: Played
    ids: Sequence[str]
    """Experiences whose reward is missing."""
    until: datetime
    version_min: int


class Awaiting:
    """The waiting groups of one run. To find new feedback, only the new rows of its table are read."""

    def __init__(self, buffer: Buffer, delayed: Delayed) -> None:
        """Starts empty."""
        self._buffer = buffer
        self._delayed = delayed
        self._groups: dict[str, _Waiting] = {}
        self._group_by_experience: dict[str, str] = {}
        """Group id of each experience whose reward is missing."""
        self._feedback_read = self._stored_feedback()

    def __len__(self) -> int:
        """Groups that wait."""
        return len(self._groups)

    def sift(self, played: Sequence[Played]) -> list[Played]:
        """Of the groups that just arrived and those that waited, the ones to judge now; the others wait.

        A group waits while rewards are missing (see `missing_rewards`), at most for `wait_s`: then it is
        judged without them. A group that failed, or is not whole, does not wait.
        """
        entered = self._enter(played)
        complete = self._complete(entered | self._groups_with_new_feedback())
        time = now()
        late = [name for name, group in self._groups.items() if group.until <= time and name not in complete]
        if late:
            log.warning(
                "rewards of %d groups did not arrive within %g s (first group: '%s'); "
                "these groups are judged without them",
                len(late),
                self._delayed.wait_s,
                late[0],
            )
        at_once = [group for group in played if group.ticket.group_id not in entered]
        due = [self._leave(name) for name in (*complete, *late)]
        return sorted([*at_once, *due], key=lambda group: group.ticket.ordinal)

    def with_rewards(self, rows: pa.Table) -> pa.Table:
        """`rows` with delayed rewards filled in, where there is neither a reward nor a reason for none."""
        column = rows.column("reward")
        missing = np.asarray(column.is_null()) & np.asarray(rows.column("unscored_reason").is_null())
        if not missing.any():
            return rows
        ids = rows.column("experience_id")
        rewards = self._feedback(ids.filter(pa.array(missing)).to_pylist()).values_for(ids)
        values = np.where(missing, rewards, column.to_numpy())
        filled = pa.array(values, pa.float64(), mask=np.isnan(values)).cast(column.type)
        return rows.set_column(rows.column_names.index("reward"), rows.schema.field("reward"), filled)

    def history(self) -> list[GroupResult]:
        """The waiting groups, as results for a sampler that starts."""
        return [
            GroupResult(group.played.ticket, group.played.task, (), GroupOutcome.AWAITING, group.version_min)
            for group in self._groups.values()
        ]

    def _enter(self, played: Sequence[Played]) -> set[str]:
        """Let groups with missing rewards wait; returns their ids."""
        whole = {
            g.ticket.group_id: g
            for g in played
            if g.outcome == GroupOutcome.ARRIVED and len(g.seqs) == g.rows
        }
        stored = self._buffer.take([seq for group in whole.values() for seq in group.seqs])
        members: dict[str, list[_MemberRow]] = {}
        for row in stored.select(_READ).to_pylist():
            members.setdefault(row["group_id"], []).append(row)
        entered = set()
        for name, rows in members.items():
            if ids := missing_rewards(rows):
                made = min(now(), max(row["created_at"] for row in rows))
                until = made + timedelta(seconds=self._delayed.wait_s)
                self._groups[name] = _Waiting(whole[name], ids, until, min(r["version_min"] for r in rows))
                self._group_by_experience |= dict.fromkeys(ids, name)
                entered.add(name)
        return entered

    def _leave(self, name: str) -> Played:
        group = self._groups.pop(name)
        for experience_id in group.ids:
            del self._group_by_experience[experience_id]
        return group.played

    def _groups_with_new_feedback(self) -> set[str]:
        """Ids of the waiting groups that have new feedback."""
        while (total := self._stored_feedback()) > self._feedback_read:
            new = self._buffer.tail("feedback", total - self._feedback_read, ["experience_id"])
            if self._stored_feedback() == total:  # else more rows were added meanwhile, and these are not all
                self._feedback_read = total
                ids = new.column("experience_id").to_pylist()
                return {self._group_by_experience[one] for one in ids if one in self._group_by_experience}
        return set()

    def _complete(self, names: Collection[str]) -> list[str]:
        """The groups whose rewards have all arrived."""
        ids = [one for name in names for one in self._groups[name].ids]
        known = set(self._feedback(ids).ids.to_pylist()) if ids else set()
        return [name for name in names if known.issuperset(self._groups[name].ids)]

    def _feedback(self, ids: Sequence[str]) -> Folded:
        return fold(feedback_about(self._buffer, self._delayed.key, ids), self._delayed.how)

    def _stored_feedback(self) -> int:
        """Number of stored feedback rows."""
        return self._buffer.counts()["feedback"]
