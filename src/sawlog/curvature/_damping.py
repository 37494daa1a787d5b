"""Damping: what is added to the eigenvalues of a curvature before it is inverted."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from sawlog.errors import ArgumentError


def _valid(number: Any) -> bool:
    real = isinstance(number, numbers.Real) and not isinstance(number, bool)
    return real and math.isfinite(number) and float(number) >= 0


@dataclasses.dataclass(frozen=True)
class _Share:
    share: float

    def __post_init__(self) -> None:
        if not _valid(self.share):
            raise ArgumentError(f"Damping is a number from 0 on, got a share of {self.share!r}.")


@dataclasses.dataclass(frozen=True)
class Relative(_Share):
    """Damping as a share of the mean eigenvalue of each layer."""

    share: float = 0.1


@dataclasses.dataclass(frozen=True)
class Typical(_Share):
    """Damping as a share of the curvature that gradients typically meet, layer by layer.

    That is the mean of eigenvalues weighted by themselves, ``sum(e^2) / sum(e)``: what
    ``g^T H g / g^T g`` is for gradients whose second moment is ``H``. The mean eigenvalue falls
    with every direction that has next to no curvature, and models have very many of these; this
    does not. So one share serves whole and projected gradients, layer by layer and together.

    >>> Spectrum.of(np.array([4.0, 4.0, 0.0, 0.0])).typical
    4.0
    """

    share: float = 0.003


@dataclasses.dataclass(frozen=True)
class Sampled:
    """Damping that makes up for a curvature being fitted to ``n`` examples; the default.

    It is a share of the mean eigenvalue, as is usual for large models, plus ``noise``
    times the eigenvalue that gradients typically meet (see :class:`Typical`) over ``n``: of so much
    curvature one example more or less decides, in directions that few examples have. Of a
    curvature that was not fitted to examples the second part is 0.

    Args:
        share: of the mean eigenvalue.
        noise: how many examples one is off by; the more freely a matrix fits, the more.
    """

    share: float = 0.05
    noise: float = 1.0

    def __post_init__(self) -> None:
        if not _valid(self.share) or not _valid(self.noise):
            raise ArgumentError(f"Damping is made of numbers from 0 on, got {self!r}.")

    def amount(self, spectrum: Spectrum, count: int | None) -> float:
        """What is added to eigenvalues that were estimated from ``count`` examples."""
        open_ = 0.0 if not count else float(self.noise) * spectrum.typical / count
        return float(self.share) * spectrum.mean + open_


#: The default for curvature that is made of one matrix, or one number, for each side or element.
FACTORED = Sampled(0.05, noise=1.0)
#: The default for a matrix over all elements of a layer.
DENSE = Sampled(0.1, noise=3.0)
#: The default for a matrix over all elements of all layers.
JOINT = Sampled(0.1, noise=10.0)

Damping = float | Relative | Typical | Sampled | Mapping[str, float] | None


@dataclasses.dataclass(frozen=True)
class Spectrum:
    """What damping goes by: the mean eigenvalue, and the one that gradients typically meet."""

    mean: float
    typical: float

    @classmethod
    def of(cls, eigenvalues: np.ndarray, zeros: int = 0) -> Spectrum:
        """That of some eigenvalues, and so many zeros; negative ones count as 0."""
        values = np.maximum(np.asarray(eigenvalues, np.float64), 0)
        greatest = float(values.max(initial=0.0))
        if greatest == 0:
            return cls(0.0, 0.0)
        parts = values / greatest  # so that squares have room
        typical = greatest * float((parts**2).sum() / parts.sum())
        return cls(float(values.sum()) / (values.size + zeros), typical)


def amount(
    damping: Damping,
    layer: str,
    spectrum: Spectrum,
    default: Sampled = FACTORED,
    count: int | None = None,
) -> float:
    """How much is added to the eigenvalues of a layer.

    A number is that; :class:`Relative` a share of their mean, :class:`Typical` of the one that
    gradients typically meet, :class:`Sampled` goes by how many examples they were estimated from; a
    dict has a number for each layer; None is the default.

    Raises:
        ArgumentError: it is nothing of this, or negative.
    """
    own: Any = default if damping is None else damping
    if isinstance(own, Mapping):
        if layer not in own:
            raise ArgumentError(
                f"damping has no number for the layer {layer!r}; it has some for: "
                f"{', '.join(map(str, own))}."
            )
        own = own[layer]
    if isinstance(own, Sampled):
        return own.amount(spectrum, count)
    if isinstance(own, Relative):
        return float(own.share) * spectrum.mean
    if isinstance(own, Typical):
        return float(own.share) * spectrum.typical
    if not _valid(own):
        raise ArgumentError(
            "damping is a number from 0 on, Relative(0.1), Typical(0.01), Sampled(), or a dict of "
            f"numbers by layer, got {own!r}."
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
