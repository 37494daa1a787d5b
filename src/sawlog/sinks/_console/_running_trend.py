"""``RunningTrend``: the trend of a series of unknown length, in memory that does not grow."""

from __future__ import annotations

import math

import numpy as np

from sawlog._trend import bin_means

BINS = 256
_FEW = 16  # up to here, adding numbers one by one is faster


class RunningTrend:
    """The means of a series in equal bins; when all bins are full, pairs of bins are merged.

    Several series may be added, each from place 0 on. The trend is then that of their mean.

    >>> trend = RunningTrend()
    >>> trend.add(np.array([1.0, np.nan, 3.0]), at=0)
    >>> trend.add(np.array([3.0]), at=0)
    >>> trend.means(8)
    [2.0, nan, 3.0]
    """

    def __init__(self) -> None:
        self._bins = np.zeros((3, BINS))  # sums, counts, how many values are not finite
        self._sums, self._counts, self._odd = self._bins
        self._stride, self._used = 1, 0
        self._least, self._greatest = np.inf, -np.inf

    def add(self, values: np.ndarray, at: int) -> None:
        """Add ``[n]`` numbers of dtype ``float64``; ``at`` is the place of the first one."""
        if not len(values):
            return
        last = at + len(values) - 1
        while last // self._stride >= BINS:
            self._merge_bins()
        self._used = max(self._used, last // self._stride + 1)
        if len(values) <= _FEW:
            for place, value in enumerate(values.tolist(), at):
                self._add_one(value, place // self._stride)
        else:
            self._add_many(values, at, last)

    def _add_one(self, value: float, place: int) -> None:
        if not math.isfinite(value):
            self._odd[place] += 1
            return
        self._counts[place] += 1
        self._sums[place] = float(self._sums[place]) + value  # Python's floats overflow silently
        self._least = min(self._least, value)
        self._greatest = max(self._greatest, value)

    def _add_many(self, values: np.ndarray, at: int, last: int) -> None:
        places = np.arange(at, last + 1) // self._stride
        finite = np.isfinite(values)
        if not finite.all():
            self._odd += np.bincount(places[~finite], minlength=BINS)
            values, places = values[finite], places[finite]
        if len(values):
            self._counts += np.bincount(places, minlength=BINS)
            with np.errstate(over="ignore"):
                self._sums += np.bincount(places, values, minlength=BINS)
            self._least = min(self._least, float(values.min()))
            self._greatest = max(self._greatest, float(values.max()))

    def _merge_bins(self) -> None:
        """Merge pairs of bins, so that half of the bins are free."""
        with np.errstate(over="ignore", invalid="ignore"):
            merged = self._bins[:, 0::2] + self._bins[:, 1::2]
        self._bins[:, : BINS // 2] = merged
        self._bins[:, BINS // 2 :] = 0
        self._stride *= 2
        self._used = (self._used + 1) // 2

    def means(self, width: int) -> list[float | None]:
        """Return the means of the finite values in at most ``width`` parts of equal length.

        NaN where no value of a part is finite, None where a part has no values.
        """
        bounds = (self._least, self._greatest) if self._least <= self._greatest else None
        return bin_means(self._bins[:, : self._used], width, bounds)
