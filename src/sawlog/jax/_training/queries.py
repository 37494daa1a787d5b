"""Metrics of queries at the end of a run, and their derivatives by the last state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog.errors import ArgumentError
from sawlog.jax._core.arrays import unsharded
from sawlog.jax._training.program import TrainingProgram
from sawlog.jax._training.states import Arrays
from sawlog.jax._training.stops import with_stops_followed


class Queries:
    """Queries and the metric that is explained.

    Args:
        program: The training program.
        metric: ``metric(model, batch) -> [batch]`` for queries, ``metric(model) -> [q]`` without.
        queries: Arrays with one row for each query, or None.
        model: An example of the last state, to find the number of values without queries.
    """

    def __init__(
        self, program: TrainingProgram, metric: Callable[..., Any], queries: Any, last: Arrays
    ) -> None:
        self._program, self._metric = program, metric
        # XLA maps derivatives of convolutions wrongly over a sharded axis.
        self.queries = jax.tree.map(lambda x: unsharded(jnp.asarray(x)), queries)
        self.values = jax.jit(self.compute)
        found = jax.eval_shape(self.compute, last, self.queries)
        shape = found.shape
        if not jnp.issubdtype(found.dtype, jnp.floating):
            raise ArgumentError(
                f"`metric` must return real numbers that have derivatives; got {found.dtype}. "
                "Hint: a loss or a margin in place of a count or a comparison."
            )
        if self.queries is None:
            if len(shape) != 1:
                raise ArgumentError(
                    f"`metric` must return a vector, one number for each query; got the shape "
                    f"{shape}. Hint: or give `queries`, and metric(model, batch) -> [batch]."
                )
            self.count = shape[0]
        else:
            self.count = len(jax.tree.leaves(self.queries)[0])
            if shape != (self.count,):
                raise ArgumentError(
                    "`metric` must return one number for each query of a batch, of the shape "
                    f"({self.count},); got {shape}."
                )
        self._slopes = jax.jit(self._cotangents)

    def compute(self, arrays: Arrays, queries: Any) -> Any:
        """Return the metric of each query at the end of a run."""
        model = self._program.model(self._program.layout.join(arrays))
        return self._metric(model) if queries is None else self._metric(model, queries)

    def cotangents(self, last: Arrays, begin: int, end: int) -> list[Any]:
        """Return the derivatives of some queries by the last state, ``[Q, *shape]`` each."""
        return self._slopes(last, self.queries, np.arange(begin, end))

    def _cotangents(self, last: Arrays, queries: Any, rows: Any) -> list[Any]:
        def one(inexact: list[Any], row: Any) -> Any:
            arrays = (inexact, last[1])
            if queries is None:
                return self.compute(arrays, None)[row]
            return self.compute(arrays, jax.tree.map(lambda x: x[row][None], queries))[0]

        return jax.vmap(jax.grad(with_stops_followed(one)), in_axes=(None, 0))(last[0], rows)
