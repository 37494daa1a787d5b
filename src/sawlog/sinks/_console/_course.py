"""``Course``: how a series went, in memory that does not grow with it."""

from __future__ import annotations

import math

import numpy as np

BINS = 256
_FEW = 16  # numbers that are added one by one, which is faster then


class Course:
    """Means of a series of unknown length in equal bins, which double whenever they are all full.

    Several series may be added, each from place 0 on: then it is the course of their mean.

    >>> course = Course()
    >>> course.add(np.array([1.0, np.nan, 3.0]), at=0)
    >>> course.add(np.array([3.0]), at=0)
    >>> course.means(8)
    [2.0, nan, 3.0]
    """

    def __init__(self) -> None:
        self._sums, self._counts, self._odd = np.zeros((3, BINS))
        self._stride, self._used = 1, 0
        self._least, self._greatest = np.inf, -np.inf

    def add(self, values: np.ndarray, at: int) -> None:
        """Take in ``[n]`` numbers as ``float64``, the first of which has the place ``at``."""
        if not len(values):
            return
        last = at + len(values) - 1
        while last // self._stride >= BINS:
            self._double()
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
        self._sums[place] = float(self._sums[place]) + value  # Python's numbers overflow quietly
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

    def _double(self) -> None:
        """Put each two bins together; half of them are then free."""
        with np.errstate(over="ignore", invalid="ignore"):
            for bins in (self._sums, self._counts, self._odd):
                bins[: BINS // 2] = bins[0::2] + bins[1::2]
                bins[BINS // 2 :] = 0
        self._stride *= 2
        self._used = (self._used + 1) // 2

    def means(self, width: int) -> list[float | None]:
        """The means of what is finite in at most ``width`` parts of equal length.

        NaN where there are numbers but none is finite, None where there are none.
        """
        if not self._used:
            return []
        width = min(max(1, width), self._used)
        edges = np.arange(width) * self._used // width
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            sums, counts, odd = (
                np.add.reduceat(bins[: self._used], edges)
                for bins in (self._sums, self._counts, self._odd)
            )
            means = sums / counts
        if self._least <= self._greatest:  # a sum may overflow, a mean cannot
            means = np.clip(np.where(counts > 0, means, np.nan), self._least, self._greatest)
        seen = (counts + odd) > 0
        return [mean if there else None for mean, there in zip(means.tolist(), seen, strict=True)]
