"""Curvature of gradients that are divided by the root of an optimizer's second moments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from sawlog._array_device import NUMPY, ArrayDevice, to_numpy
from sawlog.curvature._damping import Sampled
from sawlog.curvature._layer import Diagonal, Layer, same_layout
from sawlog.errors import ArgumentError

EPSILON = 1e-8


@dataclasses.dataclass(frozen=True)
class UnitMatrix(Diagonal):
    """The identity, without damping."""

    damping: ClassVar[Sampled] = Sampled(0.0, noise=0.0)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the eigenvalues, under a name of their own."""
        return {"unit": self.values}


@dataclasses.dataclass(frozen=True)
class Corrected(Layer):
    """A curvature of gradients whose elements are multiplied by factors.

    It takes gradients as they are. The inverse is ``F (H + d)^-1 F``, with the factors ``F`` and
    the curvature ``H`` of the multiplied gradients.

    Args:
        inner: The curvature of the multiplied gradients.
        factors: The factors, in the shape of a gradient.

    >>> layer = Corrected(UnitMatrix(np.ones(2)), np.array([0.5, 2.0]))
    >>> layer.scaled(np.array([[4.0, 4.0]]), np.ones(2), 1.0)
    array([[ 1., 16.]])
    """

    inner: Layer
    factors: Any

    def __post_init__(self) -> None:
        if tuple(self.factors.shape) != self.inner.row_shape():
            raise ArgumentError(
                f"The factors have the shape {list(self.factors.shape)}, and gradients "
                f"{list(self.inner.row_shape())}."
            )

    @property
    def values(self) -> Any:
        """The eigenvalues of the curvature of the multiplied gradients."""
        return self.inner.values

    @property
    def damping(self) -> Sampled:  # type: ignore[override]
        """The default damping of the curvature of the multiplied gradients."""
        return self.inner.damping

    def row_shape(self) -> tuple[int, ...]:
        """Return the shape of a gradient."""
        return self.inner.row_shape()

    def prepared(self, rows: Any) -> Any:
        """Return multiplied gradients."""
        return rows * self.factors

    def into(self, rows: Any) -> Any:
        """Return multiplied gradients in the basis."""
        return self.inner.into(rows * self.factors)

    def back(self, rows: Any) -> Any:
        """Transform rows back from the basis, and multiply them."""
        return self.inner.back(rows) * self.factors

    def scaled(self, rows: Any, scale: Any, rest: float) -> Any:
        """Multiply by the factors before and after the inner layer scales."""
        return self.inner.scaled(rows * self.factors, scale, rest) * self.factors

    def weighed(self, rows: Any, scale: Any, rest: float) -> Any:
        """Return weighted squared norms of multiplied gradients."""
        return self.inner.weighed(rows * self.factors, scale, rest)

    def to(self, device: ArrayDevice) -> Corrected:
        """Return the layer with its arrays on a device."""
        if device == NUMPY:
            return self
        return Corrected(self.inner.to(device), device.put(self.factors))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays of the inner layer, and the factors."""
        return {**self.inner.arrays(), "factors": self.factors}


def factors_of(
    second_moments: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Return one over the root of second moments, by layer.

    Args:
        second_moments: Arrays by layer, in the shape or the layout of gradients.
        shapes: The shape of the gradients of each layer.

    Raises:
        ArgumentError: A layer is missing, or has another shape; or moments are negative or not
            finite.
    """
    missing = [name for name in shapes if name not in second_moments]
    if missing:
        raise ArgumentError(
            f"`second_moments` has no array for the layers {', '.join(missing[:5])}; it has: "
            f"{', '.join(map(str, second_moments))}."
        )
    found = {}
    for name, shape in shapes.items():
        moments = to_numpy(second_moments[name]).astype(np.float64)
        if not same_layout(moments.shape, shape):
            raise ArgumentError(
                f"The second moments of {name!r} have the shape {list(moments.shape)}, and its "
                f"gradients {list(shape)}. Hint: log whole gradients, without compress; or correct "
                "gradients when they are logged."
            )
        if not np.isfinite(moments).all() or (moments < 0).any():
            raise ArgumentError(f"Second moments of {name!r} are negative, infinite or NaN.")
        found[name] = 1 / (np.sqrt(moments.reshape(shape)) + EPSILON)
    return found
