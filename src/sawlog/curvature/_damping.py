"""Damping: a number that is added to the eigenvalues of a curvature before it is inverted."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from sawlog._validate import non_negative_number
from sawlog.errors import ArgumentError


def _valid(number: Any) -> bool:
    real = isinstance(number, numbers.Real) and not isinstance(number, bool)
    return real and math.isfinite(number) and float(number) >= 0


@dataclasses.dataclass(frozen=True)
class _Share:
    share: float

    def __post_init__(self) -> None:
        non_negative_number("share", self.share)


@dataclasses.dataclass(frozen=True)
class Relative(_Share):
    """A share of the mean eigenvalue of each layer."""

    share: float = 0.1


@dataclasses.dataclass(frozen=True)
class Typical(_Share):
    """A share of the eigenvalue that gradients typically meet, for each layer.

    This is the mean of the eigenvalues weighted by themselves, ``sum(e^2) / sum(e)``, which is the
    expected ``g^T H g / g^T g`` of gradients whose second moment is ``H``. Directions with almost
    no curvature, of which models have many, lower the mean eigenvalue but not this one. So the same
    share suits whole and projected gradients, single layers and a matrix over all layers.

    >>> Spectrum.of(np.array([4.0, 4.0, 0.0, 0.0])).typical
    4.0
    """

    share: float = 0.003


@dataclasses.dataclass(frozen=True)
class Sampled:
    """A share of the mean eigenvalue, plus a floor for sampling error; the default.

    The floor is ``noise * typical / n``: a floor for the sampling error of eigenvalues estimated
    from ``n`` examples, where ``typical`` is the eigenvalue that gradients typically meet (see
    :class:`Typical`). It is 0 for a curvature that was not fitted to examples.

    Args:
        share: The share of the mean eigenvalue.
        noise: The floor in units of ``typical / n``; greater for a matrix with more parameters.
    """

    share: float = 0.05
    noise: float = 1.0

    def __post_init__(self) -> None:
        non_negative_number("share", self.share)
        non_negative_number("noise", self.noise)

    def amount(self, spectrum: Spectrum, count: int | None) -> float:
        """Return the number to add to eigenvalues that were estimated from ``count`` examples."""
        floor = 0.0 if not count else float(self.noise) * spectrum.typical / count
        return float(self.share) * spectrum.mean + floor


#: The default for a diagonal, and for a Kronecker product of two matrices.
FACTORED = Sampled(0.05, noise=1.0)
#: The default for a matrix over all elements of a layer.
DENSE = Sampled(0.1, noise=3.0)
#: The default for a matrix over all elements of all layers.
JOINT = Sampled(0.1, noise=10.0)

Damping = float | Relative | Typical | Sampled | Mapping[str, float] | None


@dataclasses.dataclass(frozen=True)
class Spectrum:
    """What damping depends on: the mean eigenvalue, and the one that gradients typically meet."""

    mean: float
    typical: float

    @classmethod
    def of(cls, eigenvalues: np.ndarray, zeros: int = 0) -> Spectrum:
        """Summarize eigenvalues and additional ``zeros``; negative ones count as 0."""
        values = np.maximum(np.asarray(eigenvalues, np.float64), 0)
        greatest = float(values.max(initial=0.0))
        if greatest == 0:
            return cls(0.0, 0.0)
        parts = values / greatest  # squares must not underflow or overflow
        typical = greatest * float((parts**2).sum() / parts.sum())
        return cls(float(values.sum()) / (values.size + zeros), typical)


def amount(
    damping: Damping,
    layer: str,
    spectrum: Spectrum,
    default: Sampled = FACTORED,
    count: int | None = None,
) -> float:
    """Return the number to add to the eigenvalues of a layer.

    Args:
        damping: What the user passed; None is ``default``.
        layer: The name of the layer, for a dict and for messages.
        spectrum: Its eigenvalues, for :class:`Relative`, :class:`Typical` and :class:`Sampled`.
        default: The default for the kind of curvature.
        count: The number of examples that the eigenvalues were estimated from.

    Raises:
        ArgumentError: ``damping`` has another type, is negative, or lacks the layer.
    """
    own: Any = default if damping is None else damping
    if isinstance(own, Mapping):
        if layer not in own:
            raise ArgumentError(
                f"`damping` has no number for the layer {layer!r}; it has those of: "
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
            "`damping` must be a non-negative number, Relative(0.1), Typical(0.01), Sampled(), or "
            f"a dict of numbers by layer; got {own!r}."
        )
    return float(own)


def inverse(eigenvalues: np.ndarray, added: float, layer: str = "") -> np.ndarray:
    """Return one over the damped eigenvalues; 0 where these are 0, as in a pseudo-inverse.

    Raises:
        ArgumentError: A damped eigenvalue is negative, so norms are undefined.
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
