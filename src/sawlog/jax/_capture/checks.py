"""What loss functions and projections must look like."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sawlog.errors import ArgumentError, CaptureError
from sawlog.jax._capture.axes import Mixed
from sawlog.run_files._blocks import Block


def check_array(losses: Any) -> None:
    """Raise an ArgumentError if a loss function did not return an array."""
    if not hasattr(losses, "shape") and not isinstance(losses, (int, float)):
        pair = isinstance(losses, tuple) and len(losses) == 2
        more = "Hint: has_aux=True for (losses, aux)." if pair else "Hint: return an array."
        raise ArgumentError(
            f"The loss function must return one array of losses; got {type(losses).__name__}. "
            f"{more}"
        )


def check_matrices(block: Block, sides: tuple[Any, Any]) -> None:
    """Raise an ArgumentError if the matrices do not fit the rows and columns of a block."""
    *groups, rows, cols = block.shape
    for side, matrix, size in zip(("left", "right"), sides, (rows, cols), strict=True):
        if matrix is None:
            continue
        shape = tuple(np.shape(matrix))
        if shape[:-1] not in ((*groups, size), (math.prod(groups), size) if groups else (size,)):
            wanted = ", ".join(map(str, (*groups, size, "rank")))
            raise ArgumentError(
                f"The {side} projection of {block.name!r} must have the shape [{wanted}], for a "
                f"block of shape {list(block.shape)}; got {list(shape)}."
            )


def check_losses(aval: Any, reduction: str, examples: int) -> None:
    """Raise an ArgumentError if the losses do not have the declared shape."""
    wanted = (examples,) if reduction == "none" else ()
    if tuple(aval.shape) != wanted:
        more = (
            'Hint: return one loss for each example, or say reduction="sum" or "mean".'
            if reduction == "none"
            else "Hint: return the sum or mean of the losses of the examples."
        )
        raise ArgumentError(
            f"The loss function must return an array of shape {wanted} with "
            f"reduction={reduction!r}; got {tuple(aval.shape)}. {more}"
        )


def interaction(place: Mixed) -> CaptureError:
    """Return the error for losses that cannot be separated by example."""
    if "cannot be followed" in place.why:
        return CaptureError(
            f"The examples of the batch cannot be separated: {place.where} {place.why}. Hint: "
            "sawlog.jax.register_capture_rule adds a rule for a primitive; or leave the operation "
            "out of the loss."
        )
    if "parameter" in place.why:
        return CaptureError(
            f"The terms of single examples cannot be separated: {place.where} {place.why}. Hint: "
            "add terms of parameters alone, such as weight decay, outside of the function that is "
            "captured, or return one loss for each example."
        )
    if "some of the examples" in place.why:
        return CaptureError(
            f"The examples of the batch cannot be separated: {place.where} {place.why}. Parts of "
            "a batch are followed where it is known which examples they hold when the function is "
            "traced. Hint: slice at static bounds and concatenate in the order of the batch, or "
            "x.reshape(parts, -1, *x.shape[1:]) and jax.lax.map or scan over the parts."
        )
    return CaptureError(
        "The loss of one example depends on other examples of the batch: "
        f"{place.where} {place.why}. "
        "Per-example gradients need losses that are separate. Hint: use running averages in place "
        "of statistics of the batch (batch norm in evaluation mode), return one loss for each "
        "example, or leave the examples along one axis until the end."
    )
