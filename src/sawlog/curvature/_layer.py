"""The curvature of one layer: a basis, and an eigenvalue for each of its directions.

Everything is in float64. Rows are gradients ``[n, *shape]``.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import numpy as np


class Layer(abc.ABC):
    """A symmetric matrix over the gradients of a layer, by its eigenvectors and eigenvalues."""

    values: np.ndarray

    @abc.abstractmethod
    def into(self, rows: np.ndarray) -> np.ndarray:
        """Rows in the basis, in the shape of :attr:`values`."""

    @abc.abstractmethod
    def back(self, rows: np.ndarray) -> np.ndarray:
        """Rows out of the basis."""

    @abc.abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """What there is to store of it."""


@dataclasses.dataclass(frozen=True)
class Diagonal(Layer):
    """Every element is a direction of its own; ``values`` has the shape of a gradient."""

    values: np.ndarray

    def into(self, rows: np.ndarray) -> np.ndarray:
        """The rows as they are."""
        return rows

    def back(self, rows: np.ndarray) -> np.ndarray:
        """The rows as they are."""
        return rows

    def arrays(self) -> dict[str, np.ndarray]:
        """The eigenvalues."""
        return {"values": self.values}


@dataclasses.dataclass(frozen=True)
class Dense(Layer):
    """A basis of whole gradients: the columns of ``basis`` ``[elements, directions]``."""

    values: np.ndarray
    basis: np.ndarray
    shape: tuple[int, ...]

    def into(self, rows: np.ndarray) -> np.ndarray:
        """Rows ``[n, directions]``."""
        return rows.reshape(len(rows), -1) @ self.basis

    def back(self, rows: np.ndarray) -> np.ndarray:
        """Rows in the shape of gradients."""
        return (rows @ self.basis.T).reshape(len(rows), *self.shape)

    def arrays(self) -> dict[str, np.ndarray]:
        """The eigenvalues, the basis, the shape."""
        return {"values": self.values, "basis": self.basis, "shape": np.array(self.shape)}

    @classmethod
    def of(cls, matrix: np.ndarray, shape: tuple[int, ...]) -> Dense:
        """By the eigenvectors of a matrix."""
        values, basis = np.linalg.eigh(matrix.astype(np.float64))
        return cls(np.maximum(values, 0), basis, shape)


@dataclasses.dataclass(frozen=True)
class Kronecker(Layer):
    """Bases of both sides of gradients ``[..., rows, cols]``; one with one axis is the identity."""

    values: np.ndarray
    left: np.ndarray
    right: np.ndarray

    def into(self, rows: np.ndarray) -> np.ndarray:
        """``left.T @ row @ right``."""
        if self.left.ndim > 1:
            rows = np.swapaxes(self.left, -1, -2) @ rows
        return rows @ self.right if self.right.ndim > 1 else rows

    def back(self, rows: np.ndarray) -> np.ndarray:
        """``left @ row @ right.T``."""
        if self.left.ndim > 1:
            rows = self.left @ rows
        return rows @ np.swapaxes(self.right, -1, -2) if self.right.ndim > 1 else rows

    def arrays(self) -> dict[str, np.ndarray]:
        """The eigenvalues and both bases."""
        return {"values": self.values, "left": self.left, "right": self.right}


def decomposed(moment: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The eigenvalues ``[..., n]`` and eigenvectors of a moment; ones for those of a diagonal."""
    if moment.ndim == 1:
        return np.maximum(moment, 0), np.ones(len(moment))
    values, vectors = np.linalg.eigh(moment.astype(np.float64))
    return np.maximum(values, 0), vectors


def outer(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """All products of the eigenvalues of two sides, ``[..., rows, cols]``."""
    return left[..., :, None] * right[..., None, :]


def layer_from(arrays: dict[str, Any]) -> Layer:
    """A layer from what :meth:`Layer.arrays` gave."""
    if "basis" in arrays:
        shape = tuple(int(size) for size in arrays["shape"])
        return Dense(arrays["values"], arrays["basis"], shape)
    if "left" in arrays:
        return Kronecker(arrays["values"], arrays["left"], arrays["right"])
    return Diagonal(arrays["values"])
