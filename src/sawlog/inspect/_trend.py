"""``Trend``: a series of any length as its range, its mean, and the means of a few bins."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from sawlog._trend import bin_means

_BINS = 256


@dataclasses.dataclass(frozen=True, eq=False)
class Trend:
    """The range and mean of the finite values of a series, and how it changed.

    Args:
        least: the least finite value; None if no value is finite.
        greatest: the greatest finite value; None if no value is finite.
        nans: how many values are NaN.
        infinities: how many values are infinite.
        bins: ``[3, bins]``: of each bin the sum of its finite values, how many these are, and how
            many values are not finite.
    """

    least: Any
    greatest: Any
    nans: int
    infinities: int
    bins: np.ndarray = dataclasses.field(repr=False)

    @property
    def mean(self) -> float | None:
        """The mean of the finite values; None if no value is finite."""
        return None if self.least is None else self.means(1)[0]

    def means(self, width: int) -> list[float | None]:
        """Return the means of the finite values in at most ``width`` bins of equal length.

        NaN where no value of a bin is finite, None where a bin has no values.
        """
        none = self.least is None
        bounds = None if none else (float(self.least), float(self.greatest))
        return bin_means(self.bins, width, bounds)

    def to_json(self, width: int = 64) -> dict[str, Any]:
        """Return the numbers and at most ``width`` means."""
        return {
            "min": self.least,
            "mean": self.mean,
            "max": self.greatest,
            "nan": self.nans,
            "inf": self.infinities,
            "trend": self.means(width),
        }


class TrendBuilder:
    """Computes the trend of a series of known length, piece by piece.

    >>> builder = TrendBuilder(4)
    >>> builder.add(np.array([1.0, np.nan, 3.0, 5.0]), at=0)
    >>> trend = builder.trend()
    >>> trend.least, trend.mean, trend.greatest, trend.nans
    (1.0, 3.0, 5.0, 1)
    >>> trend.means(2)
    [1.0, 4.0]
    """

    def __init__(self, length: int) -> None:
        self._length = max(1, length)
        self._size = min(_BINS, self._length)
        self._bins = np.zeros((3, self._size))
        self._least: Any = None
        self._greatest: Any = None
        self._nans = 0
        self._infinities = 0

    def add(self, values: np.ndarray, at: int, mask: np.ndarray | None = None) -> None:
        """Add real numbers; ``at`` is the place of the first one. Masked ones are left out."""
        places = np.arange(at, at + len(values)) * self._size // self._length
        if mask is not None:
            values, places = values[mask], places[mask]
        numbers = values.astype(np.float64)
        finite = np.isfinite(numbers)
        sums, counts, odd = self._bins
        if not finite.all():
            nans = int(np.isnan(numbers).sum())
            self._nans += nans
            self._infinities += int((~finite).sum()) - nans
            odd += np.bincount(places[~finite], minlength=self._size)
            values, numbers, places = values[finite], numbers[finite], places[finite]
        if len(values):
            counts += np.bincount(places, minlength=self._size)
            with np.errstate(over="ignore"):
                sums += np.bincount(places, numbers, minlength=self._size)
            exact = values if values.dtype.kind in "iu" else numbers
            self._extend(exact.min().item(), exact.max().item())

    def _extend(self, least: Any, greatest: Any) -> None:
        self._least = least if self._least is None else min(self._least, least)
        self._greatest = greatest if self._greatest is None else max(self._greatest, greatest)

    def trend(self) -> Trend:
        """Return the trend of what was added."""
        return Trend(self._least, self._greatest, self._nans, self._infinities, self._bins.copy())
