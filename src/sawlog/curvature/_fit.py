"""Fitting a curvature: from the rows of a store, and from statistics that a run measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from array_api_compat import array_namespace

from sawlog._array_device import NUMPY, ArrayDevice, device_of, to_numpy
from sawlog.curvature._curvature import IDENTITY, Curvature
from sawlog.curvature._damping import inverse
from sawlog.curvature._layer import (
    Diagonal,
    FullMatrix,
    Kronecker,
    Layer,
    decomposed,
    outer,
    same_layout,
    transposed,
)
from sawlog.errors import ArgumentError, UnknownNameError

MOST_ELEMENTS = 40_000
MOST_KEPT = 1 << 28

KINDS = ("identity", "diagonal", "fisher", "kfac", "ekfac", "shampoo")

#: Rows ``[n, ..., rows, cols]`` of all layers, block by block; each call goes through all of them.
#: They are arrays of numpy, torch or JAX, and means over them are computed where they are.
Scan = Callable[[], Iterator[Mapping[str, Any]]]


class KroneckerFactors(Protocol):
    """What a run measured; see :class:`sawlog.capture.Measured`."""

    def kfac(self, block: str, /) -> tuple[np.ndarray, np.ndarray]:
        """The two factors of a layer."""

    def ekfac(self, block: str, /) -> np.ndarray:
        """The corrected eigenvalues of a layer."""


def fit(
    kind: str, rows: Scan, measured: KroneckerFactors | None = None, *, count: int | None = None
) -> Curvature:
    """Fit a curvature to gradients.

    - ``"identity"``: none.
    - ``"diagonal"``: the mean of squares of each element.
    - ``"fisher"``: the mean of outer products of whole gradients, layer by layer, exactly.
    - ``"kfac"``: the Kronecker product of the two factors that a run measured.
    - ``"ekfac"``: the eigenbasis of those, with the mean of squares of the gradients in it.
    - ``"shampoo"``: the square root of the Kronecker product of the means of ``G G^T`` and of
      ``G^T G`` over their trace. The product approximates ``"fisher"`` without factors; as in
      Shampoo, gradients are preconditioned by its root.

    Args:
        kind: one of these.
        rows: a function that goes through all rows, layer by layer.
        measured: the statistics of the run, for K-FAC and EK-FAC.
        count: how many rows there are; they are counted if it is not given.

    Raises:
        ArgumentError: an unknown kind; a statistic that it needs was not measured, or of other
            shapes; there are no rows, or some that are not numbers.
    """
    if kind not in KINDS:
        raise ArgumentError(f"curvature is one of {', '.join(map(repr, KINDS))}, got {kind!r}.")
    if kind == "identity":
        return IDENTITY
    shapes = _shapes(rows)
    if not shapes:
        raise ArgumentError("There are no rows to fit a curvature to.")
    layers = _FITS[kind](rows, shapes, measured)
    if count is None:
        count = sum(len(next(iter(block.values()))) for block in rows() if block)
    return Curvature(kind, layers, count=count)


Shapes = Mapping[str, tuple[int, ...]]


def _shapes(rows: Scan) -> dict[str, tuple[int, ...]]:
    for block in rows():
        if block and all(len(values) for values in block.values()):
            return {name: tuple(values.shape[1:]) for name, values in block.items()}
    return {}


def _means_of(rows: Scan, *parts: Callable[[str, Any], Any]) -> list[dict[str, np.ndarray]]:
    """The means over examples of some sums over a block, for each layer, in one scan."""
    totals: list[dict[str, Any]] = [{} for _ in parts]
    counts: dict[str, int] = {}
    for name, values in _doubles(rows):
        counts[name] = counts.get(name, 0) + len(values)
        for total, part in zip(totals, parts, strict=True):
            total[name] = total.get(name, 0.0) + part(name, values)
    return [{n: to_numpy(each) / counts[n] for n, each in total.items()} for total in totals]


def _doubles(rows: Scan) -> Iterator[tuple[str, Any]]:
    """The rows of each layer in float64, block by block, where they are."""
    for block in rows():
        for name, stored in block.items():
            if not len(stored):
                continue
            place = device_of(stored)
            values = stored if place.doubles else to_numpy(stored)
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
            f"{odd} examples or more have gradients of {name!r} that are infinite or not numbers, "
            "and so would be the curvature. Hint: log them again, or leave them out; float16 has "
            "no numbers above 65504."
        )


def _diagonal(rows: Scan, shapes: Shapes, measured: KroneckerFactors | None) -> dict[str, Layer]:
    del shapes, measured
    (means,) = _means_of(rows, lambda name, values: (values**2).sum(0))
    return {name: Diagonal(mean) for name, mean in means.items()}


def _fisher(rows: Scan, shapes: Shapes, measured: KroneckerFactors | None) -> dict[str, Layer]:
    del measured
    moments = {name: _Moment(name, shape) for name, shape in shapes.items()}
    for name, values in _doubles(rows):
        moments[name].add(values.reshape(len(values), -1))
    return {name: moment.layer() for name, moment in moments.items()}


class _Moment:
    """The mean outer product of whole gradients of a layer: by the rows while they are few."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self._name, self._shape, self._size = name, shape, math.prod(shape)
        self._rows: list[np.ndarray] = []
        self._count = 0
        self._sum: Any = None

    def add(self, rows: Any) -> None:
        """Take in some rows ``[n, elements]``."""
        self._count += len(rows)
        if self._sum is None and 2 * self._count <= self._size:
            self._check_room()
            self._rows.append(np.array(to_numpy(rows)))
            return
        if self._sum is None:
            self._check_size()
            self._sum = sum((each.T @ each for each in self._rows), np.float64(0.0))
            self._rows = []
            place = device_of(rows)
            self._sum = self._sum if place == NUMPY else place.put(np.asarray(self._sum))
        self._sum = self._sum + rows.T @ rows

    def _check_room(self) -> None:
        if self._count * self._size > MOST_KEPT:
            raise self._too_large(f"{self._count} rows or more")

    def _check_size(self) -> None:
        if self._size > MOST_ELEMENTS:
            raise self._too_large(f"a matrix of {8e-9 * self._size**2:.0f} GB")

    def _too_large(self, what: str) -> ArgumentError:
        return ArgumentError(
            f'"fisher" is a matrix over all {self._size} elements of {self._name!r}, and takes '
            f'{what}. Hint: run.setup(compress=...) when logging, or curvature="ekfac".'
        )

    def layer(self) -> Layer:
        """By its eigenvectors."""
        if self._sum is None:
            return FullMatrix.of_rows(np.concatenate(self._rows), self._shape)
        values, basis = decomposed(to_numpy(self._sum) / self._count)
        return FullMatrix(values, basis, self._shape)


def _factors(
    name: str, measured: KroneckerFactors | None, what: str
) -> tuple[np.ndarray, np.ndarray]:
    hint = (
        'Hint: log the training data with run.setup(statistic="kfac", ...) and the same '
        "compression, and run.finalize()."
    )
    if measured is None:
        raise ArgumentError(f"{what} needs the covariances of both factors of {name!r}. {hint}")
    try:
        return measured.kfac(name)
    except UnknownNameError as error:
        raise ArgumentError(f"{what}: {error} {hint}") from error


def _bases(shapes: Shapes, measured: KroneckerFactors | None, what: str) -> dict[str, Kronecker]:
    """K-FAC of each layer."""
    found = {}
    for name, shape in shapes.items():
        factors = _factors(name, measured, what)
        for side, moment in zip(("left", "right"), factors, strict=True):
            if not np.isfinite(moment).all():
                raise ArgumentError(
                    f"{what}: the {side} factor of {name!r} has elements that are not numbers. "
                    "Hint: one example with an infinite gradient is enough; leave it out."
                )
        (low, left), (high, right) = map(decomposed, factors)
        values = outer(low, high)
        if not same_layout(values.shape, shape):
            raise ArgumentError(
                f"{what}: the factors of {name!r} are those of gradients of the shape "
                f"{list(values.shape)}, and the rows have {list(shape)}. Hint: measure them with "
                "the same compression."
            )
        found[name] = Kronecker(values, left, right)
    return found


def _kfac(rows: Scan, shapes: Shapes, measured: KroneckerFactors | None) -> dict[str, Layer]:
    del rows
    return dict(_bases(shapes, measured, "K-FAC"))


def _ekfac(rows: Scan, shapes: Shapes, measured: KroneckerFactors | None) -> dict[str, Layer]:
    bases = _bases(shapes, measured, "EK-FAC")

    there: dict[tuple[str, ArrayDevice], Kronecker] = {}

    def squares(name: str, values: Any) -> Any:
        key = name, device_of(values)
        if key not in there:
            there[key] = bases[name].to(key[1])
        basis = there[key]
        return (basis.into(values.reshape(len(values), *basis.row_shape())) ** 2).sum(0)

    (means,) = _means_of(rows, squares)
    return {n: Kronecker(_seen(means[n]), b.left, b.right) for n, b in bases.items()}


def _seen(squares: np.ndarray) -> np.ndarray:
    """Mean squares, with 0 for those that are nothing but the rounding of a change of basis."""
    least = (sum(squares.shape[-2:]) * np.finfo(np.float64).eps) ** 2
    return np.where(squares > least * squares.max(initial=0), squares, 0.0)


def _shampoo(rows: Scan, shapes: Shapes, measured: KroneckerFactors | None) -> dict[str, Layer]:
    del shapes, measured
    lefts, rights = _means_of(
        rows,
        lambda name, g: (g @ transposed(g)).sum(0),
        lambda name, g: (transposed(g) @ g).sum(0),
    )
    layers: dict[str, Layer] = {}
    for name in lefts:
        (low, left), (high, right) = decomposed(lefts[name]), decomposed(rights[name])
        trace = low.sum(-1)[..., None, None]
        roots = outer(np.sqrt(low), np.sqrt(high))
        layers[name] = Kronecker(roots * np.sqrt(inverse(trace, 0.0)), left, right)
    return layers


_FITS: dict[str, Callable[[Scan, Shapes, KroneckerFactors | None], dict[str, Layer]]] = {
    "diagonal": _diagonal,
    "fisher": _fisher,
    "kfac": _kfac,
    "ekfac": _ekfac,
    "shampoo": _shampoo,
}
