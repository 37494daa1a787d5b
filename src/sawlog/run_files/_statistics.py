"""Statistics over examples, accumulated batch by batch, in any array library.

A statistic is a ``Total``, a sum with a count, or a ``Spread``, a mean with the sum of squared
deviations from it, which are merged batch by batch without cancellation.
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
    """A sum of arrays, and the number of summands."""

    sum: Any = None
    count: int = 0

    def add(self, array: Any, count: int) -> None:
        """Add an array that is a sum of ``count`` summands."""
        self.sum = array if self.sum is None else _plus(_on_device_of(self.sum, array), array)
        self.count += count


@dataclasses.dataclass
class Spread:
    """The mean of rows, and the sum of their squared deviations from the mean."""

    mean: Any = None
    squares: Any = None
    count: int = 0

    def add(self, rows: Any) -> None:
        """Add rows ``[n, ...]``."""
        xp = array_namespace(rows)
        more = rows.shape[0]
        mean = xp.mean(rows, axis=0)
        squares = xp.sum((rows - mean) ** 2, axis=0)
        if self.mean is not None and self.mean.shape != mean.shape:
            raise CaptureError(
                "The mean and variance need logs of one shape; these are "
                f"{list(self.mean.shape)} and {list(mean.shape)} for each example, because "
                'sequences differ in length. Hint: statistic="covariance" averages over all '
                'positions; log="grad" always has one shape.'
            )
        if self.mean is None:
            self.mean, self.squares, self.count = mean, squares, more
            return
        self.mean, self.squares = _on_device_of(self.mean, mean), _on_device_of(self.squares, mean)
        apart, count = mean - self.mean, self.count + more
        self.mean = self.mean + apart * (more / count)
        self.squares = self.squares + squares + apart**2 * (self.count * more / count)
        self.count = count


class RunStatistics:
    """All statistics of a run by name, in one precision.

    Args:
        precision: the dtype in which they are summed.
        offload: whether they are kept in CPU memory, whatever the device of what is added.
    """

    def __init__(self, precision: str = "float32", *, offload: bool = False) -> None:
        self._precision = precision
        self._offload = offload
        self.totals: dict[str, Total] = {}
        self.spreads: dict[str, Spread] = {}

    def add(self, name: str, array: Any, count: int) -> None:
        """Add a sum of ``count`` summands."""
        self.totals.setdefault(name, Total()).add(self._own(array), count)

    def add_rows(self, name: str, rows: Any) -> None:
        """Add rows to a mean and variance."""
        if rows.shape[0]:
            self.spreads.setdefault(name, Spread()).add(self._own(rows))

    def _own(self, array: Any) -> Any:
        xp = array_namespace(array)
        array = xp.astype(array, getattr(xp, self._precision))
        return array.cpu() if self._offload and hasattr(array, "cpu") else array

    def arrays(self) -> dict[str, tuple[np.ndarray, int]]:
        """Return every array with its count, to store them."""
        found = {f"sum/{name}": (to_numpy(t.sum), t.count) for name, t in self.totals.items()}
        for name, spread in self.spreads.items():
            found[f"mean/{name}"] = (to_numpy(spread.mean), spread.count)
            found[f"squares/{name}"] = (to_numpy(spread.squares), spread.count)
        return found

    def load(self, arrays: Mapping[str, tuple[Any, int]]) -> None:
        """Continue from the arrays that :meth:`arrays` returned."""
        for key, (array, count) in arrays.items():
            kind, _, name = key.partition("/")
            if kind == "sum":
                self.totals[name] = Total(array, count)
            elif kind == "mean":
                squares = arrays[f"squares/{name}"][0]
                self.spreads[name] = Spread(array, squares, count)


class Staged(RunStatistics):
    """What one batch adds to statistics, kept apart until the batch is known to be finite."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: list[tuple[str, Any, int]] = []
        self.rows: list[tuple[str, Any]] = []

    def add(self, name: str, array: Any, count: int) -> None:
        """Add a sum of ``count`` summands."""
        self.sums.append((name, array, count))

    def add_rows(self, name: str, rows: Any) -> None:
        """Add rows to a mean and variance."""
        self.rows.append((name, rows))

    def commit(self, to: RunStatistics) -> None:
        """Add everything to the statistics of a run."""
        for name, array, count in self.sums:
            to.add(name, array, count)
        for name, rows in self.rows:
            to.add_rows(name, rows)


def added(
    ours: Mapping[str, tuple[np.ndarray, int]], theirs: Mapping[str, tuple[np.ndarray, int]]
) -> dict[str, tuple[np.ndarray, int]]:
    """Return the arrays of two sets of examples, merged; see :meth:`RunStatistics.arrays`.

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
            found[key] = (_plus(one, two), n + m)
        elif key.startswith("mean/"):
            apart = two - one
            found[key] = (one + apart * (m / (n + m)), n + m)
            squares = "squares/" + key.removeprefix("mean/")
            joint = ours[squares][0] + theirs[squares][0] + apart**2 * (n * m / (n + m))
            found[squares] = (joint, n + m)
    return found


def _plus(one: Any, other: Any) -> Any:
    """Add two sums of one statistic; ``[n]`` is the diagonal of a matrix ``[n, n]``.

    An embedding has diagonal second moments. Those of a linear layer that shares its weight are
    dense, and a sum by the rules of broadcasting would be wrong.
    """
    if one.shape == other.shape:
        return one + other
    if one.ndim == 1 and other.shape == (*one.shape, *one.shape):
        return _on_diagonal(one) + other
    if other.ndim == 1 and one.shape == (*other.shape, *other.shape):
        return one + _on_diagonal(other)
    raise CaptureError(
        f"A statistic has the shapes {list(one.shape)} and {list(other.shape)} in two batches, so "
        "they cannot be added. Hint: a run logs one model with one compression; use another run "
        "for another one."
    )


def _on_diagonal(diagonal: Any) -> Any:
    xp = array_namespace(diagonal)
    size = diagonal.shape[0]
    return diagonal[:, None] * xp.eye(size, dtype=diagonal.dtype, device=device(diagonal))


def _on_device_of(array: Any, other: Any) -> Any:
    """Return an array on the device of another; arrays loaded from disk are on the CPU."""
    there = device(other)
    return array if device(array) == there else to_device(array, there)
