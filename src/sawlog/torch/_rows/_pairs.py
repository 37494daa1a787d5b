"""Device, dtype and scaling of factor pairs that hold torch tensors."""

from __future__ import annotations

from typing import Any

import torch

from sawlog.factored import Dense, OneHot, Pair
from sawlog.torch._batch_spec import BatchSpec
from sawlog.torch._loss._terms import Scale


def scaled(pair: Pair, scale: Scale, factor: float, batch: BatchSpec) -> Pair:
    """Return the pair whose gradients are those of each example alone.

    The smaller side is scaled. ``scale`` undoes how the loss joins examples, and ``factor`` is the
    scale of a ``GradScaler``, by which gradients are divided.
    """
    if isinstance(scale, float):
        by: Any = scale / factor
        if by == 1.0:
            return pair
    else:
        by = batch.chosen(scale).to(device_of(pair), dtype_of(pair)) / factor
        by = by.reshape(-1, 1, 1, *(1,) * (pair.left.groups is not None))
    left, right = pair.left, pair.right
    if isinstance(left, OneHot) or (isinstance(right, Dense) and right.size < left.size):
        assert isinstance(right, Dense)
        return Pair(left, Dense(right.full() * by))
    return Pair(Dense(left.full() * by), right)


def is_outer_product(pair: Pair) -> bool:
    """Return whether gradients are products of two vectors: one position, and no groups."""
    dense = isinstance(pair.left, Dense) and isinstance(pair.right, Dense)
    return dense and pair.left.positions == 1 and pair.left.groups is None


def device_of(pair: Pair) -> torch.device:
    """Return the device of a pair."""
    device: torch.device = _dense(pair).array.device
    return device


def dtype_of(pair: Pair) -> torch.dtype:
    """Return the dtype of a pair."""
    dtype: torch.dtype = _dense(pair).array.dtype
    return dtype


def _dense(pair: Pair) -> Dense:
    factor = pair.right if isinstance(pair.left, OneHot) else pair.left
    assert isinstance(factor, Dense)
    return factor
