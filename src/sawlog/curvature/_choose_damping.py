"""Damping chosen on gradients that the curvature was not fitted to."""

from __future__ import annotations

import numpy as np

from sawlog._array_device import to_numpy
from sawlog.curvature._curvature import Curvature, Rows, fitting
from sawlog.curvature._layer import Layer
from sawlog.errors import ArgumentError

SHARES = np.logspace(-6, 2, 81)


def choose_damping(curvature: Curvature, held_out: Rows) -> dict[str, float]:
    """For each layer the damping under which gradients that were held out are most likely.

    Were gradients normally distributed with the damped curvature as their covariance, the
    logarithm of their density would be, up to constants,
    ``-sum_i (log(e_i + d) + z_i^2 / (e_i + d)) / 2``, with eigenvalues ``e_i`` and the mean squares
    ``z_i^2`` of the held-out gradients in the eigenbasis. The ``d`` that makes it greatest is
    looked for among shares of the mean eigenvalue from 1e-6 to 100. A curvature that was fitted to
    too few gradients has many eigenvalues that are too small, and gets much.

    Raises:
        ArgumentError: the curvature is the identity, which needs none, or there are no gradients,
            or some that are not numbers.
    """
    if curvature.kind == "identity":
        raise ArgumentError("The identity needs no damping.")
    if curvature.joint is not None:
        raise ArgumentError(
            f"The curvature {curvature.kind!r} couples all layers, and damping is chosen layer by "
            "layer. Hint: damping=Relative(share), or None."
        )
    chosen = {}
    for name, layer in curvature.layers.items():
        if name not in held_out or not len(held_out[name]):
            raise ArgumentError(f"There are no gradients of the layer {name!r} that were held out.")
        squares, total = _squares(name, layer, to_numpy(held_out[name]).astype(np.float64))
        values, outside = np.maximum(layer.values, 0).ravel(), layer.outside
        mean = layer.spectrum().mean
        if mean == 0:
            chosen[name] = total / (len(values) + outside)
            continue
        added = SHARES * mean
        damped = values[None] + added[:, None]
        likelihood = -(np.log(damped) + squares / damped).sum(1)
        if outside:  # where the curvature is 0
            likelihood -= outside * np.log(added) + max(total - float(squares.sum()), 0.0) / added
        chosen[name] = float(added[np.argmax(likelihood)])
    return chosen


def _squares(name: str, layer: Layer, rows: np.ndarray) -> tuple[np.ndarray, float]:
    """The mean squares of gradients in the eigenbasis of a layer, and those of all elements."""
    turned = layer.into(fitting(name, layer, rows))
    squares = np.asarray((turned.reshape(len(rows), -1) ** 2).mean(0))
    total = float((rows.reshape(len(rows), -1) ** 2).mean(0).sum())
    if not np.isfinite(squares).all() or not np.isfinite(total):
        raise ArgumentError(f"Gradients of the layer {name!r} have elements that are not numbers.")
    return squares, total
