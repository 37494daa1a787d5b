"""Damping: what is added to the eigenvalues of a curvature before it is inverted."""

from __future__ import annotations

import dataclasses

import numpy as np

from sawlog.errors import ArgumentError

DEFAULT = 0.1


@dataclasses.dataclass(frozen=True)
class Relative:
    """Damping as a share of the mean eigenvalue of each layer."""

    share: float = DEFAULT

    def __post_init__(self) -> None:
        if not self.share >= 0:
            raise ArgumentError(f"Damping is 0 or more, got a share of {self.share!r}.")


Damping = float | Relative | dict[str, float] | None


def amount(damping: Damping, layer: str, eigenvalues: np.ndarray) -> float:
    """How much is added to the eigenvalues of a layer.

    A number is that; :class:`Relative` a share of their mean; a dict has a number for each layer;
    None is ``Relative(0.1)``.

    Raises:
        ArgumentError: it is nothing of this, or negative.
    """
    if damping is None:
        damping = Relative()
    if isinstance(damping, dict):
        if layer not in damping:
            raise ArgumentError(f"damping has no number for the layer {layer!r}.")
        damping = damping[layer]
    if isinstance(damping, Relative):
        return damping.share * float(np.mean(np.maximum(eigenvalues, 0)))
    if isinstance(damping, bool) or not isinstance(damping, (int, float)) or not damping >= 0:
        raise ArgumentError(
            f"damping is a number from 0 on, Relative(0.1), or a dict of numbers by layer, got "
            f"{damping!r}."
        )
    return float(damping)


def inverse(eigenvalues: np.ndarray, added: float) -> np.ndarray:
    """One over the damped eigenvalues; 0 where these are nothing: such directions never occur.

    Eigenvalues that rounding made negative count as 0.
    """
    damped = np.maximum(eigenvalues, 0) + added
    least = np.finfo(np.float64).eps * max(float(damped.max(initial=0.0)), np.finfo(float).tiny)
    with np.errstate(divide="ignore"):
        return np.where(damped > least, 1 / np.maximum(damped, np.finfo(float).tiny), 0.0)
