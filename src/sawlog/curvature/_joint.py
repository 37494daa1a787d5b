"""Curvature over all layers together: one dense matrix, for small models."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sawlog.curvature._damping import Spectrum
from sawlog.curvature._layer import same_layout
from sawlog.errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class Joint:
    """A symmetric matrix over the concatenated gradients of all layers.

    Args:
        matrix: ``[elements, elements]`` in float64.
        shapes: The shape of the gradient of each layer, in the order of the matrix.

    >>> joint = Joint(np.array([[2.0, 1.0], [1.0, 2.0]]), {"a": (1,), "b": (1,)})
    >>> solved = joint.solve({"a": np.array([[3.0]]), "b": np.array([[0.0]])}, {"a": 0.0, "b": 0.0})
    >>> float(solved["a"][0, 0]), float(solved["b"][0, 0])
    (2.0, -1.0)
    """

    matrix: np.ndarray
    shapes: Mapping[str, tuple[int, ...]]

    def __post_init__(self) -> None:
        size = sum(map(math.prod, self.shapes.values()))
        if self.matrix.shape != (size, size):
            raise ArgumentError(
                f"The gradients have {size} elements, but the matrix is {list(self.matrix.shape)}."
            )

    def spectrum(self, name: str) -> Spectrum:
        """Return the spectrum of the whole matrix, which is the same for every layer.

        Raises:
            ArgumentError: The layer does not exist.
        """
        if name not in self.shapes:
            raise ArgumentError(
                f"The curvature has no layer {name!r}; it was fitted to: {', '.join(self.shapes)}."
            )
        return self._spectrum

    @functools.cached_property
    def _spectrum(self) -> Spectrum:
        trace = float(np.trace(self.matrix))
        if trace <= 0:
            return Spectrum(0.0, 0.0)
        return Spectrum(trace / len(self.matrix), float((self.matrix**2).sum()) / trace)

    def _slices(self) -> dict[str, slice]:
        slices, start = {}, 0
        for name, shape in self.shapes.items():
            slices[name] = slice(start, start + math.prod(shape))
            start += math.prod(shape)
        return slices

    def solve(
        self, rows: Mapping[str, np.ndarray], added: Mapping[str, float]
    ) -> dict[str, np.ndarray]:
        """Return ``(H + D)^-1 g`` for the gradients of each example.

        Args:
            rows: Gradients ``[n, ...]`` of every layer.
            added: The damping of each layer.

        Raises:
            ArgumentError: Layers are missing, shapes differ, or the damped matrix is singular.
        """
        flat = self._flat(rows)
        damped, slices = self.matrix.copy(), self._slices()
        for name, own in slices.items():
            damped[range(own.start, own.stop), range(own.start, own.stop)] += added[name]
        try:
            solved = np.linalg.solve(damped, flat.T).T
        except np.linalg.LinAlgError as error:
            raise ArgumentError(
                "The curvature is singular without damping. Hint: damping=None chooses one."
            ) from error
        return {n: solved[:, own].reshape(rows[n].shape) for n, own in slices.items()}

    def transform(
        self,
        rows: Mapping[str, np.ndarray],
        function: Callable[[str, np.ndarray], np.ndarray],
    ) -> dict[str, np.ndarray]:
        """Return ``f(H) g`` for the gradients of each example.

        ``function`` gets ``""`` and the eigenvalues of the whole matrix.
        """
        flat = self._flat(rows)
        values, basis = self._decomposed
        turned = (flat @ basis * function("", values)) @ basis.T
        return {n: turned[:, own].reshape(rows[n].shape) for n, own in self._slices().items()}

    @functools.cached_property
    def _decomposed(self) -> tuple[np.ndarray, np.ndarray]:
        values, basis = np.linalg.eigh(self.matrix)
        return np.maximum(values, 0.0), basis

    def _flat(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        if set(rows) != set(self.shapes):
            raise ArgumentError(
                f"This curvature couples the layers {', '.join(self.shapes)}, so it needs the "
                f"gradients of all of them; got those of {', '.join(rows)}. Hint: omit names=."
            )
        parts = []
        for name, shape in self.shapes.items():
            part = np.asarray(rows[name], np.float64)
            if not same_layout(part.shape[1:], shape):
                raise ArgumentError(
                    f"The gradients of {name!r} have the shape {list(part.shape[1:])}, but the "
                    f"curvature is for {list(shape)}. Hint: log whole gradients, without compress."
                )
            parts.append(part.reshape(len(part), -1))
        return np.concatenate(parts, 1)

    def to_json(self) -> list[Any]:
        """Return the layers and their shapes as JSON values."""
        return [[name, list(shape)] for name, shape in self.shapes.items()]

    @classmethod
    def of(cls, matrix: np.ndarray, shapes: list[Any]) -> Joint:
        """Make one from the matrix and the result of :meth:`to_json`."""
        return cls(matrix, {name: tuple(shape) for name, shape in shapes})
