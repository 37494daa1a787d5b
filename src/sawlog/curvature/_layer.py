"""The curvature of one layer: a basis, and an eigenvalue for each of its directions.

Everything is in float64. Rows are gradients ``[n, *shape]``, arrays of the library that the layer's
own are of.
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


class Layer(abc.ABC):
    """A symmetric matrix over the gradients of a layer, by its eigenvectors and eigenvalues."""

    values: Any
    damping: ClassVar[Sampled] = FACTORED  #: the default

    @property
    def outside(self) -> int:
        """How many directions there are beside those of the basis; their eigenvalue is 0."""
        return math.prod(self.row_shape()) - math.prod(self.values.shape)

    def spectrum(self) -> Spectrum:
        """What damping goes by."""
        return Spectrum.of(self.values, self.outside)

    def to(self, place: ArrayDevice) -> Self:
        """The same with its arrays elsewhere."""
        if place == NUMPY:
            return self
        moved = {n: place.put(array) for n, array in self.arrays().items() if n != "shape"}
        return dataclasses.replace(self, **moved)  # type: ignore[type-var]

    def scaled(self, rows: Any, scale: Any, rest: float) -> Any:
        """Rows whose directions are multiplied with ``scale``, those outside with ``rest``."""
        if not self.outside:
            return self.back(self.into(rows) * scale)
        return self.back(self.into(rows) * (scale - rest)) + rows * rest

    def weighed(self, rows: Any, scale: Any, rest: float) -> Any:
        """The sums of squares of each row ``[n]``, weighed in the same way."""
        turned = self.into(rows).reshape(len(rows), -1)
        if not self.outside:
            return turned**2 @ scale.reshape(-1)
        flat = rows.reshape(len(rows), -1)
        return turned**2 @ (scale.reshape(-1) - rest) + (flat**2).sum(1) * rest

    @abc.abstractmethod
    def row_shape(self) -> tuple[int, ...]:
        """The shape of a gradient."""

    @abc.abstractmethod
    def into(self, rows: Any) -> Any:
        """Rows in the basis, in the shape of :attr:`values`."""

    @abc.abstractmethod
    def back(self, rows: Any) -> Any:
        """Rows out of the basis."""

    @abc.abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """What there is to store of it."""


@dataclasses.dataclass(frozen=True)
class Diagonal(Layer):
    """Every element is a direction of its own; ``values`` has the shape of a gradient."""

    values: Any

    def row_shape(self) -> tuple[int, ...]:
        """That of the eigenvalues."""
        return tuple(self.values.shape)

    def into(self, rows: Any) -> Any:
        """The rows as they are."""
        return rows

    def back(self, rows: Any) -> Any:
        """The rows as they are."""
        return rows

    def arrays(self) -> dict[str, np.ndarray]:
        """The eigenvalues."""
        return {"values": self.values}


@dataclasses.dataclass(frozen=True)
class FullMatrix(Layer):
    """A basis of whole gradients: the columns of ``basis`` ``[elements, directions]``.

    There are fewer directions than elements if it was fitted to fewer examples than that.
    """

    damping: ClassVar[Sampled] = DENSE

    values: Any
    basis: Any
    shape: tuple[int, ...]

    def row_shape(self) -> tuple[int, ...]:
        """That of a gradient."""
        return self.shape

    def into(self, rows: Any) -> Any:
        """Rows ``[n, directions]``."""
        return rows.reshape(len(rows), -1) @ self.basis

    def back(self, rows: Any) -> Any:
        """Rows in the shape of gradients."""
        return (rows @ self.basis.T).reshape(len(rows), *self.shape)

    def arrays(self) -> dict[str, np.ndarray]:
        """The eigenvalues, the basis, the shape."""
        return {"values": self.values, "basis": self.basis, "shape": np.array(self.shape)}

    @classmethod
    def of_rows(cls, rows: np.ndarray, shape: tuple[int, ...]) -> FullMatrix:
        """The mean of the outer products of rows ``[n, elements]``, fewer of them than elements.

        By the singular values of the rows, which are the roots of the eigenvalues: small ones are
        found to as many digits as large ones, and the matrix over all elements is never made.
        """
        basis, triangle = np.linalg.qr(rows.T)
        inner, roots, _ = np.linalg.svd(triangle)
        values = without_rounding(roots / math.sqrt(len(rows))) ** 2
        seen = values > 0
        return cls(values[seen], basis @ inner[:, seen], tuple(shape))

    @classmethod
    def of(cls, matrix: np.ndarray, shape: tuple[int, ...]) -> FullMatrix:
        """By the eigenvectors of a symmetric matrix, such as a Hessian.

        Eigenvalues that are rounding count as 0. One that is truly negative stays that: solving
        then asks for damping that makes up for it.

        Raises:
            ArgumentError: the matrix is not symmetric, or not over gradients of this shape.
        """
        matrix = np.asarray(matrix, np.float64)
        size = math.prod(shape)
        if matrix.shape != (size, size):
            raise ArgumentError(
                f"Gradients of the shape {list(shape)} have {size} elements, and the matrix has "
                f"the shape {list(matrix.shape)}."
            )
        if not np.abs(matrix - matrix.T).max(initial=0) <= 1e-6 * np.abs(matrix).max(initial=0):
            raise ArgumentError("A curvature is symmetric and finite, and this matrix is not.")
        values, basis = np.linalg.eigh(matrix)
        return cls(without_rounding(values), basis, tuple(shape))


@dataclasses.dataclass(frozen=True)
class Kronecker(Layer):
    """Bases of both sides of gradients ``[..., rows, cols]``; one with one axis is the identity."""

    values: Any
    left: Any
    right: Any

    def row_shape(self) -> tuple[int, ...]:
        """That of the eigenvalues."""
        return tuple(self.values.shape)

    def into(self, rows: Any) -> Any:
        """``left.T @ row @ right``."""
        if self.left.ndim > 1:
            rows = transposed(self.left) @ rows
        return _times(rows, self.right)

    def back(self, rows: Any) -> Any:
        """``left @ row @ right.T``."""
        if self.left.ndim > 1:
            rows = self.left @ rows
        return _times(rows, transposed(self.right) if self.right.ndim > 1 else self.right)

    def arrays(self) -> dict[str, np.ndarray]:
        """The eigenvalues and both bases."""
        return {"values": self.values, "left": self.left, "right": self.right}


def same_layout(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether arrays of two shapes have the same elements in the same order.

    One of them may have neighbouring axes merged, up to all of them.

    >>> same_layout((2, 3, 4), (2, 12)), same_layout((6, 1), (2, 3)), same_layout((2, 3), (3, 2))
    (True, True, False)
    """
    if math.prod(one) != math.prod(other):
        return False
    outer_edges = {1, math.prod(one)}
    left, right = ({math.prod(s[:axis]) for axis in range(len(s))} for s in (one, other))
    return left - outer_edges <= right or right - outer_edges <= left


def transposed(array: Any) -> Any:
    """Every matrix ``[..., rows, cols]`` the other way round."""
    return array_namespace(array).matrix_transpose(array)


def _times(rows: Any, right: Any) -> Any:
    """``row @ right`` for each row; one product of large matrices if they share one ``right``."""
    if right.ndim == 1:
        return rows
    if right.ndim == 2:
        flat = rows.reshape(math.prod(rows.shape[:-1]), rows.shape[-1]) @ right
        return flat.reshape(*rows.shape[:-1], right.shape[1])
    return rows @ right


def without_rounding(values: np.ndarray) -> np.ndarray:
    """Eigenvalues ``[..., n]`` of matrices, with 0 for those that are nothing but rounding."""
    greatest = np.abs(values).max(-1, keepdims=True, initial=0)
    least = values.shape[-1] * np.finfo(np.float64).eps * greatest
    return np.where(np.abs(values) > least, values, 0.0)


def decomposed(moment: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The eigenvalues ``[..., n]`` and eigenvectors of a moment; ones for those of a diagonal.

    A moment has no negative eigenvalues but by rounding, so they count as 0.
    """
    moment = np.asarray(moment, np.float64)
    if moment.ndim == 1:
        return np.maximum(moment, 0), np.ones(len(moment))
    values, vectors = np.linalg.eigh(moment)
    return np.maximum(without_rounding(values), 0), vectors


def outer(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """All products of the eigenvalues of two sides, ``[..., rows, cols]``."""
    return left[..., :, None] * right[..., None, :]


def layer_from(arrays: dict[str, Any]) -> Layer:
    """A layer from what :meth:`Layer.arrays` gave."""
    if "basis" in arrays:
        shape = tuple(int(size) for size in arrays["shape"])
        return FullMatrix(arrays["values"], arrays["basis"], shape)
    if "left" in arrays:
        return Kronecker(arrays["values"], arrays["left"], arrays["right"])
    return Diagonal(arrays["values"])
