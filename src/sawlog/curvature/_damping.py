"""Damping: what is added to the eigenvalues of a curvature before it is inverted."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from sawlog.errors import ArgumentError

DEFAULT = 0.1


@dataclasses.dataclass(frozen=True)
class Relative:
    """Damping as a share of the mean eigenvalue of each layer."""

    share: float = DEFAULT

    def __post_init__(self) -> None:
        if not _valid(self.share):
            raise ArgumentError(f"Damping is a number from 0 on, got a share of {self.share!r}.")


Damping = float | Relative | Mapping[str, float] | None


def _valid(number: Any) -> bool:
    real = isinstance(number, numbers.Real) and not isinstance(number, bool)
    return real and math.isfinite(number) and float(number) >= 0


def amount(damping: Damping, layer: str, eigenvalues: np.ndarray) -> float:
    """How much is added to the eigenvalues of a layer.

    A number is that; :class:`Relative` a share of their mean; a dict has a number for each layer;
    None is ``Relative(0.1)``.

    Raises:
        ArgumentError: it is nothing of this, or negative.
    """
    own: Any = Relative() if damping is None else damping
    if isinstance(own, Mapping):
        if layer not in own:
            raise ArgumentError(
                f"damping has no number for the layer {layer!r}; it has some for: "
                f"{', '.join(map(str, own))}."
            )
        own = own[layer]
    if isinstance(own, Relative):
        return float(own.share) * float(np.mean(np.maximum(eigenvalues, 0)))
    if not _valid(own):
        raise ArgumentError(
            f"damping is a number from 0 on, Relative(0.1), or a dict of numbers by layer, got "
            f"{own!r}."
        )
    return float(own)


def inverse(eigenvalues: np.ndarray, added: float, layer: str = "") -> np.ndarray:
    """One over the damped eigenvalues; 0 where these are exactly 0, as a pseudo-inverse has it.

    Raises:
        ArgumentError: a damped eigenvalue is negative, so that there are no lengths.
    """
    damped = eigenvalues + added
    if (damped < 0).any():
        raise ArgumentError(
            f"The curvature of {layer!r} has the eigenvalue {eigenvalues.min():.3g}, which a "
            f"damping of {added:.3g} leaves negative. Hint: damping above "
            f"{-eigenvalues.min():.3g}, or a curvature without negative eigenvalues."
        )
    normal = damped >= np.finfo(np.float64).tiny
    return np.where(normal, 1 / np.where(normal, damped, 1.0), 0.0)
