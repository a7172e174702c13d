"""Similarities of the members of groups, as dense [G, M, M] arrays, and which members to keep.

G groups, M places: the largest group's number of members. Shared by the operators that thin out groups.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ops.similarity.shingles import Shingles, first_of_runs

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Similarities = npt.NDArray[np.float32]


def jaccard(found: Shingles, group: Ints, place: Ints, shape: tuple[int, int]) -> Similarities:
    """|A and B| / |A or B| of the members' sets of n-grams, [G, M, M]; 0 where both are empty.

    Exact up to collisions of hashes of 40 bits and more. Only places a < b are filled in: [g, a, b].
    Args: `group` and `place`, one for each row of `found` (rows of one place are one member's turns);
        `shape`: (G, M).
    """
    groups, members = shape
    place_bits = max(1, (members - 1).bit_length())
    group_bits = max(1, (groups - 1).bit_length())
    keys = found.hashes >> np.uint64(group_bits + place_bits) << np.uint64(place_bits)
    keys |= found.by_row(group.astype(np.uint64) << np.uint64(64 - group_bits) | place.astype(np.uint64))
    keys.sort()
    keys = keys[first_of_runs(keys)]
    places = (keys & np.uint64((1 << place_bits) - 1)).astype(np.int64)
    slots = (keys >> np.uint64(64 - group_bits)).astype(np.int64) * members + places
    shared = _shared(keys >> np.uint64(place_bits), slots, places, members, groups * members)
    shared = shared.reshape(groups, members, members)
    size = np.bincount(slots, minlength=groups * members).reshape(groups, members)
    union = size[:, :, None] + size[:, None, :] - shared
    similarity: Similarities = (shared / np.maximum(union, 1)).astype(np.float32)
    return similarity


def _shared(
    grams: npt.NDArray[np.uint64], slots: Ints, places: Ints, members: int, n_slots: int
) -> npt.NDArray[np.int64]:
    """Number of n-grams that each member shares with each later one of its group, flat."""
    shared = np.zeros(n_slots * members, np.int64)
    distance = 1
    left = np.arange(len(grams) - 1)
    while len(left):
        left = left[grams[left] == grams[left + distance]]
        shared += np.bincount(slots[left] * members + places[left + distance], minlength=len(shared))
        distance += 1
        left = left[left + distance < len(grams)]
    return shared


def keep_unlike(similar: Bools) -> tuple[Bools, Ints]:
    """Go through the members in order of place; keep each that is similar to none kept before.

    Args: `similar`, [G, M, M], read at [g, a, b] with a < b.
    Returns: kept, [G, M]; and the place of the first kept one it is similar to, [G, M], -1 for kept ones.
    """
    groups, members, _ = similar.shape
    kept = np.zeros((groups, members), np.bool_)
    like = np.full((groups, members), -1)
    for place in range(members):
        hits = similar[:, :place, place] & kept[:, :place]
        alike = hits.any(axis=1)
        kept[:, place] = ~alike
        if place:
            like[:, place] = np.where(alike, hits.argmax(axis=1), -1)
    return kept, like


def farthest(similarity: Similarities, present: Bools, count: int) -> Bools:
    """Choose up to `count` members of each group that are far apart (greedy k-centre, Gonzalez 1985).

    Starts with place 0 and adds, again and again, the one least similar to its nearest chosen one.
    Args: `similarity`, symmetric [G, M, M]; `present`, [G, M], False where a group is shorter.
    Returns: chosen, [G, M].
    """
    groups, members = present.shape
    every = np.arange(groups)
    chosen = np.zeros((groups, members), np.bool_)
    nearest = np.where(present, -2.0, np.inf)
    nearest[:, 0] = -3.0  # the first choice
    for _ in range(min(count, members)):
        pick = nearest.argmin(axis=1)
        chosen[every, pick] |= np.isfinite(nearest[every, pick])
        nearest = np.maximum(nearest, similarity[every, pick])
        nearest[every, pick] = np.inf
    return chosen
