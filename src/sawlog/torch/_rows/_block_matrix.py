"""Arrange gradients of parameters as the matrices of blocks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sawlog.run_files._blocks import Block


def block_matrix(block: Block, grads: Mapping[str, Tensor]) -> Tensor:
    """Return gradients ``[n, ...]`` of the parameters of a block as ``[n, *block.shape]``."""
    weight, *bias = (grads[name] for name in block.parameters)
    if not bias:
        return weight.reshape(len(weight), *block.shape)
    *groups, rows, cols = block.shape
    if block.inputs == "left":
        shapes, axis = ((rows - 1, cols), (1, cols)), -2
    else:
        shapes, axis = ((rows, cols - 1), (rows, 1)), -1
    parts = zip((weight, bias[0]), shapes, strict=True)
    return torch.cat([part.reshape(len(part), *groups, *shape) for part, shape in parts], axis)
