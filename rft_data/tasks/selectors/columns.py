"""The numbers that a selector keeps per task: arrays that grow and are saved together."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rft_data.tasks.selectors.packing import pack, unpack

Kinds = Mapping[str, tuple[type, float | tuple[float, ...]]]
"""Name to (NumPy type, value of a new task: one number, or a row of numbers)."""


class Columns:
    """One array per name, indexed by place."""

    def __init__(self, kinds: Kinds, size: int) -> None:
        """Every task starts with the default values."""
        self._kinds = kinds
        self._arrays: dict[str, np.ndarray] = {}
        self.reset(size)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def reset(self, size: int) -> None:
        """Set all `size` tasks to the default values."""
        self._arrays = {name: self._default(name, size) for name in self._kinds}

    def grow(self, more: int) -> None:
        """Make room for new tasks."""
        for name, array in self._arrays.items():
            self._arrays[name] = np.concatenate([array, self._default(name, more)])

    def _default(self, name: str, size: int) -> np.ndarray:
        kind, value = self._kinds[name]
        return np.full((size, *np.shape(value)), value, kind)

    def pack(self, places: np.ndarray) -> dict[str, str]:
        """The numbers of these places as text."""
        return {name: pack(array[places]) for name, array in self._arrays.items()}

    def unpack(self, packed: Mapping[str, str], places: np.ndarray) -> None:
        """Restore packed numbers; a place of -1 is left out."""
        kept = places >= 0
        for name, (kind, value) in self._kinds.items():
            rows = unpack(packed[name], kind).reshape(len(places), *np.shape(value))
            self._arrays[name][places[kept]] = rows[kept]
