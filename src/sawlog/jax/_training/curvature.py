"""Influence functions at the end of a run: smooth guesses beside its rough derivatives.

Derivatives through many steps can be rough, and an average over few runs noisy. An influence
function at the last state is biased, but smooth. Averages give it a weight that is large as long as
runs disagree, and tends to 0 with the number of runs.

The curvature is the mean of ``g g^T / (2 loss)`` over all examples, with the gradient ``g`` of the
loss of one example. For a squared error of one output this is the Gauss-Newton matrix; for other
losses whose minimum is 0 it is the part of it along the gradient of each example. Examples that the
run did not use count as well: the average is over runs that use others.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog.jax._training.program import TrainingProgram
from sawlog.jax._training.states import Arrays

#: Dampings, relative to the mean eigenvalue weighted by itself.
DAMPINGS = (0.001, 0.01, 0.1)
#: How many numbers the gradients of all examples may have; more, and there is no guess.
LARGEST = 250_000_000
#: The largest number of examples that the curvature is computed from.
ROWS = 1000
#: Gradients are computed for as many examples at once.
TOGETHER = 256


class EndInfluence:
    """Influence functions at the last state of runs of one program.

    Args:
        program: The training program.
        data: Arrays with one row for each example.
    """

    def __init__(self, program: TrainingProgram, data: Any) -> None:
        self._program, self._data = program, data
        self._losses: Any = program.losses
        self._compiled = jax.jit(self._scores)

    def scores(self, last: Arrays, slopes: list[Any]) -> np.ndarray | None:
        """Return scores of each damping, ``[3, q, n]``, NaN if some are not finite; or None.

        Args:
            last: The last state of the run.
            slopes: The derivatives of the queries by the last state, ``[q, *shape]`` each.
        """
        if not self.possible(last, len(slopes[0])):
            return None
        found = np.asarray(self._compiled(last, slopes, self._data))
        return found if np.isfinite(found).all() else np.full_like(found, np.nan)

    def possible(self, last: Arrays, queries: int) -> bool:
        """Return whether the losses are known, and the gradients small enough."""
        if self._losses is None:
            return False
        size = sum(leaf.size for leaf in last[0][: self._program.trained])
        count = len(jax.tree.leaves(self._data)[0])
        return size * (count + queries) <= LARGEST and self._takes_one(last)

    def _takes_one(self, last: Arrays) -> bool:
        """Return whether the loss can be computed for a batch of one example."""
        first = jax.tree.map(lambda a: a[:1], self._data)
        try:
            return jax.eval_shape(self._losses, last, first).shape == (1,)
        except Exception:  # a loss may be written for one size of batches only
            return False

    def _scores(self, last: Arrays, slopes: list[Any], data: Any) -> Any:
        losses, g = self._gradients(last, data)
        q = _rows(slopes[: self._program.trained])
        # Gradients shrink with the loss; without this, examples that fit would not count.
        usual = jnp.where((losses >= 0).all(), jnp.sqrt(2 * jnp.abs(losses) + 1e-12), 1)
        chosen = slice(None, None, -(-len(g) // ROWS))
        scale = 1 / usual[chosen].astype(g.dtype)
        scale = scale / len(scale) ** 0.5
        # The rows of the curvature are gradients too: one product has all that is needed.
        of_g, plain = scale[:, None] * (g[chosen] @ g.T), q @ g.T
        gram, of_q = of_g[:, chosen] * scale, plain[:, chosen] * scale
        size = (gram**2).sum() / jnp.maximum(jnp.trace(gram), 1e-30)
        found = []
        for damping in DAMPINGS:
            d = damping * size
            damped = gram + d * jnp.eye(len(gram), dtype=gram.dtype)
            inner = jax.scipy.linalg.solve(damped, of_q.T, assume_a="pos")
            found.append((plain - inner.T @ of_g) / d)  # Woodbury's identity
        return jnp.stack(found)

    def _gradients(self, last: Arrays, data: Any) -> tuple[Any, Any]:
        """Return the loss of each example, ``[n]``, and its gradient, ``[n, p]``."""
        count = self._program.trained

        def one(example: Any) -> tuple[Any, Any]:
            def value(trained: list[Any]) -> Any:
                arrays = ([*trained, *last[0][count:]], last[1])
                batch = jax.tree.map(lambda a: a[None], example)
                return self._losses(arrays, batch)[0]

            loss, slopes = jax.value_and_grad(value)(last[0][:count])
            return loss, jnp.concatenate([leaf.ravel() for leaf in slopes])

        return jax.lax.map(one, data, batch_size=TOGETHER)


def _rows(leaves: list[Any]) -> Any:
    """Return arrays ``[q, *shape]`` as one matrix, ``[q, p]``."""
    return jnp.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], 1)
