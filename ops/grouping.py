"""Statistics of groups of rows, vectorised over all groups at once, in fp64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rft_data.core.codec import one_array


@dataclass(frozen=True, slots=True)
class Groups:
    """The group of each of N rows; rows of one group need not be next to each other."""

    codes: npt.NDArray[np.int64]
    """N group numbers, 0-based, in order of first appearance."""
    count: int
    """Number of groups."""

    @classmethod
    def of(cls, table: pa.Table, key: str) -> Groups:
        """Group `table` by the values of column `key`."""
        encoded = one_array(table[key]).dictionary_encode()
        return cls(encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary))

    def moments(self, values: npt.NDArray[np.float64]) -> Moments:
        """Size, mean and deviations of each group; NaN means missing and is left out.

        Sums run over differences from one value of the group, so a group of equal values has
        a deviation of exactly zero.
        """
        known = ~np.isnan(values)
        codes, present = (self.codes, values) if known.all() else (self.codes[known], values[known])
        origin = np.zeros(self.count)
        origin[codes] = present
        shifted = present - origin[codes]
        size = np.bincount(codes, minlength=self.count)
        mean = np.bincount(codes, shifted, self.count) / np.maximum(size, 1)
        return Moments(size, origin + mean, codes, shifted, mean)


@dataclass(frozen=True, slots=True)
class Moments:
    """Statistics of the values of each group: arrays with one entry for each group."""

    size: npt.NDArray[np.int64]
    """Rows with a value."""
    mean: npt.NDArray[np.float64]
    """Mean of the values; 0.0 for a group without any."""
    _codes: npt.NDArray[np.int64]
    """Group of each value."""
    _shifted: npt.NDArray[np.float64]
    """Each value minus one fixed value of its group."""
    _shifted_mean: npt.NDArray[np.float64]

    def std(self, ddof: int) -> npt.NDArray[np.float64]:
        """Standard deviation with divisor `size - ddof`; 0.0 where that is not positive."""
        deviation = self._shifted - self._shifted_mean[self._codes]
        squares = np.bincount(self._codes, deviation * deviation, len(self.size))
        std: npt.NDArray[np.float64] = np.sqrt(squares / np.maximum(self.size - ddof, 1))
        return std
