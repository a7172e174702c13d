"""Candidates drawn in proportion to a weight: a sum tree over logarithms.

Weights that grow by exp(step / tau) overflow; their logarithms do not and never need rescaling. A draw uses
prefix sums in the order in which candidates were first added, so it does not depend on the shape of the
tree: a pool rebuilt in that order draws the same.
"""

from __future__ import annotations

import math
from array import array

import numpy as np

from rft_data.sampler.policy import Candidate

_NONE = -math.inf
_BELOW_ONE = math.nextafter(1.0, 0.0)


class WeightedPool:
    """Add (amortised), discard and draw in O(log N)."""

    def __init__(self) -> None:
        self._live: dict[int, Candidate] = {}
        self._slots: dict[int, int] = {}
        self._places: list[int] = []
        self._capacity = 1
        self._tree = array("d", [_NONE, _NONE])
        """Node i has the children 2i and 2i + 1; the leaves start at `_capacity`."""

    def __len__(self) -> int:
        return len(self._live)

    @property
    def log_total(self) -> float:
        """Logarithm of the sum of all weights; -inf when empty."""
        return self._tree[1]

    def add(self, candidate: Candidate, log_weight: float) -> None:
        """Add a candidate, or change its weight; `log_weight` is finite."""
        if candidate.place not in self._slots:
            if len(self._places) == self._capacity:
                self._rebuild()
            self._slots[candidate.place] = len(self._places)
            self._places.append(candidate.place)
        self._live[candidate.place] = candidate
        self._set(self._slots[candidate.place], log_weight)

    def discard(self, candidate: Candidate) -> None:
        """Remove the candidate, if present; if added again it usually keeps its slot."""
        if self._live.pop(candidate.place, None) is not None:
            self._set(self._slots[candidate.place], _NONE)

    def draw(self, u: float) -> tuple[Candidate, float]:
        """The candidate at the fraction u in [0, 1) of the total weight, and its log weight.

        Raises: LookupError when empty.
        """
        if not self._live:
            raise LookupError("an empty pool has nothing to draw; ask for its length first.")
        tree, node, exp = self._tree, 1, math.exp
        while node < self._capacity:
            share = exp(tree[2 * node] - tree[node])
            node *= 2
            if u < share:
                u /= share
            else:
                u = (u - share) / (1 - share)
                node += 1
            if u >= 1.0:
                u = _BELOW_ONE
        return self._live[self._places[node - self._capacity]], tree[node]

    def _set(self, slot: int, log_weight: float) -> None:
        tree, node, exp, log1p = self._tree, self._capacity + slot, math.exp, math.log1p
        tree[node] = log_weight
        while node > 1:
            low, high = tree[node], tree[node ^ 1]
            if low > high:
                low, high = high, low
            node >>= 1
            tree[node] = high if low == _NONE else high + log1p(exp(low - high))

    def _rebuild(self) -> None:
        """Free the slots of removed candidates, and double the room for those left."""
        kept = [
            (p, self._tree[self._capacity + slot]) for slot, p in enumerate(self._places) if p in self._live
        ]
        self._places = [place for place, _ in kept]
        self._slots = {place: slot for slot, place in enumerate(self._places)}
        self._capacity = 2 ** len(kept).bit_length()
        self._tree = array("d", [_NONE]) * (2 * self._capacity)
        tree = np.frombuffer(self._tree)
        tree[self._capacity : self._capacity + len(kept)] = [log_weight for _, log_weight in kept]
        level = self._capacity
        while level > 1:
            tree[level // 2 : level] = np.logaddexp(
                tree[level : 2 * level : 2], tree[level + 1 : 2 * level : 2]
            )
            level //= 2
