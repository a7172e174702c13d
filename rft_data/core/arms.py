"""The two arms of an A/B test of weights, and the draw that gives a trajectory one of them.

The draw is a function of the run's seed and the trajectory's id alone, so it is the same after a restart.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum

_WORD = 8
"""Bytes of each of the two numbers of a draw."""


class Arm(StrEnum):
    """The choice of the weights that serve a trajectory."""

    OLD = "old"
    """Weights some publications behind the newest: those of the pinned explorer."""
    NEW = "new"
    """The newest."""


def drawn_arm(seed: int, trajectory: str, share: float) -> Arm:
    """The arm of a trajectory. `share`: of trajectories that are of the arm `old`, between 0 and 1."""
    return Arm.OLD if _numbers(seed, trajectory)[0] < share * 2 ** (8 * _WORD) else Arm.NEW


def drawn_place(seed: int, trajectory: str, places: int) -> int:
    """A number from 0 to `places - 1` for a trajectory, independent of its arm."""
    return _numbers(seed, trajectory)[1] % places


def _numbers(seed: int, trajectory: str) -> tuple[int, int]:
    digest = hashlib.blake2b(f"{seed}/{trajectory}".encode(), digest_size=2 * _WORD).digest()
    return int.from_bytes(digest[:_WORD]), int.from_bytes(digest[_WORD:])
