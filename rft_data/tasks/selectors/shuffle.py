"""Every task once per epoch, in a fresh random order each epoch."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from rft_data.tasks.selectors.epoch_selector import EpochSelector


class Shuffle(EpochSelector):
    """Uniform choice without replacement; tasks added during an epoch come last in it."""

    name: ClassVar[str] = "shuffle"

    def _order(self, epoch: int, size: int) -> np.ndarray:
        return np.random.default_rng([self._seed, epoch]).permutation(size)
