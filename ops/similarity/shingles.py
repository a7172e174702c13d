"""Texts and token lists as n-grams, hashed to 64 bits, for all rows at once.

A word is text between white space, in lower case; a token is an id of the completion. The hashes are
the same on every machine and in every process, so they may be stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from rft_data.core.codec import one_array

Hashes = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]

BLOCK_ROWS = 512
BLOCK_BYTES = 1 << 21
"""Limits of the rows that are hashed together. Words that these rows share are hashed once; the limit in
bytes bounds the memory where rows are long."""
BASE = 0x9E3779B97F4A7C15
"""Factor of `windows`; numbers that are small are multiplied by it first."""


@dataclass(frozen=True, slots=True)
class Shingles:
    """The n-grams of N rows, one row after the other, repeats included."""

    hashes: Hashes
    """Equal for equal n-grams; not spread evenly (see `mixed`)."""
    counts: Counts
    """N numbers of n-grams: `max(length - n + 1, 1)`, or 0 for an empty row."""

    def by_row(self, values: npt.NDArray[np.integer]) -> Hashes:
        """One of N values for each n-gram: its row's."""
        return np.repeat(values.astype(np.uint64), self.counts)


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The words or tokens of N rows, one row after the other."""

    codes: Hashes
    """One hash a piece."""
    before: Counts
    """N numbers of pieces to leave out at the start of the row."""
    lengths: Counts
    """N numbers of pieces after them."""


def blocks(table: pa.Table, column: str) -> Iterator[pa.Table]:
    """`table` in parts of at most BLOCK_ROWS rows, fewer where the rows of `column` are long."""
    row_bytes = table[column].nbytes // max(table.num_rows, 1)
    rows = min(max(BLOCK_BYTES // max(row_bytes, 1), 1), BLOCK_ROWS)
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)


def shingles(table: pa.Table, column: str, n: int) -> Shingles:
    """The n-grams of a column: of words when it holds text, of ids when it holds lists of integers.

    Of `token_ids` the completion counts, from `prompt_length` on where that column is there. A row shorter
    than n has one n-gram, the whole of it; an empty or missing one has none.
    Raises: ValueError for a column of another type.
    """
    kind = table[column].type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        pieces = _words(table[column])
    elif pa.types.is_list(kind) and pa.types.is_integer(kind.value_type):
        pieces = _tokens(table, column)
    else:
        raise ValueError(f"column '{column}' is of type {kind}; wanted text, or lists of integers")
    return _ngrams(_padded(pieces, n), n)


def mixed(values: Hashes) -> Hashes:
    """Every bit of the result depends on every bit of the value (the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def first_of_runs(values: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    """Starts of runs of equal neighbours: N values, True for the first of a run."""
    return np.append(True, values[1:] != values[:-1])[: len(values)]


def text_hashes(texts: pa.Array) -> Hashes:
    """One hash for each text, none of them null; each distinct text is hashed once."""
    encoded = texts.dictionary_encode()
    known = [xxhash.xxh3_64_intdigest(text) for text in encoded.dictionary.cast(pa.binary()).to_pylist()]
    hashes: Hashes = np.array(known, np.uint64)[encoded.indices.to_numpy()]
    return hashes


def _words(column: pa.ChunkedArray) -> _Pieces:
    # Trimmed first: where a text ends with white space, Arrow 26 reads behind its end when it splits.
    lists = pc.utf8_split_whitespace(pc.utf8_trim_whitespace(pc.fill_null(one_array(column), "")))
    lengths = lists.value_lengths().to_numpy().astype(np.int64)
    encoded = lists.flatten().dictionary_encode()
    words = encoded.dictionary.to_pylist()
    spelled = map(str.encode, map(str.lower, words))
    known = np.fromiter(map(xxhash.xxh3_64_intdigest, spelled), np.uint64, len(words))
    indices = encoded.indices.to_numpy()
    if "" in words:  # an empty text is one empty word
        empty = indices == words.index("")
        lengths -= np.bincount(np.repeat(np.arange(len(lengths)), lengths)[empty], minlength=len(lengths))
        indices = indices[~empty]
    return _Pieces(known[indices], np.zeros_like(lengths), lengths)


def _tokens(table: pa.Table, column: str) -> _Pieces:
    lists = one_array(table[column])
    lengths = pc.fill_null(lists.value_lengths(), 0).to_numpy().astype(np.int64)
    codes = lists.flatten().to_numpy().astype(np.uint64)
    codes += np.uint64(1)
    codes *= np.uint64(BASE)
    before = np.zeros_like(lengths)
    if column == "token_ids" and "prompt_length" in table.column_names:
        before = np.minimum(table["prompt_length"].to_numpy().astype(np.int64), lengths)
    return _Pieces(codes, before, lengths - before)


def _padded(pieces: _Pieces, n: int) -> _Pieces:
    """Rows shorter than n, but not empty, filled up to n."""
    lengths = pieces.lengths
    short = (lengths > 0) & (lengths < n)
    if not short.any():
        return pieces
    longer = np.where(short, n, lengths)
    wanted = np.repeat(np.tile([False, True], len(lengths)), _alternating(pieces.before, lengths))
    filled = np.repeat(np.tile([True, False], len(lengths)), _alternating(lengths, longer - lengths))
    codes = np.zeros(int(longer.sum()), np.uint64)
    codes[filled] = pieces.codes[wanted]
    return _Pieces(codes, np.zeros_like(longer), longer)


def _ngrams(pieces: _Pieces, n: int) -> Shingles:
    counts = np.maximum(pieces.lengths - n + 1, 0)
    hashes = windows(pieces.codes, n)
    runs = _alternating(pieces.before, counts, pieces.lengths - counts)
    inside = np.repeat(np.tile([False, True, False], len(counts)), runs)[: len(hashes)]
    return Shingles(hashes if inside.all() else hashes[inside], counts)


def _alternating(*lengths: Counts) -> Counts:
    """The first length of each row, then the second, ...; row after row."""
    return np.stack(lengths, axis=1).ravel()


def windows(codes: Hashes, n: int) -> Hashes:
    """Polynomial hash (mod 2^64) of every n neighbours, in O(log n) passes."""
    done, width = codes, 0
    power, size = codes, 1
    while n:
        if n & 1:
            done, width = _joined(done, power, width, size), width + size
        n >>= 1
        if n:
            power, size = _joined(power, power, size, size), 2 * size
    return done


def _joined(left: Hashes, right: Hashes, width: int, size: int) -> Hashes:
    """Hashes of windows of `width + size` pieces from those of `width` and of the `size` behind them."""
    if width == 0:
        return right
    count = max(len(right) - width, 0)
    joined = left[:count] * np.uint64(pow(BASE, size, 1 << 64))
    joined += right[width : width + count]
    return joined
