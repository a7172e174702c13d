"""The experiences table: row numbers, idempotent appends, and the newest rows in memory.

Only the thread of the group commit writes; any thread may read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rft_data.buffer.appended import Appended, in_places
from rft_data.buffer.faults import check_room
from rft_data.buffer.group_commit import Prepared
from rft_data.buffer.hot import HotTail
from rft_data.buffer.index import IdIndex
from rft_data.buffer.maintenance import maintain
from rft_data.buffer.quarantine import Quarantine
from rft_data.buffer.row_numbers import ascending
from rft_data.buffer.store import Store
from rft_data.buffer.whole_rows import check_digests
from rft_data.core.codec import one_array
from rft_data.core.digests import ROLLOUT, TRAINED
from rft_data.core.errors import ConflictError, IntegrityError
from rft_data.core.failpoints import failpoint
from rft_data.core.schema import EXPERIENCES

HOT_BYTES = 64 << 20
"""Newest rows kept in memory."""
_LEASED = ["seq", *TRAINED, *ROLLOUT, "digest"]
LOST_ROWS = "lost_rows.json"
"""File with the row numbers that a repair removed: `{"seqs": [[first, last], ...]}`."""


class Experiences:
    """Experiences by row number and by id."""

    def __init__(self, store: Store) -> None:
        """Load row numbers and ids.

        Raises: IntegrityError if row numbers have a gap that no repair recorded.
        """
        self._store = store
        self._index = IdIndex()
        self._hot = HotTail(HOT_BYTES)
        self._next_seq = 0
        self._rows = 0
        self._unsure = False
        self.quarantine = Quarantine(store)
        if not store.read_only:
            self._load()
            self._store.sync("experiences")  # a killed owner may have committed rows that it did not sync

    def _load(self) -> None:
        lost = self.lost()
        seen = np.zeros(2, np.int64)  # last number, numbers missing before it
        seen[0] = -1
        self._index.load(self._numbered(seen))
        known_gaps = sum(last - first + 1 for first, last in lost if first <= seen[0])
        if seen[1] != known_gaps:
            raise self._damaged(f"{seen[1]} rows are missing, {known_gaps} of these by a repair")
        self._rows = len(self._index)
        self._next_seq = max([int(seen[0]), *(last for _, last in lost)]) + 1

    def _numbered(self, seen: npt.NDArray[np.int64]) -> Iterator[tuple[Sequence[str], npt.NDArray[np.int64]]]:
        """Ids and row numbers of all stored rows; updates `seen`."""
        for batch in self._store.rows("experiences").batches(["seq", "experience_id"]):
            seqs = np.asarray(batch.column("seq"))
            steps = np.diff(seqs, prepend=seen[0])
            if (steps < 1).any():
                raise self._damaged("row numbers do not grow")
            seen[:] = seqs[-1], seen[1] + (steps - 1).sum()
            yield batch.column("experience_id").to_pylist(), seqs

    def lost(self) -> list[tuple[int, int]]:
        """Row numbers that a repair removed, as (first, last)."""
        text = self._store.text(LOST_ROWS)
        if text is None:
            return []
        try:
            return [(int(first), int(last)) for first, last in json.loads(text)["seqs"]]
        except (ValueError, KeyError, TypeError) as err:
            raise self._damaged(f"{LOST_ROWS} is damaged ({err})") from err

    def _damaged(self, what: str) -> IntegrityError:
        return IntegrityError(
            f"buffer {self._store.location}: {what}; the folder is damaged. List the losses with "
            f"`rft buffer verify {self._store.location}`, then run `rft buffer repair` on it."
        )

    # --- writing -----------------------------------------------------------------------------------

    def commit(self, prepared: Prepared) -> None:
        """Store the fresh rows of a prepared batch in one commit and resolve its appends."""
        if self._unsure:
            self._find_unacknowledged()
        if self._store.local is not None:
            check_room(self._store.local)
        table = prepared.table
        seqs = self._number(prepared)
        fresh = np.flatnonzero(seqs >= self._next_seq)
        _, first_seen = np.unique(seqs[fresh], return_index=True)
        fresh = fresh[np.sort(first_seen)]
        self.quarantine.set_aside(prepared.refused)
        numbered = table.append_column(EXPERIENCES.field("seq"), pa.array(np.maximum(seqs, 0)))
        if len(fresh):
            rows = numbered if len(fresh) == len(seqs) else numbered.take(pa.array(fresh))
            self._append(rows.select(EXPERIENCES.names))
        failpoint("append.ack")
        self._resolve(prepared, seqs, numbered, fresh)
        maintain(self._store, "experiences")

    def _append(self, rows: pa.Table) -> None:
        try:
            self._store.add("experiences", rows)
        except BaseException:
            self._unsure = True  # the commit may have succeeded nevertheless
            self._hot.clear()  # and its rows would follow those kept here
            raise
        start = self._next_seq
        self._index.add(rows.column("experience_id").to_pylist(), range(start, start + rows.num_rows))
        self._hot.add(start, rows)
        self._next_seq += rows.num_rows
        self._rows += rows.num_rows

    def _find_unacknowledged(self) -> None:
        """After a commit with unknown outcome: add the rows that it did store."""
        self._store.sync("experiences")
        extra = self._store.count("experiences") - self._rows
        if extra > 0:
            rows = self._store.rows("experiences").tail(extra, ["seq", "experience_id"])
            self._index.add(rows.column("experience_id").to_pylist(), rows.column("seq").to_pylist())
            self._rows += extra
            self._next_seq = rows.column("seq")[-1].as_py() + 1
        self._unsure = False

    def _number(self, prepared: Prepared) -> npt.NDArray[np.int64]:
        """Row number of every valid row, stored or new; -1 for all rows of an append with a conflict."""
        table = prepared.table
        ids, digests = table.column("experience_id").to_pylist(), table.column("digest").to_pylist()
        known = self._known(ids)
        seqs = np.full(len(ids), -1, np.int64)
        next_seq, place = self._next_seq, 0
        brought = np.cumsum([item.brought for item in prepared.pending])
        ends = np.searchsorted(prepared.places, brought).tolist()
        for item, end in zip(prepared.pending, ends, strict=True):
            mine: dict[str, tuple[int, str]] = {}
            for row in range(place, end):
                stored = known.get(ids[row]) or mine.get(ids[row])
                if stored is None:
                    stored = mine[ids[row]] = (next_seq + len(mine), digests[row])
                elif stored[1] != digests[row]:
                    item.future.set_exception(_conflict(ids[row], stored[1], digests[row]))
                    seqs[place:row] = -1
                    break
                seqs[row] = stored[0]
            else:
                known.update(mine)
                next_seq += len(mine)
            place = end
        return seqs

    def _known(self, ids: Sequence[str]) -> dict[str, tuple[int, str]]:
        """Row number and digest of each id that is stored."""
        candidates = sorted({seq for _, seq in self._index.candidates(ids)})
        if not candidates:
            return {}
        wanted, names = set(ids), ["seq", "experience_id", "digest"]
        rows = self._fetch(np.array(candidates, np.int64), names)
        columns = (rows.column(name).to_pylist() for name in names)
        return {i: (seq, digest) for seq, i, digest in zip(*columns, strict=True) if i in wanted}

    @property
    def next_seq(self) -> int:
        """The number the next row will get."""
        return self._next_seq

    def stored_digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Digest of each id that is stored."""
        return {experience_id: digest for experience_id, (_, digest) in self._known(ids).items()}

    def _resolve(
        self,
        prepared: Prepared,
        seqs: npt.NDArray[np.int64],
        numbered: pa.Table,
        fresh: npt.NDArray[np.int64],
    ) -> None:
        """Complete each append with the row numbers of its rows."""
        brought = np.cumsum([0, *(item.brought for item in prepared.pending)])
        ends = np.searchsorted(prepared.places, brought).tolist()
        new = np.searchsorted(fresh, ends).tolist()
        for number, item in enumerate(prepared.pending):
            if item.future.done():
                continue
            own = slice(ends[number], ends[number + 1])
            mine: list[int] = seqs[own].tolist()
            found: tuple[int | None, ...] = tuple(mine)
            if len(mine) < item.brought:
                places = (prepared.places[own] - brought[number]).tolist()
                found = in_places(mine, places, item.brought)
            stored, refused = new[number + 1] - new[number], item.brought - len(mine)
            item.future.set_result(Appended(found, stored, refused, numbered, own.start))

    # --- reading -----------------------------------------------------------------------------------

    def _fetch(self, seqs: npt.NDArray[np.int64], names: Sequence[str]) -> pa.Table:
        """Columns of rows by sorted, unique number; rows that do not exist are left out."""
        cold, tables = self._hot.split(seqs)
        stored = self._store.rows("experiences").take(cold.tolist(), names)
        return pa.concat_tables([stored, *(table.select(list(names)) for table in tables)])

    def take(self, seqs: Sequence[int] | npt.NDArray[np.int64], *, trained_only: bool = False) -> pa.Table:
        """Rows by number, in the order asked; digests of rows that come from a file are checked.

        `trained_only`: only `seq`, `digest`, the columns of `digests.TRAINED` and of ROLLOUT, as a lease
        needs. The latter are in the other half of the digest, which is checked too where a rollout has
        several rows: that is what they are read for.
        Raises: IntegrityError if a row is missing or does not match its digest.
        """
        names = _LEASED if trained_only else EXPERIENCES.names
        wanted, order = ascending(seqs)
        if len(wanted) and wanted[0] < 0:
            raise self._absent(int(wanted[0]))
        cold, tables = self._hot.split(wanted)
        found = [table.select(names) for table in tables]
        if len(cold) or not found:
            found.insert(0, self._from_files(cold, names, trained_only=trained_only))
        rows = found[0] if len(found) == 1 else pa.concat_tables(found)
        return rows if order is None else rows.take(pa.array(order))

    def _from_files(
        self, seqs: npt.NDArray[np.int64], names: Sequence[str], *, trained_only: bool
    ) -> pa.Table:
        """Rows by sorted, unique number, compared with their digest; see `take`."""
        stored = self._store.rows("experiences").take(seqs.tolist(), names)
        found = np.asarray(stored.column("seq"))
        if len(found) != len(seqs) or (found != seqs).any():
            raise self._absent(min(set(seqs.tolist()) - set(found.tolist())))
        check_digests(self._store.location, stored, trained_only=trained_only)
        if trained_only and _has_several_rows(stored):
            return self.take(seqs).select(names)
        return stored

    def _absent(self, seq: int) -> IntegrityError:
        return IntegrityError(f"buffer {self._store.location} has no experience with row number {seq}.")


def _has_several_rows(rows: pa.Table) -> bool:
    """Whether a rollout has several of these rows; a bit that flipped in one column cannot hide it."""
    member, turn = (np.asarray(rows.column(name)) for name in ROLLOUT)
    group = one_array(rows.column("group_id")).dictionary_encode().indices.to_numpy()
    return bool(turn.any()) or len(set(zip(group.tolist(), member.tolist(), strict=True))) < len(member)


def _conflict(experience_id: str, stored: str, found: str) -> ConflictError:
    return ConflictError(
        f"experience '{experience_id}' is already stored with other content (digest {stored}, now {found}); "
        "an experience never changes: give the new rollout its own attempt or member number."
    )
