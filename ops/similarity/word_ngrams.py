"""Word n-grams of many texts at once, as 64-bit hashes with the places they come from.

Words are compared without case and punctuation, as GPT-3's overlap analysis does (arXiv:2005.14165,
appendix C). Hashes find candidates; `same` decides on the words themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ops.similarity.shingles import BASE, mixed, windows

_CJK = r"([\x{3040}-\x{30ff}\x{3400}-\x{9fff}\x{ac00}-\x{d7af}])"
"""Scripts that write no spaces count a character as a word."""
_BETWEEN = r"[^\p{L}\p{M}\p{N}_]+"


def split_words(*corpora: Sequence[str]) -> tuple[list[Words], pa.Array]:
    """The words of each corpus's texts, and how each word's number is spelled: one numbering for all."""
    texts = pa.array([text for corpus in corpora for text in corpus], pa.string())
    lower = pc.utf8_lower(pc.utf8_normalize(texts, form="NFC"))
    spaced = pc.replace_substring_regex(lower, pattern=_CJK, replacement=r" \1 ")
    lists = pc.split_pattern(pc.replace_substring_regex(spaced, pattern=_BETWEEN, replacement=" "), " ")
    flat = pc.list_flatten(lists)
    real = pc.not_equal(flat, "")
    encoded = flat.filter(real).dictionary_encode()
    text = pc.list_parent_indices(lists).filter(real).to_numpy()
    numbers = encoded.indices.to_numpy().astype(np.int64)
    ends = np.searchsorted(text, np.arange(len(texts) + 1))
    found, first = [], 0
    for corpus in corpora:
        mine = ends[first : first + len(corpus) + 1]
        found.append(Words(numbers[mine[0] : mine[-1]], mine - mine[0]))
        first += len(corpus)
    return found, encoded.dictionary


@dataclass(frozen=True, slots=True)
class Words:
    """The words of N texts, one text after the other."""

    numbers: npt.NDArray[np.int64]
    """Every word's number."""
    ends: npt.NDArray[np.int64]
    """N + 1 places: text i is `numbers[ends[i]:ends[i + 1]]`."""

    def ngrams(self, n: int) -> Ngrams:
        """Every run of n words inside a text; a text of fewer words has none."""
        text = np.repeat(np.arange(len(self.ends) - 1), np.diff(self.ends))
        starts = np.arange(len(self.numbers))
        starts = starts[starts + n <= self.ends[text + 1]]
        codes = mixed((self.numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(BASE))
        return Ngrams(windows(codes, n)[starts], text[starts], starts)

    def same(self, start: int, other: Words, other_start: int, n: int) -> bool:
        """Whether n words here and n words there are the same (of one `split_words`)."""
        mine = self.numbers[start : start + n]
        return bool(np.array_equal(mine, other.numbers[other_start : other_start + n]))


@dataclass(frozen=True, slots=True)
class Ngrams:
    """M n-grams."""

    hashes: npt.NDArray[np.uint64]
    text: npt.NDArray[np.int64]
    """The number of the text that each n-gram is in."""
    start: npt.NDArray[np.int64]
    """Its first word, a place in `Words.numbers`."""
