"""Fit a curvature to the rows of a store and to the statistics of a run.

To add a kind of curvature, write the sums over rows that it needs as a :class:`RowSums`, and enter
it in ``_KINDS``. Everything else reads :data:`KINDS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from sawlog._validate import one_of
from sawlog.curvature._curvature import IDENTITY, Curvature
from sawlog.curvature._layer import Kronecker, Layer, decomposed, outer, same_layout
from sawlog.curvature._row_sums import (
    OuterProducts,
    RotatedSquares,
    RowSums,
    Shapes,
    SidesOfRows,
    Squares,
    add_blocks,
)
from sawlog.errors import ArgumentError, UnknownNameError

#: Returns an iterator over blocks of rows ``[n, ..., rows, cols]`` by layer; each call starts from
#: the first row. Rows are numpy, torch or JAX arrays, and means are computed on their device.
Scan = Callable[[], Iterator[Mapping[str, Any]]]


class KroneckerFactors(Protocol):
    """The statistics of a run; see :class:`sawlog.capture.Measured`."""

    def kfac(self, block: str, /) -> tuple[np.ndarray, np.ndarray]:
        """Return the covariances of both factors of a layer."""

    def ekfac(self, block: str, /) -> np.ndarray:
        """Return the corrected eigenvalues of a layer."""


def fit(
    kind: str, rows: Scan, measured: KroneckerFactors | None = None, *, count: int | None = None
) -> Curvature:
    """Fit a curvature to gradients.

    - ``"identity"``: no curvature.
    - ``"diagonal"``: the mean square of each element.
    - ``"fisher"``: the mean outer product of whole gradients, exact within each layer.
    - ``"kfac"``: the Kronecker product of the covariances of both factors, measured by a run.
    - ``"ekfac"``: the eigenbasis of K-FAC, with mean squares of gradients as its eigenvalues.
    - ``"shampoo"``: the square root of the Kronecker product of the means of ``G G^T`` and of
      ``G^T G``, divided by their trace. The product approximates ``"fisher"`` without measured
      factors; as in Shampoo, gradients are preconditioned by its square root.

    Args:
        kind: One of :data:`KINDS`.
        rows: A function that returns an iterator over blocks of rows.
        measured: The statistics of the run, for K-FAC and EK-FAC.
        count: The number of examples; counted if None.

    Raises:
        ArgumentError: The kind is unknown; a statistic is missing or has another shape; there are
            no rows, or some are not finite.

    >>> rows = {"w": np.array([[1.0, 0.0], [0.0, 2.0]])}
    >>> fit("diagonal", lambda: iter([rows])).layers["w"].values
    array([0.5, 2. ])
    """
    one_of("curvature", kind, KINDS)
    if kind == "identity":
        return IDENTITY
    shapes = _shapes(rows)
    if not shapes:
        raise ArgumentError(
            "There are no rows to fit a curvature to. Hint: what a run has logged can be read "
            "after run.finalize()."
        )
    layers, sums = fit_without_rows(kind, shapes, measured), row_sums(kind, shapes, measured)
    if sums is not None:
        add_blocks(sums, rows())
        layers = sums.layers()
    if count is None:
        count = sum(len(next(iter(block.values()))) for block in rows() if block)
    return Curvature(kind, layers, count=count)


def _shapes(rows: Scan) -> dict[str, tuple[int, ...]]:
    for block in rows():
        if block and all(len(values) for values in block.values()):
            return {name: tuple(values.shape[1:]) for name, values in block.items()}
    return {}


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
    """Return the K-FAC curvature of each layer."""
    found = {}
    for name, shape in shapes.items():
        factors = _factors(name, measured, what)
        for side, moment in zip(("left", "right"), factors, strict=True):
            if not np.isfinite(moment).all():
                raise ArgumentError(
                    f"{what}: the {side} factor of {name!r} is not finite. Hint: one example with "
                    "an infinite gradient is enough; leave it out."
                )
        (low, left), (high, right) = map(decomposed, factors)
        values = outer(low, high)
        if not same_layout(values.shape, shape):
            raise ArgumentError(
                f"{what}: the factors of {name!r} are for gradients of the shape "
                f"{list(values.shape)}, but the rows have {list(shape)}. Hint: measure them with "
                "the same compression."
            )
        found[name] = Kronecker(values, left, right)
    return found


def row_sums(kind: str, shapes: Shapes, measured: KroneckerFactors | None) -> RowSums | None:
    """Return empty sums over rows for a kind of curvature; None if it needs no rows.

    Args:
        kind: One of :data:`KINDS`.
        shapes: The shape of the rows of each layer.
        measured: The statistics of the run, for EK-FAC.

    Raises:
        ArgumentError: A statistic is missing or has another shape.
    """
    make = _KINDS[kind].sums
    return None if make is None else make(shapes, measured)


def fit_without_rows(
    kind: str, shapes: Shapes, measured: KroneckerFactors | None
) -> dict[str, Layer]:
    """Return the layers of a kind of curvature that needs no rows; empty for others."""
    return dict(_bases(shapes, measured, "K-FAC")) if kind == "kfac" else {}


def _ekfac(shapes: Shapes, measured: KroneckerFactors | None) -> RowSums:
    return RotatedSquares(shapes, _bases(shapes, measured, "EK-FAC"))


@dataclasses.dataclass(frozen=True)
class _CurvatureKind:
    """A kind of curvature: the sums that it is fitted from, and whether it has measured factors."""

    sums: Callable[[Shapes, KroneckerFactors | None], RowSums] | None
    needs_factors: bool = False


_KINDS = {
    "identity": _CurvatureKind(None),
    "diagonal": _CurvatureKind(lambda shapes, measured: Squares(shapes)),
    "fisher": _CurvatureKind(lambda shapes, measured: OuterProducts(shapes)),
    "kfac": _CurvatureKind(None, needs_factors=True),
    "ekfac": _CurvatureKind(_ekfac, needs_factors=True),
    "shampoo": _CurvatureKind(lambda shapes, measured: SidesOfRows(shapes)),
}

#: The kinds of curvature that :func:`fit` takes.
KINDS = tuple(_KINDS)


def needs_factors(kind: str) -> bool:
    """Return whether a kind of curvature needs statistics that a run measures.

    >>> [kind for kind in KINDS if needs_factors(kind)]
    ['kfac', 'ekfac']
    """
    return _KINDS[kind].needs_factors
