"""The trend of a series of any length, gathered in bins as it is read."""

from __future__ import annotations

from typing import Any

import numpy as np

from sawlog._spark import ASCII as ASCII
from sawlog._spark import BLOCKS as BLOCKS
from sawlog._spark import spark as spark

_BINS = 256


class Trend:
    """The least, mean and greatest of a series, how many are not finite, and its course.

    >>> trend = Trend(4)
    >>> trend.add(np.array([1.0, np.nan, 3.0, 5.0]), at=0)
    >>> trend.least, trend.mean, trend.greatest, trend.nans
    (1.0, 3.0, 5.0, 1)
    >>> trend.course(2)
    [1.0, 4.0]
    """

    def __init__(self, length: int) -> None:
        self._length = max(1, length)
        self._bins = min(_BINS, self._length)
        self._sums, self._counts, self._odd = np.zeros((3, self._bins))
        self.least: Any = None
        self.greatest: Any = None
        self.nans = 0
        self.infinities = 0

    def add(self, values: np.ndarray, at: int, mask: np.ndarray | None = None) -> None:
        """Take in real numbers, the first of which is entry ``at``; masked ones do not count."""
        places = np.arange(at, at + len(values)) * self._bins // self._length
        if mask is not None:
            values, places = values[mask], places[mask]
        numbers = values.astype(np.float64)
        finite = np.isfinite(numbers)
        if not finite.all():
            nans = int(np.isnan(numbers).sum())
            self.nans += nans
            self.infinities += int((~finite).sum()) - nans
            self._odd += np.bincount(places[~finite], minlength=self._bins)
            values, numbers, places = values[finite], numbers[finite], places[finite]
        if len(values):
            self._counts += np.bincount(places, minlength=self._bins)
            with np.errstate(over="ignore"):
                self._sums += np.bincount(places, numbers, minlength=self._bins)
            exact = values if values.dtype.kind in "iu" else numbers
            self._extend(exact.min().item(), exact.max().item())

    def _extend(self, least: Any, greatest: Any) -> None:
        self.least = least if self.least is None else min(self.least, least)
        self.greatest = greatest if self.greatest is None else max(self.greatest, greatest)

    @property
    def mean(self) -> float | None:
        """The mean of what is finite."""
        return None if self.least is None else self.course(1)[0]

    def course(self, width: int) -> list[float | None]:
        """Means of the finite entries in at most ``width`` bins.

        NaN where there are entries but none is finite, None where there are none at all.
        """
        width = min(max(1, width), self._bins)
        edges = np.arange(width) * self._bins // width
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            sums, counts, odd = (
                np.add.reduceat(part, edges) for part in (self._sums, self._counts, self._odd)
            )
            means = sums / counts
        if self.least is not None:  # a sum may overflow, a mean cannot
            means = np.clip(means, float(self.least), float(self.greatest))
        seen = (counts + odd) > 0
        return [mean if there else None for mean, there in zip(means.tolist(), seen, strict=True)]
