"""Batches with labels drawn from the model, for the true Fisher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from sawlog.capture._label_sampling import LabelSampling
from sawlog.errors import ArgumentError

SampleLabels = Callable[[Any, Any, Any], Any]
"""Maps parameters, a batch and one random key for each example to a batch with other labels."""

NEEDED = (
    'fisher="true" measures curvature with labels drawn from the model, and nothing says how to '
    "draw them. Hint: run.watch(loss_fn, params, batch, sample_labels=sample), where "
    "sample(params, batch, keys) returns the batch with labels drawn from the outputs of the "
    "model, with one random key for each example."
)


class DrawnLabels:
    """Draws the labels of batches with a function of the user.

    Args:
        sample: The function, see :data:`SampleLabels`; None if the user gave none.
    """

    def __init__(self, sample: SampleLabels | None) -> None:
        self._sample = None if sample is None else jax.jit(sample)

    def batch(self, params: Any, batch: Any, sampling: LabelSampling) -> Any:
        """Return a batch with drawn labels, which depend on the seed and the ids alone.

        Raises:
            ArgumentError: There is no function, or it returns something unlike the batch.
        """
        if self._sample is None:
            raise ArgumentError(NEEDED)
        drawn = self._sample(params, batch, keys_of(sampling))
        expected, found = _types(batch), _types(drawn)
        if expected != found:
            raise ArgumentError(
                "`sample_labels` must return a batch like the one it is given, with other labels; "
                f"got {_difference(expected, found)}. Hint: return {{**batch, 'label': labels}}, "
                "with labels of the same shape and dtype."
            )
        return drawn


def keys_of(sampling: LabelSampling) -> Any:
    """Return one random key for each example of a batch."""
    bits = (sampling.uniforms(2) * 2.0**32).astype(np.uint32)
    return jax.random.wrap_key_data(jax.numpy.asarray(bits), impl="threefry2x32")


def _types(batch: Any) -> tuple[Any, list[Any]]:
    leaves, structure = jax.tree.flatten(batch)
    return structure, [(np.shape(x), jax.numpy.result_type(x)) for x in leaves]


def _difference(expected: Any, found: Any) -> str:
    if expected[0] != found[0]:
        return f"another structure, {found[0]}"
    pairs = zip(expected[1], found[1], strict=True)
    (shape, dtype), (new, kind) = next(pair for pair in pairs if pair[0] != pair[1])
    return f"an array {list(new)} of {kind} for one {list(shape)} of {dtype}"
