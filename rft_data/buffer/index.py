"""The stored experience ids and their row numbers: 16 bytes a row, rebuilt at start.

It keeps hashes only; the caller compares a hit with the stored id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import xxhash

_MERGE_AT = 1 << 13
"""At most so many newest rows, or a 32nd of all, are in the dict (260 bytes each; 16 when merged)."""


class IdIndex:
    """64-bit hashes of ids, sorted, beside their row numbers; the newest ones in a dict."""

    def __init__(self) -> None:
        self._sorted = (
            np.empty(0, np.uint64),
            np.empty(0, np.int64),
        )  # replaced together, so that readers see both or neither
        self._recent: defaultdict[int, list[int]] = defaultdict(list)
        self._recent_rows = 0

    def __len__(self) -> int:
        return len(self._sorted[0]) + self._recent_rows

    @property
    def nbytes(self) -> int:
        """Bytes of the sorted part."""
        return sum(part.nbytes for part in self._sorted)

    def load(self, batches: Iterable[tuple[Sequence[str], npt.NDArray[np.int64]]]) -> None:
        """Add all stored rows: (ids, row numbers), batch by batch."""
        hashes, seqs = [self._sorted[0]], [self._sorted[1]]
        for ids, numbers in batches:
            hashes.append(np.fromiter(map(_hash, ids), np.uint64, len(ids)))
            seqs.append(numbers)
        every, numbers = np.concatenate(hashes), np.concatenate(seqs)
        order = np.argsort(every, kind="stable")
        self._sorted = every[order], numbers[order]

    def add(self, ids: Sequence[str], seqs: Sequence[int]) -> None:
        """Add ids and their row numbers."""
        for experience_id, seq in zip(ids, seqs, strict=True):
            self._recent[_hash(experience_id)].append(seq)
        self._recent_rows += len(ids)
        if self._recent_rows > max(_MERGE_AT, len(self._sorted[0]) // 32):
            self._merge()

    def candidates(self, ids: Sequence[str]) -> list[tuple[int, int]]:
        """(place in `ids`, row number) of every stored row whose id may be the same."""
        hashes = [_hash(experience_id) for experience_id in ids]
        found = [(place, seq) for place, value in enumerate(hashes) for seq in self._recent.get(value, ())]
        known, seqs = self._sorted
        if len(known):
            wanted = np.array(hashes, np.uint64)
            low = np.searchsorted(known, wanted, side="left")
            high = np.searchsorted(known, wanted, side="right")
            for place in np.flatnonzero(high > low).tolist():
                found += [(place, int(seq)) for seq in seqs[low[place] : high[place]]]
        return found

    def _merge(self) -> None:
        pairs = sorted((value, seq) for value, seqs in self._recent.items() for seq in seqs)
        hashes = np.array([value for value, _ in pairs], np.uint64)
        seqs = np.array([seq for _, seq in pairs], np.int64)
        known, numbers = self._sorted
        places = np.searchsorted(known, hashes, side="right")
        self._sorted = np.insert(known, places, hashes), np.insert(numbers, places, seqs)
        self._recent.clear()
        self._recent_rows = 0


def _hash(experience_id: str) -> int:
    return xxhash.xxh3_64_intdigest(experience_id.encode())
