"""Choose damping by the likelihood of held-out gradients."""

from __future__ import annotations

import numpy as np

from sawlog._array_device import to_numpy
from sawlog.curvature._curvature import Curvature, LayerArrays, checked_shape
from sawlog.curvature._layer import Layer
from sawlog.errors import ArgumentError

SHARES = np.logspace(-6, 2, 81)


def choose_damping(curvature: Curvature, held_out: LayerArrays) -> dict[str, float]:
    """Return, for each layer, the damping that maximizes the likelihood of held-out gradients.

    If gradients were normally distributed with the damped curvature as their covariance, their
    log density would be ``-sum_i (log(e_i + d) + z_i^2 / (e_i + d)) / 2`` up to constants, with
    eigenvalues ``e_i`` and the mean squares ``z_i^2`` of the held-out gradients in the eigenbasis.
    The maximum is searched among shares of the mean eigenvalue from 1e-6 to 100. A curvature that
    was fitted to few gradients underestimates many eigenvalues, and gets more damping.

    Args:
        curvature: A fitted curvature; not the identity, nor one that couples layers.
        held_out: Rows of gradients by layer that the curvature was not fitted to.

    Raises:
        ArgumentError: The curvature is the identity or couples layers, or held-out gradients are
            missing or not finite.
    """
    if curvature.kind == "identity":
        raise ArgumentError(
            "The identity needs no damping. Hint: another curvature, such as 'ekfac'."
        )
    if curvature.joint is not None:
        raise ArgumentError(
            f"The curvature {curvature.kind!r} couples all layers, but damping is chosen layer by "
            "layer. Hint: damping=Relative(share), or None."
        )
    chosen = {}
    for name, layer in curvature.layers.items():
        if name not in held_out or not len(held_out[name]):
            raise ArgumentError(
                f"There are no held-out gradients of the layer {name!r}; there are those of "
                f"{', '.join(list(held_out)[:5]) or 'no layer'}. Hint: log them with the same "
                "layers."
            )
        squares, total = _squares(name, layer, to_numpy(held_out[name]).astype(np.float64))
        values, outside = np.maximum(layer.values, 0).ravel(), layer.outside
        mean = layer.spectrum().mean
        if mean == 0:
            chosen[name] = total / (len(values) + outside)
            continue
        added = SHARES * mean
        damped = values[None] + added[:, None]
        likelihood = -(np.log(damped) + squares / damped).sum(1)
        if outside:  # directions whose eigenvalue is 0
            likelihood -= outside * np.log(added) + max(total - float(squares.sum()), 0.0) / added
        chosen[name] = float(added[np.argmax(likelihood)])
    return chosen


def _squares(name: str, layer: Layer, rows: np.ndarray) -> tuple[np.ndarray, float]:
    """Return mean squares of gradients in the eigenbasis, and the mean squared norm."""
    shaped = checked_shape(name, layer, rows)
    turned, rows = layer.into(shaped), layer.prepared(shaped)
    squares = np.asarray((turned.reshape(len(rows), -1) ** 2).mean(0))
    total = float((rows.reshape(len(rows), -1) ** 2).mean(0).sum())
    if not np.isfinite(squares).all() or not np.isfinite(total):
        raise ArgumentError(
            f"Held-out gradients of the layer {name!r} are infinite or NaN. Hint: leave these "
            "examples out."
        )
    return squares, total
