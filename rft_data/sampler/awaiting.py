"""Groups that are home but for rewards that come later, as feedback: who waits, for what, and until when.

It judges nothing and stores nothing: that a group waits follows from its stored rows, and for how much longer
from when they were made, so a restarted run finds the same groups waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from rft_data.buffer import Buffer
from rft_data.core.rows import GroupResult, Played, now
from rft_data.core.words import FeedbackKey, GroupOutcome
from rft_data.exchange.feedback import Folded, How, feedback_about, fold

log = logging.getLogger(__name__)

TO_COME_COLUMNS = ("experience_id", "member", "turn", "reward", "unscored_reason")
_READ = (*TO_COME_COLUMNS, "group_id", "version_min", "created_at")


def to_come(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Experiences of one group's stored rows whose reward is still to come: null, and no reason why.

    Of several turns of a rollout the last one's reward counts.
    """
    last = {row["member"]: row for row in sorted(rows, key=lambda row: int(row["turn"]))}
    return [
        row["experience_id"]
        for row in last.values()
        if row["reward"] is None and row["unscored_reason"] is None
    ]


@dataclass(frozen=True, slots=True)
class Delayed:
    """How delayed rewards come; `key` and `how` as the `feedback_mapper` of the run's operators has them."""

    wait_s: float
    """How long a group is kept waiting, from when its last row was made."""
    key: str = FeedbackKey.REWARD
    """Of the feedback."""
    how: How = "last"
    """See `rft_data.exchange.feedback.fold`."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A group that is not judged yet."""

    played: Played
    ids: Sequence[str]
    """Experiences whose reward is to come."""
    until: datetime
    version_min: int


class Awaiting:
    """The waiting groups of one run. A look for new feedback reads the last rows of its table only."""

    def __init__(self, buffer: Buffer, delayed: Delayed) -> None:
        """Nobody waits yet."""
        self._buffer = buffer
        self._delayed = delayed
        self._groups: dict[str, _Waiting] = {}
        self._group_of: dict[str, str] = {}
        """Of each experience whose reward is to come."""
        self._heard = self._said()

    def __len__(self) -> int:
        """Groups that wait."""
        return len(self._groups)

    def sift(self, played: Sequence[Played]) -> list[Played]:
        """Of groups that came home, and of those that waited, the ones to be judged now; the others wait.

        A group waits while rewards of it are to come (see `to_come`), and for `wait_s` at most: then it is
        judged without them. One that failed, or is not whole, does not wait.
        """
        entered = self._enter(played)
        complete = self._complete(entered | self._spoken_of())
        time = now()
        late = [name for name, group in self._groups.items() if group.until <= time and name not in complete]
        if late:
            log.warning(
                "rewards of %d groups did not come within %g s, first of '%s'; they are judged without",
                *(len(late), self._delayed.wait_s, late[0]),
            )
        at_once = [group for group in played if group.ticket.group_id not in entered]
        due = [self._leave(name) for name in (*complete, *late)]
        return sorted([*at_once, *due], key=lambda group: group.ticket.ordinal)

    def with_rewards(self, rows: pa.Table) -> pa.Table:
        """`rows` with the rewards that came; those that have a reward, or a reason for none, stay."""
        column = rows.column("reward")
        missing = np.asarray(column.is_null()) & np.asarray(rows.column("unscored_reason").is_null())
        if not missing.any():
            return rows
        ids = rows.column("experience_id")
        said = self._folded(ids.filter(pa.array(missing)).to_pylist()).values_for(ids)
        values = np.where(missing, said, column.to_numpy())
        filled = pa.array(values, pa.float64(), mask=np.isnan(values)).cast(column.type)
        return rows.set_column(rows.column_names.index("reward"), rows.schema.field("reward"), filled)

    def history(self) -> list[GroupResult]:
        """The waiting groups, for a sampler that starts."""
        return [
            GroupResult(group.played.ticket, group.played.task, (), GroupOutcome.AWAITING, group.version_min)
            for group in self._groups.values()
        ]

    def _enter(self, played: Sequence[Played]) -> set[str]:
        """Let those wait whose rewards are to come; returns their ids."""
        whole = {
            g.ticket.group_id: g
            for g in played
            if g.outcome == GroupOutcome.ARRIVED and len(g.seqs) == g.rows
        }
        stored = self._buffer.take([seq for group in whole.values() for seq in group.seqs])
        members: dict[str, list[dict[str, Any]]] = {}
        for row in stored.select(_READ).to_pylist():
            members.setdefault(row["group_id"], []).append(row)
        entered = set()
        for name, rows in members.items():
            if ids := to_come(rows):
                made = min(now(), max(row["created_at"] for row in rows))
                until = made + timedelta(seconds=self._delayed.wait_s)
                self._groups[name] = _Waiting(whole[name], ids, until, min(r["version_min"] for r in rows))
                self._group_of |= dict.fromkeys(ids, name)
                entered.add(name)
        return entered

    def _leave(self, name: str) -> Played:
        group = self._groups.pop(name)
        for experience_id in group.ids:
            del self._group_of[experience_id]
        return group.played

    def _spoken_of(self) -> set[str]:
        """Waiting groups that there is new feedback about."""
        while (total := self._said()) > self._heard:
            said = self._buffer.tail("feedback", total - self._heard, ["experience_id"])
            if self._said() == total:  # else those are not the rows after the last look
                self._heard = total
                ids = said.column("experience_id").to_pylist()
                return {self._group_of[one] for one in ids if one in self._group_of}
        return set()

    def _complete(self, names: Collection[str]) -> list[str]:
        """Those of the groups whose rewards have all come."""
        ids = [one for name in names for one in self._groups[name].ids]
        known = set(self._folded(ids).ids.to_pylist()) if ids else set()
        return [name for name in names if known.issuperset(self._groups[name].ids)]

    def _folded(self, ids: Sequence[str]) -> Folded:
        return fold(feedback_about(self._buffer, self._delayed.key, ids), self._delayed.how)

    def _said(self) -> int:
        """Rows of feedback stored."""
        return self._buffer.counts()["feedback"]
