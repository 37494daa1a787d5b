"""Fitting a curvature: from the rows of a store, and from statistics that a run measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from sawlog.curvature._curvature import IDENTITY, Curvature
from sawlog.curvature._damping import inverse
from sawlog.curvature._layer import Dense, Diagonal, Kronecker, Layer, decomposed, outer
from sawlog.errors import ArgumentError, UnknownNameError

MOST_ELEMENTS = 40_000

KINDS = ("identity", "diagonal", "fisher", "kfac", "ekfac", "shampoo")

#: Rows ``[n, ..., rows, cols]`` of all layers, block by block; each call goes through all of them.
Scan = Callable[[], Iterator[Mapping[str, np.ndarray]]]


class Factors(Protocol):
    """What a run measured; see :class:`sawlog.capture.Measured`."""

    def kfac(self, block: str, /) -> tuple[np.ndarray, np.ndarray]:
        """The two factors of a layer."""

    def ekfac(self, block: str, /) -> np.ndarray:
        """The corrected eigenvalues of a layer."""


def fit(kind: str, rows: Scan, measured: Factors | None = None) -> Curvature:
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
    return Curvature(kind, _FITS[kind](rows, shapes, measured))


Shapes = Mapping[str, tuple[int, ...]]


def _shapes(rows: Scan) -> dict[str, tuple[int, ...]]:
    first = next(iter(rows()), {})
    return {name: tuple(values.shape[1:]) for name, values in first.items() if len(values)}


def _means_of(
    rows: Scan, *parts: Callable[[str, np.ndarray], np.ndarray]
) -> list[dict[str, np.ndarray]]:
    """The means over examples of some sums over a block, for each layer, in one scan."""
    totals: list[dict[str, Any]] = [{} for _ in parts]
    counts: dict[str, int] = {}
    for block in rows():
        for name, stored in block.items():
            values = np.asarray(stored, np.float64)
            _check_finite(name, values)
            counts[name] = counts.get(name, 0) + len(values)
            for total, part in zip(totals, parts, strict=True):
                total[name] = total.get(name, 0.0) + part(name, values)
    return [{name: each / counts[name] for name, each in total.items()} for total in totals]


def _check_finite(name: str, values: np.ndarray) -> None:
    if np.isfinite(values.sum()):
        return
    odd = int((~np.isfinite(values).all(tuple(range(1, values.ndim)))).sum())
    if odd:
        raise ArgumentError(
            f"{odd} examples or more have gradients of {name!r} that are infinite or not numbers, "
            "and so would be the curvature. Hint: log them again, or leave them out; float16 has "
            "no numbers above 65504."
        )


def _diagonal(rows: Scan, shapes: Shapes, measured: Factors | None) -> dict[str, Layer]:
    del shapes, measured
    (means,) = _means_of(rows, lambda name, values: (values**2).sum(0))
    return {name: Diagonal(mean) for name, mean in means.items()}


def _fisher(rows: Scan, shapes: Shapes, measured: Factors | None) -> dict[str, Layer]:
    del measured
    for name, shape in shapes.items():
        _check_size(name, shape)

    def moment(name: str, values: np.ndarray) -> np.ndarray:
        flat = values.reshape(len(values), -1)
        return flat.T @ flat

    (moments,) = _means_of(rows, moment)
    layers: dict[str, Layer] = {}
    for name, each in moments.items():
        values, basis = decomposed(each)
        layers[name] = Dense(values, basis, shapes[name])
    return layers


def _check_size(name: str, shape: tuple[int, ...]) -> None:
    size = math.prod(shape)
    if size > MOST_ELEMENTS:
        raise ArgumentError(
            f'"fisher" is a matrix over all {size} elements of {name!r}, of {8e-9 * size**2:.0f} '
            'GB. Hint: run.setup(compress=...) when logging, or curvature="ekfac".'
        )


def _factors(name: str, measured: Factors | None, what: str) -> tuple[np.ndarray, np.ndarray]:
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


def _bases(shapes: Shapes, measured: Factors | None, what: str) -> dict[str, Kronecker]:
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
        if math.prod(values.shape) != math.prod(shape):
            raise ArgumentError(
                f"{what}: the factors of {name!r} are those of gradients of the shape "
                f"{list(values.shape)}, and the rows have {list(shape)}. Hint: measure them with "
                "the same compression."
            )
        found[name] = Kronecker(values, left, right)
    return found


def _kfac(rows: Scan, shapes: Shapes, measured: Factors | None) -> dict[str, Layer]:
    del rows
    return dict(_bases(shapes, measured, "K-FAC"))


def _ekfac(rows: Scan, shapes: Shapes, measured: Factors | None) -> dict[str, Layer]:
    bases = _bases(shapes, measured, "EK-FAC")

    def squares(name: str, values: np.ndarray) -> np.ndarray:
        return (bases[name].into(values.reshape(len(values), *bases[name].row_shape())) ** 2).sum(0)

    (means,) = _means_of(rows, squares)
    return {n: Kronecker(_seen(means[n]), b.left, b.right) for n, b in bases.items()}


def _seen(squares: np.ndarray) -> np.ndarray:
    """Mean squares, with 0 for those that are nothing but the rounding of a change of basis."""
    least = (sum(squares.shape[-2:]) * np.finfo(np.float64).eps) ** 2
    return np.where(squares > least * squares.max(initial=0), squares, 0.0)


def _shampoo(rows: Scan, shapes: Shapes, measured: Factors | None) -> dict[str, Layer]:
    del shapes, measured
    lefts, rights = _means_of(
        rows,
        lambda name, g: (g @ np.swapaxes(g, -1, -2)).sum(0),
        lambda name, g: (np.swapaxes(g, -1, -2) @ g).sum(0),
    )
    layers: dict[str, Layer] = {}
    for name in lefts:
        (low, left), (high, right) = decomposed(lefts[name]), decomposed(rights[name])
        trace = low.sum(-1)[..., None, None]
        roots = outer(np.sqrt(low), np.sqrt(high))
        layers[name] = Kronecker(roots * np.sqrt(inverse(trace, 0.0)), left, right)
    return layers


_FITS: dict[str, Callable[[Scan, Shapes, Factors | None], dict[str, Layer]]] = {
    "diagonal": _diagonal,
    "fisher": _fisher,
    "kfac": _kfac,
    "ekfac": _ekfac,
    "shampoo": _shampoo,
}
