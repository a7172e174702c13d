"""Row numbers that a caller asks for in any order, as tables give them: ascending, each once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def ascending(
    asked: Sequence[int] | npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
    """The numbers ascending and each once, and the place among them of each one asked; None: as they are."""
    numbers = np.asarray(asked, np.int64)
    if (numbers[1:] > numbers[:-1]).all():
        return numbers, None
    wanted, order = np.unique(numbers, return_inverse=True)
    return wanted, order
