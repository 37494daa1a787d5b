"""The curvature of one layer: an orthonormal basis, and an eigenvalue for each direction.

Everything is in float64. Rows are gradients ``[n, *shape]``, arrays of the same library and device
as those of the layer.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any, ClassVar, Self

import numpy as np
from array_api_compat import array_namespace

from sawlog._array_device import NUMPY, ArrayDevice
from sawlog.curvature._damping import DENSE, FACTORED, Sampled, Spectrum
from sawlog.errors import ArgumentError
from sawlog.factored import eigh


class Layer(abc.ABC):
    """A symmetric matrix over the gradients of a layer, as its eigendecomposition."""

    values: Any
    damping: ClassVar[Sampled] = FACTORED  #: the default damping

    @property
    def outside(self) -> int:
        """The number of directions outside of the basis, whose eigenvalue is 0."""
        return math.prod(self.row_shape()) - math.prod(self.values.shape)

    def spectrum(self) -> Spectrum:
        """Return the summary of the eigenvalues that damping depends on."""
        return Spectrum.of(self.values, self.outside)

    def to(self, device: ArrayDevice) -> Self:
        """Return the layer with its arrays on a device."""
        if device == NUMPY:
            return self
        moved = {n: device.put(array) for n, array in self.arrays().items() if n != "shape"}
        return dataclasses.replace(self, **moved)  # type: ignore[type-var]

    def scaled(self, rows: Any, scale: Any, rest: float) -> Any:
        """Multiply rows by ``scale`` in the basis, and by ``rest`` outside of it."""
        if not self.outside:
            return self.back(self.into(rows) * scale)
        return self.back(self.into(rows) * (scale - rest)) + rows * rest

    def weighed(self, rows: Any, scale: Any, rest: float) -> Any:
        """Return squared norms ``[n]``, weighted by ``scale`` in the basis and ``rest`` outside."""
        turned = self.into(rows).reshape(len(rows), -1)
        if not self.outside:
            return turned**2 @ scale.reshape(-1)
        flat = rows.reshape(len(rows), -1)
        return turned**2 @ (scale.reshape(-1) - rest) + (flat**2).sum(1) * rest

    def prepared(self, rows: Any) -> Any:
        """Return gradients as the curvature was fitted to them: unchanged by default."""
        return rows

    @abc.abstractmethod
    def row_shape(self) -> tuple[int, ...]:
        """Return the shape of a gradient."""

    @abc.abstractmethod
    def into(self, rows: Any) -> Any:
        """Transform rows into the basis, in the shape of :attr:`values`."""

    @abc.abstractmethod
    def back(self, rows: Any) -> Any:
        """Transform rows back from the basis."""

    @abc.abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays to store, by name."""


@dataclasses.dataclass(frozen=True)
class Diagonal(Layer):
    """A diagonal matrix.

    Args:
        values: The diagonal, in the shape of a gradient.
    """

    values: Any

    def row_shape(self) -> tuple[int, ...]:
        """Return the shape of the eigenvalues."""
        return tuple(self.values.shape)

    def into(self, rows: Any) -> Any:
        """Return the rows unchanged."""
        return rows

    def back(self, rows: Any) -> Any:
        """Return the rows unchanged."""
        return rows

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the eigenvalues."""
        return {"values": self.values}


@dataclasses.dataclass(frozen=True)
class FullMatrix(Layer):
    """A matrix over all elements of a gradient.

    There are fewer directions than elements if it was fitted to fewer examples than elements.

    Args:
        values: The eigenvalues, ``[directions]``.
        basis: The eigenvectors as columns, ``[elements, directions]``.
        shape: The shape of a gradient.
    """

    damping: ClassVar[Sampled] = DENSE

    values: Any
    basis: Any
    shape: tuple[int, ...]

    def row_shape(self) -> tuple[int, ...]:
        """Return the shape of a gradient."""
        return self.shape

    def into(self, rows: Any) -> Any:
        """Return rows in the basis, ``[n, directions]``."""
        return rows.reshape(len(rows), -1) @ self.basis

    def back(self, rows: Any) -> Any:
        """Return rows in the shape of gradients."""
        return (rows @ self.basis.T).reshape(len(rows), *self.shape)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the eigenvalues, the basis and the shape."""
        return {"values": self.values, "basis": self.basis, "shape": np.array(self.shape)}

    @classmethod
    def of_rows(cls, rows: np.ndarray, shape: tuple[int, ...]) -> FullMatrix:
        """Return the mean outer product of fewer rows ``[n, elements]`` than elements.

        Singular values of the rows are square roots of the eigenvalues. They are precise also for
        small eigenvalues, and the matrix over all elements is never formed.
        """
        basis, triangle = np.linalg.qr(rows.T)
        inner, roots, _ = np.linalg.svd(triangle)
        values = without_rounding(roots / math.sqrt(len(rows))) ** 2
        seen = values > 0
        return cls(values[seen], basis @ inner[:, seen], tuple(shape))

    @classmethod
    def of(cls, matrix: np.ndarray, shape: tuple[int, ...]) -> FullMatrix:
        """Decompose a symmetric matrix, such as a Hessian.

        Eigenvalues within rounding error are set to 0. Negative eigenvalues are kept, and solving
        requires damping that exceeds them.

        Args:
            matrix: ``[elements, elements]``.
            shape: The shape of a gradient.

        Raises:
            ArgumentError: The matrix is not symmetric, not finite, or of another size.
        """
        matrix = np.asarray(matrix, np.float64)
        size = math.prod(shape)
        if matrix.shape != (size, size):
            raise ArgumentError(
                f"Gradients of the shape {list(shape)} have {size} elements, but the matrix has "
                f"the shape {list(matrix.shape)}."
            )
        if not np.abs(matrix - matrix.T).max(initial=0) <= 1e-6 * np.abs(matrix).max(initial=0):
            raise ArgumentError("`matrix` must be symmetric and finite.")
        values, basis = np.linalg.eigh(matrix)
        return cls(without_rounding(values), basis, tuple(shape))


@dataclasses.dataclass(frozen=True)
class Kronecker(Layer):
    """A matrix with a Kronecker-factored eigenbasis, for gradients ``[..., rows, cols]``.

    Args:
        values: The eigenvalues, ``[..., rows, cols]``.
        left: The eigenvectors of the rows as columns, ``[..., rows, rows]``. An array with one axis
            represents the identity.
        right: The same for the columns, ``[..., cols, cols]``.
    """

    values: Any
    left: Any
    right: Any

    def row_shape(self) -> tuple[int, ...]:
        """Return the shape of the eigenvalues."""
        return tuple(self.values.shape)

    def into(self, rows: Any) -> Any:
        """Return ``left.T @ row @ right``."""
        if self.left.ndim > 1:
            rows = transposed(self.left) @ rows
        return _times(rows, self.right)

    def back(self, rows: Any) -> Any:
        """Return ``left @ row @ right.T``."""
        if self.left.ndim > 1:
            rows = self.left @ rows
        return _times(rows, transposed(self.right) if self.right.ndim > 1 else self.right)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the eigenvalues and both bases."""
        return {"values": self.values, "left": self.left, "right": self.right}


def same_layout(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether arrays of two shapes have the same elements in the same order.

    One of them may have adjacent axes merged.

    >>> same_layout((2, 3, 4), (2, 12)), same_layout((6, 1), (2, 3)), same_layout((2, 3), (3, 2))
    (True, True, False)
    """
    if math.prod(one) != math.prod(other):
        return False
    outer_edges = {1, math.prod(one)}
    left, right = ({math.prod(s[:axis]) for axis in range(len(s))} for s in (one, other))
    return left - outer_edges <= right or right - outer_edges <= left


def transposed(array: Any) -> Any:
    """Transpose the last two axes."""
    return array_namespace(array).matrix_transpose(array)


def _times(rows: Any, right: Any) -> Any:
    """Return ``row @ right`` for each row, as one large product if ``right`` is one matrix."""
    if right.ndim == 1:
        return rows
    if right.ndim == 2:
        flat = rows.reshape(math.prod(rows.shape[:-1]), rows.shape[-1]) @ right
        return flat.reshape(*rows.shape[:-1], right.shape[1])
    return rows @ right


def without_rounding(values: np.ndarray) -> np.ndarray:
    """Set eigenvalues ``[..., n]`` to 0 that are within rounding error."""
    greatest = np.abs(values).max(-1, keepdims=True, initial=0)
    least = values.shape[-1] * np.finfo(np.float64).eps * greatest
    return np.where(np.abs(values) > least, values, 0.0)


def decomposed(moment: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenvalues ``[..., n]`` and eigenvectors of a second moment.

    A moment with one axis is a diagonal, whose eigenvectors are returned as ones. A moment has no
    negative eigenvalues except by rounding, so they are set to 0.
    """
    moment = np.asarray(moment, np.float64)
    if moment.ndim == 1:
        return np.maximum(moment, 0), np.ones(len(moment))
    values, vectors = eigh(moment)
    return np.maximum(without_rounding(values), 0), vectors


def outer(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the outer product of the eigenvalues of two sides, ``[..., rows, cols]``."""
    return left[..., :, None] * right[..., None, :]
