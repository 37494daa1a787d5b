"""Fit a curvature to the rows of a store and to the statistics of a run.

To add a kind of curvature, write a function that returns a :class:`Layer` for each name, and enter
it in ``_KINDS``. Everything else reads :data:`KINDS`.
"""

from __future__ import annotations

import dataclasses
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
    if kind not in KINDS:
        listed = ", ".join(map(repr, KINDS))
        raise ArgumentError(f"`curvature` must be one of {listed}; got {kind!r}.")
    fit_layers = _KINDS[kind].fit
    if fit_layers is None:
        return IDENTITY
    shapes = _shapes(rows)
    if not shapes:
        raise ArgumentError("There are no rows to fit a curvature to.")
    layers = fit_layers(rows, shapes, measured)
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
    """Return means over examples for each layer; ``parts`` sum over the examples of a block."""
    totals: list[dict[str, Any]] = [{} for _ in parts]
    counts: dict[str, int] = {}
    for name, values in _doubles(rows):
        counts[name] = counts.get(name, 0) + len(values)
        for total, part in zip(totals, parts, strict=True):
            total[name] = total.get(name, 0.0) + part(name, values)
    return [{n: to_numpy(each) / counts[n] for n, each in total.items()} for total in totals]


def _doubles(rows: Scan) -> Iterator[tuple[str, Any]]:
    """Yield the rows of each layer in float64, on their device if it has float64."""
    for block in rows():
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
    """The mean outer product of whole gradients of a layer.

    Keeps rows while they take less memory than the matrix, and then sums the matrix.
    """

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self._name, self._shape, self._size = name, shape, math.prod(shape)
        self._rows: list[np.ndarray] = []
        self._count = 0
        self._sum: Any = None

    def add(self, rows: Any) -> None:
        """Add rows ``[n, elements]``."""
        self._count += len(rows)
        if self._sum is None and 2 * self._count <= self._size:
            self._check_room()
            self._rows.append(np.array(to_numpy(rows)))
            return
        if self._sum is None:
            self._check_size()
            self._sum = sum((each.T @ each for each in self._rows), np.float64(0.0))
            self._rows = []
            device = device_of(rows)
            self._sum = self._sum if device == NUMPY else device.put(np.asarray(self._sum))
        self._sum = self._sum + rows.T @ rows

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


def _kfac(rows: Scan, shapes: Shapes, measured: KroneckerFactors | None) -> dict[str, Layer]:
    del rows
    return dict(_bases(shapes, measured, "K-FAC"))


def _ekfac(rows: Scan, shapes: Shapes, measured: KroneckerFactors | None) -> dict[str, Layer]:
    bases = _bases(shapes, measured, "EK-FAC")

    moved: dict[tuple[str, ArrayDevice], Kronecker] = {}

    def squares(name: str, values: Any) -> Any:
        key = name, device_of(values)
        if key not in moved:
            moved[key] = bases[name].to(key[1])
        basis = moved[key]
        return (basis.into(values.reshape(len(values), *basis.row_shape())) ** 2).sum(0)

    (means,) = _means_of(rows, squares)
    return {n: Kronecker(_without_rounding(means[n]), b.left, b.right) for n, b in bases.items()}


def _without_rounding(squares: np.ndarray) -> np.ndarray:
    """Set mean squares to 0 that are within the rounding error of a change of basis."""
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


@dataclasses.dataclass(frozen=True)
class _CurvatureKind:
    """A kind of curvature: how layers are fitted, and whether that needs measured factors."""

    fit: Callable[[Scan, Shapes, KroneckerFactors | None], dict[str, Layer]] | None
    needs_factors: bool = False


_KINDS = {
    "identity": _CurvatureKind(None),
    "diagonal": _CurvatureKind(_diagonal),
    "fisher": _CurvatureKind(_fisher),
    "kfac": _CurvatureKind(_kfac, needs_factors=True),
    "ekfac": _CurvatureKind(_ekfac, needs_factors=True),
    "shampoo": _CurvatureKind(_shampoo),
}

#: The kinds of curvature that :func:`fit` takes.
KINDS = tuple(_KINDS)


def needs_factors(kind: str) -> bool:
    """Return whether a kind of curvature needs statistics that a run measures.

    >>> [kind for kind in KINDS if needs_factors(kind)]
    ['kfac', 'ekfac']
    """
    return _KINDS[kind].needs_factors
