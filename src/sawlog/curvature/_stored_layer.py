"""Layers from the arrays that they are stored as."""

from __future__ import annotations

from typing import Any

from sawlog.curvature._corrected import Corrected, UnitMatrix
from sawlog.curvature._layer import Diagonal, FullMatrix, Kronecker, Layer


def layer_from(arrays: dict[str, Any]) -> Layer:
    """Make a layer from the result of :meth:`Layer.arrays`."""
    if "factors" in arrays:
        inner = {name: array for name, array in arrays.items() if name != "factors"}
        return Corrected(layer_from(inner), arrays["factors"])
    if "basis" in arrays:
        shape = tuple(int(size) for size in arrays["shape"])
        return FullMatrix(arrays["values"], arrays["basis"], shape)
    if "left" in arrays:
        return Kronecker(arrays["values"], arrays["left"], arrays["right"])
    return UnitMatrix(arrays["unit"]) if "unit" in arrays else Diagonal(arrays["values"])
