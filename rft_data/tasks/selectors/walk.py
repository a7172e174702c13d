"""Goes through all tasks once per epoch, in an order that may differ between epochs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rft_data.tasks.selectors.roster import Roster

Order = Callable[[int, int], np.ndarray]
"""Maps (epoch, number of tasks) to the places in the order of that epoch."""


class Walk:
    """A position in an epoch; skips tasks out of play; tasks added during an epoch come last in it.

    If a draw continues into the next epoch, the tasks it took from the old epoch move to the end of the new
    one, so that the tasks of one draw differ and every epoch still has every task once.
    """

    def __init__(self, order: Order, roster: Roster) -> None:
        """`order` must depend on its arguments alone: it is called again after a restart."""
        self._make = order
        self._roster = roster
        self._epoch = 0
        self._position = 0
        self._size = len(roster)
        self._late: list[int] = []
        self._order: np.ndarray | None = None

    def next(self, n: int, in_play: np.ndarray) -> list[int]:
        """n different places in play; there are at least n."""
        chosen: list[int] = []
        while len(chosen) < n:
            order = self._whole()
            need = n - len(chosen)
            block = order[self._position : self._position + 4 * need + 64]
            playable = np.flatnonzero(in_play[block])[:need]
            chosen += block[playable].tolist()
            self._position += int(playable[-1]) + 1 if len(playable) == need else len(block)
            if self._position >= len(order):
                self._epoch = self._epoch + 1
                self._position = 0
                self._size = len(order)
                self._late = list(chosen) if len(chosen) < n else []
                self._order = None
        return chosen

    def _whole(self) -> np.ndarray:
        """The order of this epoch."""
        size = len(self._roster)
        if self._order is None or len(self._order) != size:
            order = self._make(self._epoch, self._size).astype(np.int32)
            if self._late:
                order = np.concatenate([order[~np.isin(order, self._late)], np.array(self._late, np.int32)])
            self._order = np.concatenate([order, np.arange(self._size, size, dtype=np.int32)])
        return self._order

    def state_dict(self) -> dict[str, object]:
        """Epoch, position, the number of tasks when the epoch began, and the tasks moved to its end."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "size": self._size,
            "late": self._roster.pack(np.array(self._late, np.int64)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self._epoch, self._position = int(state["epoch"]), int(state["position"])
        self._size = min(int(state["size"]), len(self._roster))
        self._late = [
            place for place in self._roster.unpack(state["late"]).tolist() if 0 <= place < self._size
        ]
        self._order = None

    def metrics(self) -> dict[str, float]:
        """Epochs passed, with their fraction."""
        return {"epoch": self._epoch + self._position / len(self._roster)}
