"""Statistics over examples, added up batch by batch, on any array library.

Every statistic is a ``Total``, a sum with a count, or a ``Spread``, whose mean and squared
deviations are joined batch by batch so that nothing cancels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, to_device

from sawlog._array_device import to_numpy
from sawlog.errors import CaptureError


@dataclasses.dataclass
class Total:
    """A sum of arrays, and of how many."""

    sum: Any = None
    count: int = 0

    def add(self, array: Any, count: int) -> None:
        """Add an array that is itself the sum of ``count`` things."""
        self.sum = array if self.sum is None else _beside(self.sum, array) + array
        self.count += count


@dataclasses.dataclass
class Spread:
    """The mean of rows, and the sum of their squared deviations from it."""

    mean: Any = None
    squares: Any = None
    count: int = 0

    def add(self, rows: Any) -> None:
        """Take in rows ``[n, ...]``."""
        xp = array_namespace(rows)
        more = rows.shape[0]
        mean = xp.mean(rows, axis=0)
        squares = xp.sum((rows - mean) ** 2, axis=0)
        if self.mean is not None and self.mean.shape != mean.shape:
            raise CaptureError(
                f"The mean and variance of logs of different shapes, {list(self.mean.shape)} and "
                f"{list(mean.shape)} for each example, are not defined: sequences have different "
                'lengths. Hint: statistic="covariance" is over all positions; log="grad" has one '
                "shape."
            )
        if self.mean is None:
            self.mean, self.squares, self.count = mean, squares, more
            return
        self.mean, self.squares = _beside(self.mean, mean), _beside(self.squares, mean)
        apart, count = mean - self.mean, self.count + more
        self.mean = self.mean + apart * (more / count)
        self.squares = self.squares + squares + apart**2 * (self.count * more / count)
        self.count = count


class RunStatistics:
    """All statistics of a run by name, in one precision.

    ``offload`` keeps them in the memory of the CPU, whatever the device of what is added.
    """

    def __init__(self, precision: str = "float32", *, offload: bool = False) -> None:
        self._precision = precision
        self._offload = offload
        self.totals: dict[str, Total] = {}
        self.spreads: dict[str, Spread] = {}

    def add(self, name: str, array: Any, count: int) -> None:
        """Add the sum of ``count`` things."""
        self.totals.setdefault(name, Total()).add(self._own(array), count)

    def add_rows(self, name: str, rows: Any) -> None:
        """Take in rows, of which mean and variance are wanted."""
        if rows.shape[0]:
            self.spreads.setdefault(name, Spread()).add(self._own(rows))

    def _own(self, array: Any) -> Any:
        xp = array_namespace(array)
        array = xp.astype(array, getattr(xp, self._precision))
        return array.cpu() if self._offload and hasattr(array, "cpu") else array

    def arrays(self) -> dict[str, tuple[np.ndarray, int]]:
        """Every array with its count, to be stored."""
        found = {f"sum/{name}": (to_numpy(t.sum), t.count) for name, t in self.totals.items()}
        for name, spread in self.spreads.items():
            found[f"mean/{name}"] = (to_numpy(spread.mean), spread.count)
            found[f"squares/{name}"] = (to_numpy(spread.squares), spread.count)
        return found

    def load(self, arrays: Mapping[str, tuple[Any, int]]) -> None:
        """Go on from what :meth:`arrays` gave."""
        for key, (array, count) in arrays.items():
            kind, _, name = key.partition("/")
            if kind == "sum":
                self.totals[name] = Total(array, count)
            elif kind == "mean":
                squares = arrays[f"squares/{name}"][0]
                self.spreads[name] = Spread(array, squares, count)


class Staged(RunStatistics):
    """What a batch adds to statistics, held back until the batch is known to be good."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: list[tuple[str, Any, int]] = []
        self.rows: list[tuple[str, Any]] = []

    def add(self, name: str, array: Any, count: int) -> None:
        """Add the sum of ``count`` things."""
        self.sums.append((name, array, count))

    def add_rows(self, name: str, rows: Any) -> None:
        """Take in rows, of which mean and variance are wanted."""
        self.rows.append((name, rows))

    def commit(self, to: RunStatistics) -> None:
        """Add all of it."""
        for name, array, count in self.sums:
            to.add(name, array, count)
        for name, rows in self.rows:
            to.add_rows(name, rows)


def added(
    ours: Mapping[str, tuple[np.ndarray, int]], theirs: Mapping[str, tuple[np.ndarray, int]]
) -> dict[str, tuple[np.ndarray, int]]:
    """The arrays of two sets of examples, each as :meth:`RunStatistics.arrays` gave them, as one.

    >>> one, two = RunStatistics("float64"), RunStatistics("float64")
    >>> one.add_rows("x", np.array([[1.0], [2.0]])), two.add_rows("x", np.array([[6.0]]))
    (None, None)
    >>> both = added(one.arrays(), two.arrays())
    >>> both["mean/x"][0].tolist(), both["squares/x"][0].tolist()
    ([3.0], [14.0])
    """
    found = {**ours, **theirs}
    for key in ours.keys() & theirs.keys():
        (one, n), (two, m) = ours[key], theirs[key]
        if key.startswith("sum/"):
            found[key] = (one + two, n + m)
        elif key.startswith("mean/"):
            apart = two - one
            found[key] = (one + apart * (m / (n + m)), n + m)
            squares = "squares/" + key.removeprefix("mean/")
            joint = ours[squares][0] + theirs[squares][0] + apart**2 * (n * m / (n + m))
            found[squares] = (joint, n + m)
    return found


def _beside(array: Any, other: Any) -> Any:
    """An array on the device of another: what was loaded from disk is on the CPU."""
    there = device(other)
    return array if device(array) == there else to_device(array, there)
