"""A curvature over all layers together: one dense matrix, for small models."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sawlog.curvature._damping import Spectrum
from sawlog.curvature._layer import same_layout
from sawlog.errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class Joint:
    """A symmetric matrix over the gradients of all layers, one after the other.

    Args:
        matrix: ``[elements, elements]`` in float64.
        shapes: the layers in the order of the matrix, and the shapes of their gradients.

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
                f"The gradients have {size} elements, and the matrix is {list(self.matrix.shape)}."
            )

    def spectrum(self, name: str) -> Spectrum:
        """What damping goes by: that of the whole matrix, the same for every layer.

        Raises:
            ArgumentError: there is no such layer.
        """
        if name not in self.shapes:
            raise ArgumentError(
                f"The curvature does not know the layer {name!r}; it was fitted to: "
                f"{', '.join(self.shapes)}."
            )
        return self._spectrum

    @functools.cached_property
    def _spectrum(self) -> Spectrum:
        trace = float(np.trace(self.matrix))
        if trace <= 0:
            return Spectrum(0.0, 0.0)
        return Spectrum(trace / len(self.matrix), float((self.matrix**2).sum()) / trace)

    def _places(self) -> dict[str, slice]:
        places, start = {}, 0
        for name, shape in self.shapes.items():
            places[name] = slice(start, start + math.prod(shape))
            start += math.prod(shape)
        return places

    def solve(
        self, rows: Mapping[str, np.ndarray], added: Mapping[str, float]
    ) -> dict[str, np.ndarray]:
        """``(H + D)^-1 g`` for the gradients of each example, with an amount on each layer.

        Raises:
            ArgumentError: not all layers are there, they do not fit, or nothing is added to a
                matrix that has no inverse.
        """
        flat = self._flat(rows)
        damped, places = self.matrix.copy(), self._places()
        for name, place in places.items():
            damped[range(place.start, place.stop), range(place.start, place.stop)] += added[name]
        try:
            solved = np.linalg.solve(damped, flat.T).T
        except np.linalg.LinAlgError as error:
            raise ArgumentError(
                "The curvature has no inverse without damping. Hint: damping=None chooses one."
            ) from error
        return {n: solved[:, place].reshape(rows[n].shape) for n, place in places.items()}

    def _flat(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        if set(rows) != set(self.shapes):
            raise ArgumentError(
                f"This curvature couples the layers {', '.join(self.shapes)}, and needs the "
                f"gradients of all of them, got those of {', '.join(rows)}. Hint: leave out names=."
            )
        parts = []
        for name, shape in self.shapes.items():
            part = np.asarray(rows[name], np.float64)
            if not same_layout(part.shape[1:], shape):
                raise ArgumentError(
                    f"The gradients of {name!r} have the shape {list(part.shape[1:])}, and the "
                    f"curvature is one of {list(shape)}. Hint: log whole gradients, without "
                    "compress."
                )
            parts.append(part.reshape(len(part), -1))
        return np.concatenate(parts, 1)

    def to_json(self) -> list[Any]:
        """The layers and their shapes."""
        return [[name, list(shape)] for name, shape in self.shapes.items()]

    @classmethod
    def of(cls, matrix: np.ndarray, said: list[Any]) -> Joint:
        """From the matrix and what :meth:`to_json` gave."""
        return cls(matrix, {name: tuple(shape) for name, shape in said})
