"""A curvature that is known by its products with vectors, inverted by conjugate gradients."""

from __future__ import annotations

import functools
import math
import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from sawlog._array_device import device_of, to_numpy
from sawlog._validate import positive_integer, positive_number
from sawlog.curvature._curvature import Curvature
from sawlog.curvature._damping import JOINT, Damping, Spectrum, amount
from sawlog.curvature._layer import same_layout
from sawlog.errors import ArgumentError

Rows = dict[str, np.ndarray]
#: From rows ``[n, ...]`` by layer to ``H v`` for each row ``v``, in float64.
Product = Callable[[Rows], Rows]

PROBES = 16  # random vectors from which the mean eigenvalue is estimated


class ConjugateGradients(Curvature):
    """A curvature over all layers together, of which only products with vectors are known.

    ``(H + d)^-1 g`` is solved by conjugate gradients, preconditioned by an approximation such as
    EK-FAC. So the result is that of the exact matrix, for models whose matrix is too large to be
    formed. Each iteration takes one product for each query.

    Args:
        product: The products ``H v``: a function from rows ``[n, *shape]`` by layer to the same.
            ``H`` must be symmetric without negative eigenvalues.
        shapes: The shape of the gradient of each layer.
        preconditioner: A fitted curvature of the same layers, or None for none.
        kind: The name of the curvature.
        count: The number of examples that it is a mean over.
        iterations: The most iterations.
        tolerance: The norm of the residual at which a query is solved, as a share of the norm of
            its gradient.
        provenance: As for :class:`Curvature`.

    >>> matrix = np.array([[2.0, 1.0], [1.0, 3.0]])
    >>> exact = ConjugateGradients(lambda rows: {"w": rows["w"] @ matrix}, {"w": (2,)})
    >>> exact.solve_all({"w": np.array([[3.0, 4.0]])}, damping=0.0)["w"].round(6)
    array([[1., 1.]])
    """

    def __init__(
        self,
        product: Product,
        shapes: Mapping[str, tuple[int, ...]],
        preconditioner: Curvature | None = None,
        *,
        kind: str = "products",
        count: int | None = None,
        iterations: int = 100,
        tolerance: float = 1e-4,
        provenance: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(kind, {}, None, count, provenance)
        self.product: Product | None = product
        self.shapes = dict(shapes)
        self.preconditioner = preconditioner
        self.iterations = positive_integer("iterations", iterations)
        self.tolerance = positive_number("tolerance", tolerance)
        #: The greatest residual of the last call, as a share of the norm of a gradient.
        self.residual = math.nan
        self._check_preconditioner()

    def _check_preconditioner(self) -> None:
        own = self.preconditioner
        if own is None:
            return
        known = own.layers if own.joint is None else own.joint.shapes
        if own.kind != "identity" and set(known) != set(self.shapes):
            raise ArgumentError(
                f"The preconditioner has the layers {', '.join(known)}, and the products those of "
                f"{', '.join(self.shapes)}. Hint: fit it to whole gradients of the same layers."
            )

    def __repr__(self) -> str:
        how = "none" if self.preconditioner is None else self.preconditioner.kind
        return f"ConjugateGradients({self.kind!r}, {len(self.shapes)} layers, preconditioner {how})"

    def added(self, name: str, damping: Damping = None) -> float:
        """Return the number that ``damping`` adds to the eigenvalues.

        The default depends on the mean eigenvalue, which is estimated from products with random
        vectors.
        """
        if name not in self.shapes:
            raise ArgumentError(
                f"The curvature has no layer {name!r}; it has: {', '.join(self.shapes)}."
            )
        own = damping.get(name) if isinstance(damping, Mapping) else damping
        plain = isinstance(own, numbers.Real)  # needs no products
        spectrum = Spectrum(0.0, 0.0) if plain else self._spectrum
        return amount(damping, name, spectrum, JOINT, self.count)

    @functools.cached_property
    def _spectrum(self) -> Spectrum:
        random = np.random.default_rng(0)
        probes = {
            name: random.choice([-1.0, 1.0], (PROBES, *shape))
            for name, shape in self.shapes.items()
        }
        found = self._multiplied(probes)
        trace = float(_dots(probes, found).mean())
        if trace <= 0:
            return Spectrum(0.0, 0.0)
        size = sum(map(math.prod, self.shapes.values()))
        return Spectrum(trace / size, float(_dots(found, found).mean()) / trace)

    def _multiplied(self, rows: Rows) -> Rows:
        if self.product is None:
            raise ArgumentError("The products of this curvature are not known in this process.")
        found = self.product(rows)
        if set(found) != set(rows):
            raise ArgumentError(f"`product` must return the layers {', '.join(rows)}.")
        return {n: np.asarray(found[n], np.float64).reshape(rows[n].shape) for n in rows}

    def _preconditioned(self, rows: Rows, added: Mapping[str, float]) -> Rows:
        if self.preconditioner is None or self.preconditioner.kind == "identity":
            return rows
        return self.preconditioner.solve_all(rows, added)

    def solve_all(self, rows: Mapping[str, Any], damping: Damping = None) -> dict[str, Any]:
        """Return ``(H + d)^-1 g`` for the rows of all layers.

        Raises:
            ArgumentError: Layers or shapes differ, the matrix has a negative eigenvalue, or a row
                is not solved after the most iterations.
        """
        right = self._checked(rows)
        added = {name: self.added(name, damping) for name in self.shapes}
        solved = self._solve(right, added)
        return {n: device_of(rows[n]).put(solved[n].reshape(rows[n].shape)) for n in rows}

    def _solve(self, right: Rows, added: Mapping[str, float]) -> Rows:
        lengths = np.sqrt(_dots(right, right))
        scale = np.where(lengths == 0, 1.0, lengths)
        solution = {name: np.zeros_like(values) for name, values in right.items()}
        residual = dict(right)
        turned = self._preconditioned(residual, added)
        direction, inner = turned, _dots(residual, turned)
        self.residual = 1.0 if lengths.any() else 0.0
        for _ in range(self.iterations):
            if self.residual <= self.tolerance:
                return solution
            multiplied = self._multiplied(direction)
            damped = {n: multiplied[n] + added[n] * direction[n] for n in direction}
            bent = _dots(direction, damped)
            if (bent < 0).any():
                raise ArgumentError(
                    "The damped curvature has a negative eigenvalue, so conjugate gradients cannot "
                    "invert it. Hint: more damping, or products of a Gauss-Newton matrix."
                )
            step = inner / np.where(bent == 0, 1.0, bent)
            solution = _plus(solution, step, direction)
            residual = _plus(residual, -step, damped)
            turned = self._preconditioned(residual, added)
            after = _dots(residual, turned)
            direction = _plus(turned, after / np.where(inner == 0, 1.0, inner), direction)
            inner = after
            self.residual = float((np.sqrt(_dots(residual, residual)) / scale).max())
        if self.residual <= self.tolerance:
            return solution
        raise ArgumentError(
            f"After {self.iterations} iterations of conjugate gradients, a residual is "
            f"{self.residual:.2g} of its gradient, above tolerance={self.tolerance:g}. Hint: more "
            "iterations=, a larger tolerance= or damping=, or a better preconditioner."
        )

    def _checked(self, rows: Mapping[str, Any]) -> Rows:
        if set(rows) != set(self.shapes):
            raise ArgumentError(
                f"This curvature couples the layers {', '.join(self.shapes)}, so it needs the "
                f"gradients of all of them; got those of {', '.join(rows)}. Hint: omit names=."
            )
        found = {}
        for name, shape in self.shapes.items():
            values = to_numpy(rows[name]).astype(np.float64)
            if not same_layout(tuple(values.shape[1:]), shape):
                raise ArgumentError(
                    f"The gradients of {name!r} have the shape {list(values.shape[1:])}, but the "
                    f"curvature is for {list(shape)}. Hint: log whole gradients, without compress."
                )
            found[name] = values.reshape(len(values), *shape)
        return found

    def quadratic_all(self, rows: Mapping[str, Any], damping: Damping = None) -> NoReturn:
        """Raise an error: norms would need a solution for each stored example."""
        raise ArgumentError(
            "Norms under a curvature that is solved by conjugate gradients would need a solution "
            'for each stored example. Hint: mode="dot", or curvature="ekfac".'
        )

    def save(
        self, path: str | os.PathLike[str], notes: Mapping[str, Any] | None = None
    ) -> NoReturn:
        """Raise an error: products are a function of this process."""
        raise ArgumentError(
            "A curvature that is known by its products cannot be saved. Hint: save the scores."
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for other processes, which need no products."""
        return {**super().__getstate__(), "product": None}


def _dots(one: Rows, other: Rows) -> np.ndarray:
    """Return the dot product of each pair of rows, over all layers."""
    parts = [(values * other[name]).reshape(len(values), -1).sum(1) for name, values in one.items()]
    total: np.ndarray = np.sum(parts, axis=0)
    return total


def _plus(one: Rows, factors: np.ndarray, other: Rows) -> Rows:
    """Return ``one + factors * other``, with a factor for each row."""
    return {
        name: values + factors.reshape(-1, *(1,) * (values.ndim - 1)) * other[name]
        for name, values in one.items()
    }
