"""MinHash sketches of sets of n-grams, and an index that finds near-duplicates among very many.

A sketch is 128 numbers of 16 bits by one-permutation hashing with random densification (arXiv:1406.4784,
arXiv:1703.04664): one hash an n-gram, not 128. The share of equal numbers estimates the Jaccard similarity J
with a standard error of sqrt(J (1 - J) / 128): 0.035 at 0.8.

Not rensa or datasketch: neither takes the sketches that a buffer stores already, nor compares only rows of
one task. From text to sketch, one core does 20,500 rows of 500 words a second here, 9,000 with rensa 0.5 and
1,900 with datasketch 2.0, which want n-grams as Python lists.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from ops.similarity.shingles import Hashes, Shingles, first_of_runs, mixed

SIZE = 128
_ROW_BITS = np.uint64(16)
_HASH_BITS = np.uint64(64 - 16)
_BELOW_BIN = np.uint64(64 - 16 - 7)
"""A sort key is the row, then the upper bits of the hash, of which the first 7 choose the bin."""
Sketches = npt.NDArray[np.uint16]
"""[N, SIZE]."""
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_RECALL = 0.99
"""Wanted chance that two sets exactly at the threshold become candidates."""
_PLACE_BITS = 28
_PLACE = np.uint64((1 << _PLACE_BITS) - 1)
_BLOCK = 256
"""Rows admitted together: their similar pairs are gone through one by one."""
_RESTORED = 1 << 14
"""Sketches restored together, so that their keys take little memory."""


def sketches(found: Shingles) -> Sketches:
    """One sketch a row, of at most MAX_ROWS rows; that of a row without n-grams means nothing."""
    rows = len(found.counts)
    keys = mixed(found.hashes) >> _ROW_BITS
    keys |= found.by_row(np.arange(rows, dtype=np.uint64) << _HASH_BITS)
    keys.sort()
    bins = (keys >> _BELOW_BIN).astype(np.int64)
    first = np.flatnonzero(first_of_runs(bins))  # the least of each bin
    least = np.zeros(rows * SIZE, np.uint16)
    least[bins[first]] = (mixed(keys[first] << _ROW_BITS) >> np.uint64(48)).astype(np.uint16)
    filled = np.zeros(rows * SIZE, np.bool_)
    filled[bins[first]] = True
    return _densified(least.reshape(rows, SIZE), filled.reshape(rows, SIZE))


def _densified(least: Sketches, filled: npt.NDArray[np.bool_]) -> Sketches:
    """Empty bins take the value of the first filled one of a random order that is the bin's own."""
    out = least.copy()
    todo = np.flatnonzero(filled.any(axis=1) & ~filled.all(axis=1))
    source, full = least[todo], filled[todo]
    value, done = source.copy(), full.copy()
    for step in range(1, SIZE):
        if done.all():
            break
        bins = _probes()[:, step]
        use = ~done & full[:, bins]
        value = np.where(use, source[:, bins], value)
        done |= use
    out[todo] = value
    return out


@cache
def _probes() -> Ints:
    """[SIZE, SIZE]: for each bin all bins, itself first, the others in a random order."""
    order = mixed(np.arange(1, SIZE * SIZE + 1, dtype=np.uint64)).reshape(SIZE, SIZE)
    order[np.arange(SIZE), np.arange(SIZE)] = 0
    return np.argsort(order, axis=1)


@cache
def band_shape(threshold: float) -> tuple[int, int]:
    """(bands, rows a band) of the locality-sensitive hashing: as selective as a recall of 0.99 allows.

    Two sets of similarity J share a band with probability 1 - (1 - J^rows)^bands.
    """
    for rows in range(SIZE, 1, -1):
        bands = SIZE // rows
        if 1 - (1 - threshold**rows) ** bands >= _RECALL:
            return bands, rows
    return SIZE, 1


class SketchIndex:
    """Sketches that are not near-duplicates of each other, with the label each may be compared under.

    About 256 bytes a sketch and 8 a band; sketches are only added.
    """

    def __init__(self, threshold: float) -> None:
        """`threshold`: the least Jaccard similarity, in (0, 1], of two sketches that count as duplicates."""
        self._threshold = threshold
        self._bands, self._width = band_shape(threshold)
        self._sketches: Sketches = np.zeros((0, SIZE), np.uint16)
        self._labels: Hashes = np.zeros(0, np.uint64)
        self._count = 0
        self._levels: list[Hashes] = []
        """Sorted band keys with the place of the sketch in the low bits; sizes fall by half and more."""

    def __len__(self) -> int:
        return self._count

    def admit(self, sketches: Sketches, labels: Hashes) -> tuple[Ints, Floats]:
        """Add, in order, each sketch that is no near-duplicate of one added before under the same label.

        Returns: for each the place (order of adding, 0-based) of the one it repeats, or its own; and the
            estimated similarity to that one.
        """
        parts = [
            self._admit_block(sketches[start : start + _BLOCK], labels[start : start + _BLOCK])
            for start in range(0, len(sketches), _BLOCK)
        ]
        if not parts:
            return np.zeros(0, np.int64), np.zeros(0)
        places, similarities = zip(*parts, strict=True)
        return np.concatenate(places), np.concatenate(similarities)

    def restore(self, sketches: Sketches, labels: Hashes) -> None:
        """Add sketches that an index like this one had admitted, in their order."""
        self._reserve(self._count + len(sketches))
        for start in range(0, len(sketches), _RESTORED):
            some, theirs = sketches[start : start + _RESTORED], labels[start : start + _RESTORED]
            self._add(some, theirs, self._keys(some, theirs))

    def candidates(self, sketches: Sketches, labels: Hashes) -> tuple[Ints, Ints]:
        """(row, place) of all pairs that share a band under one label, by row and place.

        `admit` compares these pairs: 99 % and more of those with a similarity at the threshold.
        """
        return self._candidates(labels, self._keys(sketches, labels))

    def _admit_block(self, sketches: Sketches, labels: Hashes) -> tuple[Ints, Floats]:
        keys = self._keys(sketches, labels)
        place, similarity = self._nearest(sketches, labels, keys)
        fresh = np.flatnonzero(place < 0)
        inside = SketchIndex(self._threshold)
        inside._add(sketches[fresh], labels[fresh], keys[fresh])
        row, other, alike = inside._pairs(sketches[fresh], labels[fresh], keys[fresh])
        repeats: dict[int, tuple[int, float]] = {}
        for one, before, score in zip(row.tolist(), other.tolist(), alike.tolist(), strict=True):
            if before < one and one not in repeats and before not in repeats:
                repeats[one] = before, score
        mine = np.ones(len(fresh), np.bool_)
        mine[list(repeats)] = False
        number = self._count + np.cumsum(mine) - 1
        place[fresh], similarity[fresh] = number, 1.0
        for one, (before, score) in repeats.items():
            place[fresh[one]], similarity[fresh[one]] = number[before], score
        self._add(sketches[fresh[mine]], labels[fresh[mine]], keys[fresh[mine]])
        return place, similarity

    def _keys(self, sketches: Sketches, labels: Hashes) -> Hashes:
        """[N, bands] hashes of the bands and the label, in the high bits."""
        parts = sketches[:, : self._bands * self._width].astype(np.uint64)
        parts = parts.reshape(len(sketches), self._bands, self._width)
        numbers: Hashes = np.arange(1, self._bands + 1, dtype=np.uint64)
        keys = mixed(np.add(labels[:, None], numbers))
        for column in range(self._width):
            keys = mixed(keys ^ parts[:, :, column])
        return keys & ~_PLACE

    def _add(self, sketches: Sketches, labels: Hashes, keys: Hashes) -> None:
        if not len(sketches):
            return
        total = self._count + len(sketches)
        self._reserve(total)
        self._sketches[self._count : total] = sketches
        self._labels[self._count : total] = labels
        places = np.arange(self._count, total, dtype=np.uint64)
        self._levels.append(np.sort((keys | places[:, None]).ravel()))
        self._count = total
        while len(self._levels) > 1 and 2 * len(self._levels[-1]) > len(self._levels[-2]):
            last, before = self._levels.pop(), self._levels.pop()
            self._levels.append(np.sort(np.concatenate([before, last]), kind="stable"))

    def _reserve(self, total: int) -> None:
        """Make room for so many sketches; it at least doubles, so that adding one by one stays cheap."""
        missing = max(total, 2 * len(self._labels)) - len(self._labels)
        if total > len(self._labels):
            self._sketches = np.concatenate([self._sketches, np.zeros((missing, SIZE), np.uint16)])
            self._labels = np.concatenate([self._labels, np.zeros(missing, np.uint64)])

    def _nearest(self, sketches: Sketches, labels: Hashes, keys: Hashes) -> tuple[Ints, Floats]:
        """Place of the most similar one (the first of several), -1 for none; and its similarity."""
        row, place, similarity = self._pairs(sketches, labels, keys)
        order = np.lexsort((place, -similarity, row))
        row, place, similarity = row[order], place[order], similarity[order]
        best = first_of_runs(row)
        nearest, score = np.full(len(sketches), -1), np.zeros(len(sketches))
        nearest[row[best]], score[row[best]] = place[best], similarity[best]
        return nearest, score

    def _pairs(self, sketches: Sketches, labels: Hashes, keys: Hashes) -> tuple[Ints, Ints, Floats]:
        """(row, place, similarity) of all that share a band and are similar, by row and place."""
        row, place = self._candidates(labels, keys)
        similarity = np.zeros(len(row))
        for start in range(0, len(row), 1 << 14):
            part = slice(start, start + (1 << 14))
            similarity[part] = (self._sketches[place[part]] == sketches[row[part]]).mean(axis=1)
        alike = similarity >= self._threshold
        return row[alike], place[alike], similarity[alike]

    def _candidates(self, labels: Hashes, keys: Hashes) -> tuple[Ints, Ints]:
        order = np.argsort(keys, axis=None)  # sorted keys read each level once, from its start to its end
        wanted, rows = keys.ravel()[order], (order // self._bands).astype(np.uint64)
        found = [_entries_with(level, wanted, rows) for level in self._levels]
        pairs = np.unique(np.concatenate([np.zeros(0, np.uint64), *found]))
        row, place = (pairs >> np.uint64(_PLACE_BITS)).astype(np.int64), (pairs & _PLACE).astype(np.int64)
        same = self._labels[place] == labels[row]
        return row[same], place[same]


def _entries_with(level: Hashes, wanted: Hashes, rows: Hashes) -> Hashes:
    """Row (high bits) and place of all entries of a level with a wanted key, which is of that row."""
    low = np.searchsorted(level, wanted)
    hit = np.flatnonzero(level[np.minimum(low, len(level) - 1)] & ~_PLACE == wanted)
    low = low[hit]
    counts = np.searchsorted(level, wanted[hit] | _PLACE, side="right") - low
    entry = np.repeat(low - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
    pairs: Hashes = np.repeat(rows[hit], counts) << np.uint64(_PLACE_BITS) | level[entry] & _PLACE
    return pairs
