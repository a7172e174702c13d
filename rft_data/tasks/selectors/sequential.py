"""Every task once per epoch, in the order the tasks were given."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from rft_data.tasks.selectors.epoch_selector import EpochSelector


class Sequential(EpochSelector):
    """The order of the source; added tasks come last; `seed` has no effect."""

    name: ClassVar[str] = "sequential"

    def _order(self, epoch: int, size: int) -> np.ndarray:
        return np.argsort(self._roster.given[:size], kind="stable")
