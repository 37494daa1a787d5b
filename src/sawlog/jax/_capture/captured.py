"""``Captured``: what a capture returns."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog.errors import CaptureError
from sawlog.factored import Dense, OneHot, Pair
from sawlog.jax._capture.precision import coarse_tolerance

jax.tree_util.register_dataclass(Dense, data_fields=["array"], meta_fields=["one"])
jax.tree_util.register_dataclass(OneHot, data_fields=["ids", "weights"], meta_fields=["size"])
jax.tree_util.register_dataclass(Pair, data_fields=["left", "right"], meta_fields=[])


@dataclasses.dataclass(frozen=True)
class Captured:
    """Per-example quantities of one batch; a pytree, so that ``jit`` can return it.

    Attributes:
        losses: What the loss function returned: ``[examples]``, or a scalar with ``reduction``.
        aux: Its auxiliary output; None without ``has_aux``.
        grads: The gradients of each example: ``[examples, *shape]`` for each parameter, or
            ``[examples, *block.stored]`` for each block if they are projected.
        pairs: The factors of each block, for each use: ``left`` are rows and ``right`` columns of
            the block.
        batch_gradient: The gradient of the batch for each parameter, or projected for each block;
            only with ``prove``.
        coarsest: The least precise type below float32 that the loss is computed with, such as
            ``"bfloat16"`` in mixed precision; None without one.
    """

    losses: Any
    aux: Any
    grads: dict[str, Any]
    pairs: dict[str, tuple[Pair, ...]]
    batch_gradient: dict[str, Any] | None = None
    coarsest: str | None = None

    def is_finite(self) -> bool:
        """Return whether no gradient of an example is infinite or NaN."""
        return all(
            bool(np.isfinite(np.asarray(rows, np.float64)).all()) for rows in self.grads.values()
        )

    def check(self, rtol: float | None = None) -> None:
        """Compare the sum of rows with the gradient of the batch.

        Args:
            rtol: The tolerance, relative to the size of the gradients of a parameter. By default
                it is chosen for the types that the loss is computed with. Rounding errors of the
                largest gradients are allowed in addition, for gradients that are zero but for them.

        Raises:
            CaptureError: They differ, or the capture was not made with ``prove=True``.
        """
        if self.batch_gradient is None:
            raise CaptureError(
                "There is no gradient of the batch to compare with. "
                "Hint: capture(loss_fn, ..., prove=True)."
            )
        wrong = []
        sums = {name: _sums(self.grads[name], each) for name, each in self.batch_gradient.items()}
        largest = max((scale for _, _, scale in sums.values()), default=0.0)
        for name, (total, whole, scale) in sums.items():
            dtype = self.grads[name].dtype
            usual = max(_tolerance(dtype), coarse_tolerance(self.coarsest))
            allowed = scale * (usual if rtol is None else rtol)
            error = np.abs(total - whole).max(initial=0.0)
            if not error <= allowed + _rounding(dtype) * largest + np.finfo(np.float64).tiny:
                wrong.append(f"{name} (by {error / scale:.1e})")
        if wrong:
            raise CaptureError(
                "The rows of these parameters do not add up to the gradient of the batch: "
                f"{', '.join(wrong)}. Hint: a custom derivative that clips or normalises gradients "
                "is another one for the batch than for its examples; names= leaves parameters out. "
                "Without one, please report the loss function."
            )


def _sums(rows: Any, whole: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the sum of rows, the gradient of the batch, and the size of their terms."""
    rows, whole = np.asarray(rows, np.float64), np.asarray(whole, np.float64)
    scale = np.abs(rows).sum(0).max(initial=0.0) + np.abs(whole).max(initial=0.0)
    return rows.sum(0), whole, float(scale)


def _rounding(dtype: Any) -> float:
    """Return the error of a gradient that cancels to zero, relative to the largest gradients.

    The bias of the keys of an attention is one: its gradient is what rounding leaves of others.
    """
    kind = jnp.finfo(dtype)
    return float(kind.eps) * (100 if kind.bits >= 32 else 1)


def _tolerance(dtype: Any) -> float:
    """Return the tolerance of sums; parts of a float64 program, such as a softmax, are float32."""
    return float(jnp.finfo(dtype).eps) ** 0.5 if jnp.finfo(dtype).bits < 64 else 1e-6


jax.tree_util.register_dataclass(
    Captured,
    data_fields=["losses", "aux", "grads", "pairs", "batch_gradient"],
    meta_fields=["coarsest"],
)
