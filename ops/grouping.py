"""Statistics of groups of rows, vectorised over all groups at once, in fp64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Groups:
    """Which group each of N rows is in; rows of a group need not be neighbours."""

    codes: npt.NDArray[np.int64]
    """N group numbers, 0-based, in order of first appearance."""
    count: int
    """Number of groups."""

    @classmethod
    def of(cls, table: pa.Table, key: str) -> Groups:
        """Group `table` by the values of column `key`."""
        encoded = table[key].combine_chunks().dictionary_encode()
        return cls(encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary))

    def moments(self, values: npt.NDArray[np.float64]) -> Moments:
        """Size, mean and sum of squared deviations of each group; NaN means missing and is left out.

        Sums run over differences from one value of the group, so a group of equal values has
        a deviation of exactly zero.
        """
        known = ~np.isnan(values)
        codes, present = self.codes[known], values[known]
        origin = np.zeros(self.count)
        origin[codes] = present
        shifted = present - origin[codes]
        size = np.bincount(codes, minlength=self.count)
        mean = np.bincount(codes, shifted, self.count) / np.maximum(size, 1)
        deviation = shifted - mean[codes]
        squares = np.bincount(codes, deviation * deviation, self.count).astype(np.float64)
        return Moments(size, origin + mean, squares)


@dataclass(frozen=True, slots=True)
class Moments:
    """Per group: three arrays with one value for each."""

    size: npt.NDArray[np.int64]
    """Rows with a value."""
    mean: npt.NDArray[np.float64]
    """Mean of the values; 0.0 for a group without any."""
    squares: npt.NDArray[np.float64]
    """Sum of squared deviations from the mean."""

    def std(self, ddof: int) -> npt.NDArray[np.float64]:
        """Standard deviation with divisor `size - ddof`; 0.0 where that is not positive."""
        return np.sqrt(self.squares / np.maximum(self.size - ddof, 1))
