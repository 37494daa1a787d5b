"""Sums over rows that a curvature is fitted from: a map over parts of the rows, and a sum.

A :class:`RowSums` adds up blocks of rows. Sums over different parts of the rows, perhaps computed
in different processes, are merged. The layers of the curvature are computed from the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, Self

import numpy as np
from array_api_compat import array_namespace

from sawlog._array_device import NUMPY, ArrayDevice, device_of, to_numpy
from sawlog.curvature._damping import inverse
from sawlog.curvature._layer import (
    Diagonal,
    FullMatrix,
    Kronecker,
    Layer,
    decomposed,
    outer,
    transposed,
)
from sawlog.errors import ArgumentError

MOST_ELEMENTS = 40_000
MOST_KEPT = 1 << 28

Shapes = Mapping[str, tuple[int, ...]]


class RowSums(Protocol):
    """Adds up rows of layers; can be sent to another process."""

    def add(self, name: str, rows: Any) -> None:
        """Add rows ``[n, ..., rows, cols]`` of a layer, in float64."""

    def fresh(self) -> Self:
        """Return empty sums of the same kind."""

    def data(self) -> Any:
        """Return the sums as numpy arrays, to send them to another process."""

    def merge(self, data: Any) -> None:
        """Add the :meth:`data` of sums over other rows."""

    def layers(self) -> dict[str, Layer]:
        """Return the layers of the curvature."""

    def nbytes(self, examples: int) -> int:
        """Return the most bytes that sums over this many examples take."""


def add_blocks(sums: RowSums, blocks: Iterable[Mapping[str, Any]]) -> None:
    """Add blocks of rows by layer.

    Raises:
        ArgumentError: some rows are not finite, or the sums are too large.
    """
    for name, rows in _doubles(blocks):
        sums.add(name, rows)


def _doubles(blocks: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the rows of each layer in float64, on their device if it has float64."""
    for block in blocks:
        for name, stored in block.items():
            if not len(stored):
                continue
            values = stored if device_of(stored).doubles else to_numpy(stored)
            xp = array_namespace(values)
            values = xp.astype(values, xp.float64, copy=False)
            _check_finite(name, values)
            yield name, values


def _check_finite(name: str, values: Any) -> None:
    if math.isfinite(float(values.sum())):
        return
    flat = to_numpy(values).reshape(len(values), -1)
    odd = int((~np.isfinite(flat).all(1)).sum())
    if odd:
        raise ArgumentError(
            f"At least {odd} examples have gradients of {name!r} that are infinite or NaN, so the "
            "curvature would be, too. Hint: log them again, or leave them out; float16 overflows "
            "above 65504."
        )


class _Means:
    """Means over examples: :meth:`of` returns one or more sums over the rows of a block.

    Args:
        shapes: The shape of the rows of each layer.
    """

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self._totals: dict[str, tuple[Any, ...]] = {}
        self._counts: dict[str, int] = {}

    def of(self, name: str, rows: Any) -> tuple[Any, ...]:
        """Return the sums over the rows of a block."""
        raise NotImplementedError

    def sizes(self) -> Iterator[int]:
        """Yield the number of elements of each sum."""
        yield from (math.prod(shape) for shape in self.shapes.values())

    def nbytes(self, examples: int) -> int:
        """Return the bytes that the sums take, for any number of examples."""
        del examples
        return 8 * sum(self.sizes())

    def add(self, name: str, rows: Any) -> None:
        """Add rows of a layer."""
        self._add(name, self.of(name, rows), len(rows))

    def fresh(self) -> Self:
        """Return empty sums of the same kind."""
        return type(self)(self.shapes)

    def data(self) -> Any:
        """Return the sums and counts of each layer."""
        return {
            name: (tuple(map(to_numpy, totals)), self._counts[name])
            for name, totals in self._totals.items()
        }

    def merge(self, data: Any) -> None:
        """Add the sums over other rows."""
        for name, (totals, count) in data.items():
            self._add(name, totals, count)

    def _add(self, name: str, sums: tuple[Any, ...], count: int) -> None:
        before = self._totals.get(name)
        if before is not None:
            sums = tuple(one + other for one, other in zip(before, sums, strict=True))
        self._totals[name] = sums
        self._counts[name] = self._counts.get(name, 0) + count

    def means(self) -> dict[str, tuple[np.ndarray, ...]]:
        """Return the means of each layer."""
        return {
            name: tuple(to_numpy(each) / self._counts[name] for each in totals)
            for name, totals in self._totals.items()
        }


class Squares(_Means):
    """Mean squares of elements: ``"diagonal"``."""

    def of(self, name: str, rows: Any) -> tuple[Any, ...]:
        """Return the sum of squares."""
        del name
        return ((rows**2).sum(0),)

    def layers(self) -> dict[str, Layer]:
        """Return the layers of the curvature."""
        return {name: Diagonal(mean) for name, (mean,) in self.means().items()}


class RotatedSquares(_Means):
    """Mean squares in the eigenbasis of K-FAC: ``"ekfac"``.

    Args:
        shapes: The shape of the rows of each layer.
        bases: K-FAC of each layer.
    """

    def __init__(self, shapes: Shapes, bases: Mapping[str, Kronecker]) -> None:
        super().__init__(shapes)
        self._bases = bases
        self._moved: dict[tuple[str, ArrayDevice], Kronecker] = {}

    def of(self, name: str, rows: Any) -> tuple[Any, ...]:
        """Return the sum of squares of rotated rows."""
        key = name, device_of(rows)
        if key not in self._moved:
            self._moved[key] = self._bases[name].to(key[1])
        basis = self._moved[key]
        return ((basis.into(rows.reshape(len(rows), *basis.row_shape())) ** 2).sum(0),)

    def layers(self) -> dict[str, Layer]:
        """Return the layers of the curvature."""
        means = self.means()
        return {
            name: Kronecker(_without_rounding(means[name][0]), basis.left, basis.right)
            for name, basis in self._bases.items()
        }

    def fresh(self) -> Self:
        """Return empty sums with the same bases."""
        return type(self)(self.shapes, self._bases)


def _without_rounding(squares: np.ndarray) -> np.ndarray:
    """Set mean squares to 0 that are within the rounding error of a change of basis."""
    least = (sum(squares.shape[-2:]) * np.finfo(np.float64).eps) ** 2
    return np.where(squares > least * squares.max(initial=0), squares, 0.0)


class SidesOfRows(_Means):
    """Means of ``G G^T`` and ``G^T G``: ``"shampoo"``."""

    def sizes(self) -> Iterator[int]:
        """Yield the number of elements of each sum."""
        for shape in self.shapes.values():
            yield math.prod(shape[:-2]) * sum(size**2 for size in shape[-2:])

    def of(self, name: str, rows: Any) -> tuple[Any, ...]:
        """Return the sums of both products."""
        del name
        return (rows @ transposed(rows)).sum(0), (transposed(rows) @ rows).sum(0)

    def layers(self) -> dict[str, Layer]:
        """Return the layers of the curvature."""
        layers: dict[str, Layer] = {}
        for name, means in self.means().items():
            (low, left), (high, right) = map(decomposed, means)
            trace = low.sum(-1)[..., None, None]
            roots = outer(np.sqrt(low), np.sqrt(high))
            layers[name] = Kronecker(roots * np.sqrt(inverse(trace, 0.0)), left, right)
        return layers


class OuterProducts:
    """Mean outer products of whole gradients: ``"fisher"``.

    Args:
        shapes: The shape of the rows of each layer.
    """

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._moments = {name: _Moment(name, shape) for name, shape in shapes.items()}

    def fresh(self) -> Self:
        """Return empty sums of the same kind."""
        return type(self)(self._shapes)

    def add(self, name: str, rows: Any) -> None:
        """Add rows of a layer."""
        self._moments[name].add(rows.reshape(len(rows), -1))

    def data(self) -> Any:
        """Return the rows or the sum of each layer."""
        return {name: moment.data() for name, moment in self._moments.items()}

    def merge(self, data: Any) -> None:
        """Add the sums over other rows."""
        for name, moment in data.items():
            self._moments[name].merge(*moment)

    def layers(self) -> dict[str, Layer]:
        """Return the layers of the curvature."""
        return {name: moment.layer() for name, moment in self._moments.items()}

    def nbytes(self, examples: int) -> int:
        """Return the most bytes that sums over this many examples take."""
        return 8 * sum(moment.elements(examples) for moment in self._moments.values())


class _Moment:
    """The mean outer product of whole gradients of a layer.

    Keeps rows while they take less memory than the matrix, and then sums the matrix.
    """

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self._name, self._shape, self._size = name, shape, math.prod(shape)
        self._rows: list[np.ndarray] = []
        self._count = 0
        self._sum: Any = None

    def elements(self, examples: int) -> int:
        """Return the most elements that are kept for this many rows."""
        return self._size * (examples if 2 * examples <= self._size else self._size)

    def add(self, rows: Any) -> None:
        """Add rows ``[n, elements]``."""
        self._count += len(rows)
        if self._sum is None and 2 * self._count <= self._size:
            self._check_room()
            self._rows.append(np.array(to_numpy(rows)))
            return
        if self._sum is None:
            self._sum_up(device_of(rows))
        self._sum = self._sum + rows.T @ rows

    def data(self) -> tuple[list[np.ndarray], np.ndarray | None, int]:
        """Return the rows, or the sum and the number of rows."""
        return self._rows, None if self._sum is None else to_numpy(self._sum), self._count

    def merge(self, rows: list[np.ndarray], total: np.ndarray | None, count: int) -> None:
        """Add the rows, or the sum over the rows, of another one."""
        for each in rows:
            self.add(each)
        if total is None:
            return
        self._count += count
        if self._sum is None:
            self._sum_up(NUMPY)
        self._sum = self._sum + total

    def _sum_up(self, device: ArrayDevice) -> None:
        """Replace the rows by the sum of their outer products."""
        self._check_size()
        self._sum = sum((each.T @ each for each in self._rows), np.float64(0.0))
        self._rows = []
        self._sum = self._sum if device == NUMPY else device.put(np.asarray(self._sum))

    def _check_room(self) -> None:
        if self._count * self._size > MOST_KEPT:
            raise self._too_large(f"at least {self._count} rows")

    def _check_size(self) -> None:
        if self._size > MOST_ELEMENTS:
            raise self._too_large(f"a matrix of {8e-9 * self._size**2:.0f} GB")

    def _too_large(self, what: str) -> ArgumentError:
        return ArgumentError(
            f'"fisher" is a matrix over all {self._size} elements of {self._name!r}, which takes '
            f'{what}. Hint: run.setup(compress=...) when logging, or curvature="ekfac".'
        )

    def layer(self) -> Layer:
        """Return the eigendecomposition."""
        if self._sum is None:
            return FullMatrix.of_rows(np.concatenate(self._rows), self._shape)
        values, basis = decomposed(to_numpy(self._sum) / self._count)
        return FullMatrix(values, basis, self._shape)
