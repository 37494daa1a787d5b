"""Compare the loss of a batch with those of its examples alone: is it their sum, or their mean?

The rows of a loss that is declared wrongly have a wrong factor, which differs between batches of
different sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog.errors import ArgumentError
from sawlog.jax._capture.parameters import examples_of
from sawlog.jax._core.arrays import unsharded
from sawlog.jax._transforms.strip import strip

_JOINED: dict[str, Callable[..., Any]] = {"sum": np.sum, "mean": np.mean}


def refuse_other_reduction(
    losses_of: Callable[[Any], Any], how: str, batch: Any, axes: Sequence[int | None]
) -> None:
    """Refuse a loss that is clearly joined in another way than declared.

    Nothing is said where examples alone have other losses, such as those of a masked mean, or where
    the function does not accept one example.

    Args:
        losses_of: the loss function of a batch.
        how: how the loss joins its examples: ``"none"``, ``"sum"`` or ``"mean"``.
        batch: a batch.
        axes: where its leaves have examples.

    Raises:
        ArgumentError: the loss is the sum and not the mean, or the reverse; or the loss of each
            example is divided by the number of examples.
    """
    size = examples_of(batch, axes)
    alone = _alone(losses_of, batch, axes) if size > 1 else None
    if alone is None:
        return
    found = np.asarray(jax.device_get(strip(losses_of)(batch)), np.float64)
    if how == "none":
        if found.shape == alone.shape and _close(found * size, alone) and not _close(found, alone):
            raise ArgumentError(
                f"The loss of each example is divided by the {size} examples of the batch, so its "
                "gradients would depend on the size of the batch. Hint: return losses that are not "
                'divided, or their mean and run.setup(reduction="mean").'
            )
        return
    (other,) = {*_JOINED} - {how}
    if _close(found, _JOINED[other](alone)) and not _close(found, _JOINED[how](alone)):
        raise ArgumentError(
            f"The loss is the {other} of the losses of the examples, and reduction={how!r} says "
            f'that it is their {how}. Hint: run.setup(reduction="{other}").'
        )


def _alone(
    losses_of: Callable[[Any], Any], batch: Any, axes: Sequence[int | None]
) -> np.ndarray | None:
    """Return the loss of each example as a batch of one; None if the function refuses it."""
    leaves, tree = jax.tree.flatten(batch)
    if not all(getattr(leaf, "is_fully_addressable", True) for leaf in leaves):
        return None
    leaves = [unsharded(jnp.asarray(leaf)) for leaf in leaves]

    def of_one(*one: Any) -> Any:
        expanded = [
            leaf if axis is None else jnp.expand_dims(leaf, axis)
            for leaf, axis in zip(one, axes, strict=True)
        ]
        return jnp.sum(strip(losses_of)(jax.tree.unflatten(tree, expanded)))

    try:
        losses = jax.jit(jax.vmap(of_one, in_axes=tuple(axes)))(*leaves)
    except Exception:  # a function of the user, of a batch that it may not accept
        return None
    found = np.asarray(losses, np.float64)
    return found if np.isfinite(found).all() else None


def _close(one: Any, two: Any) -> bool:
    return bool(np.allclose(one, two, rtol=1e-3, atol=1e-3 * float(np.abs(two).max())))
