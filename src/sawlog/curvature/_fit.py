"""Fitting a curvature: from the rows of a store, and from statistics that a run measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from sawlog.curvature._curvature import IDENTITY, Curvature
from sawlog.curvature._damping import inverse
from sawlog.curvature._layer import Dense, Diagonal, Kronecker, Layer, decomposed, outer
from sawlog.errors import ArgumentError, UnknownNameError

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
      ``G^T G`` over their trace, which approximates ``"fisher"`` without factors.

    Args:
        kind: one of these.
        rows: a function that goes through all rows, layer by layer.
        measured: the statistics of the run, for K-FAC and EK-FAC.

    Raises:
        ArgumentError: an unknown kind, or a statistic that it needs was not measured.
    """
    if kind not in KINDS:
        raise ArgumentError(f"curvature is one of {', '.join(map(repr, KINDS))}, got {kind!r}.")
    if kind == "identity":
        return IDENTITY
    return Curvature(kind, _FITS[kind](rows, measured))


def _mean_of(rows: Scan, part: Callable[[str, np.ndarray], np.ndarray]) -> dict[str, np.ndarray]:
    """The mean over examples of something, for each layer."""
    totals: dict[str, Any] = {}
    count = 0
    for block in rows():
        size = 0
        for name, values in block.items():
            values = np.asarray(values, np.float64)
            size = len(values)
            if size:
                totals[name] = totals.get(name, 0.0) + part(name, values)
        count += size
    if not count:
        raise ArgumentError("There are no rows to fit a curvature to.")
    return {name: total / count for name, total in totals.items()}


def _shapes(rows: Scan) -> dict[str, tuple[int, ...]]:
    first = next(iter(rows()), {})
    return {name: tuple(values.shape[1:]) for name, values in first.items()}


def _diagonal(rows: Scan, measured: Factors | None) -> dict[str, Layer]:
    del measured
    means = _mean_of(rows, lambda name, values: (values**2).sum(0))
    return {name: Diagonal(mean) for name, mean in means.items()}


def _fisher(rows: Scan, measured: Factors | None) -> dict[str, Layer]:
    del measured

    def moment(name: str, values: np.ndarray) -> np.ndarray:
        flat = values.reshape(len(values), -1)
        return flat.T @ flat

    shapes = _shapes(rows)
    return {name: Dense.of(m, shapes[name]) for name, m in _mean_of(rows, moment).items()}


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


def _kfac(rows: Scan, measured: Factors | None) -> dict[str, Layer]:
    layers: dict[str, Layer] = {}
    for name in _shapes(rows):
        (low, left), (high, right) = map(decomposed, _factors(name, measured, "K-FAC"))
        layers[name] = Kronecker(outer(low, high), left, right)
    return layers


def _ekfac(rows: Scan, measured: Factors | None) -> dict[str, Layer]:
    bases = {}
    for name in _shapes(rows):
        (_, left), (_, right) = map(decomposed, _factors(name, measured, "EK-FAC"))
        bases[name] = Kronecker(np.zeros(()), left, right)
    values = _mean_of(rows, lambda name, values: (bases[name].into(values) ** 2).sum(0))
    return {n: Kronecker(values[n], b.left, b.right) for n, b in bases.items()}


def _shampoo(rows: Scan, measured: Factors | None) -> dict[str, Layer]:
    del measured
    lefts = _mean_of(rows, lambda name, g: (g @ np.swapaxes(g, -1, -2)).sum(0))
    rights = _mean_of(rows, lambda name, g: (np.swapaxes(g, -1, -2) @ g).sum(0))
    layers: dict[str, Layer] = {}
    for name in lefts:
        (low, left), (high, right) = decomposed(lefts[name]), decomposed(rights[name])
        trace = low.sum(-1)[..., None, None]
        layers[name] = Kronecker(np.sqrt(outer(low, high) * inverse(trace, 0.0)), left, right)
    return layers


_FITS: dict[str, Callable[[Scan, Factors | None], dict[str, Layer]]] = {
    "diagonal": _diagonal,
    "fisher": _fisher,
    "kfac": _kfac,
    "ekfac": _ekfac,
    "shampoo": _shampoo,
}
