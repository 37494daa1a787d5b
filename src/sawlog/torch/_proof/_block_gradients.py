"""Gradients of blocks: from layer rules, from parameters, projected and summed."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sawlog.factored import Dense, OneHot, Pair, gradient, rows, vector
from sawlog.run_files._blocks import Block
from sawlog.torch._graph._example_layout import ExampleLayout
from sawlog.torch._graph._example_sums import ExampleSums
from sawlog.torch._hooks._hooks import LayerCall
from sawlog.torch._layers import Use
from sawlog.torch._rows._block_matrix import block_matrix
from sawlog.torch._rows._row_builder import RowBuilder


def pairs_of(
    call: LayerCall, grad: Tensor, batch: int, layout: ExampleLayout
) -> Mapping[str, Pair]:
    """Return the factor pairs of one layer call, by its layer rule."""
    use = Use(call.args, call.kwargs, grad, batch, layout.axis, layout.minor)
    return call.unit.rule.pairs(call.unit.module, use)


def pair_of(matrix: Tensor) -> Pair:
    """Return gradients ``[batch, rows, cols]``, or with groups before the rows, as a pair."""
    matrix = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    if matrix.dim() == 3:
        return vector(matrix[..., 0]) if matrix.shape[2] == 1 else rows(matrix)
    batch, groups, size, _ = matrix.shape
    one = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    left = one[None, :, None].expand(batch, size, groups, size)
    return Pair(Dense(left), Dense(matrix.transpose(1, 2)))


def weighted_sum(pair: Pair, factors: Tensor) -> Tensor:
    """Return the sum over examples of gradients times factors, without computing gradients."""
    dense = pair.right if isinstance(pair.left, OneHot) else pair.left
    assert isinstance(dense, Dense)
    pair = pair.scaled(factors.to(dense.array))
    total: Tensor = gradient(Pair(_as_one(pair.left), _as_one(pair.right)))[0]
    return total


def _as_one(factor: Dense | OneHot) -> Dense | OneHot:
    """Return all positions of all examples as those of one example."""
    if isinstance(factor, Dense):
        return Dense(factor.array.reshape(1, -1, *factor.array.shape[2:]), factor.one)
    weights = None if factor.weights is None else factor.weights.reshape(1, -1)
    return OneHot(factor.ids.reshape(1, -1), factor.size, weights)


def rounding_of(pair: Pair) -> float:
    """Return a bound for the rounding error of a sum of products."""
    sides = [each.array for each in (pair.left, pair.right) if isinstance(each, Dense)]
    size = 1.0
    for array in sides:
        size *= float(array.double().norm())
    return size * float(torch.finfo(sides[0].dtype).eps)


def projected_gradient(
    rows: RowBuilder,
    block: Block,
    grads: Mapping[str, Tensor | None],
    parameters: Mapping[str, Tensor],
) -> Tensor:
    """Return the gradient of a block, given those of its parameters, projected like its rows."""
    parts = {}
    for name in block.parameters:
        grad = grads[name]
        parts[name] = (torch.zeros_like(parameters[name]) if grad is None else grad)[None].detach()
    pair = pair_of(block_matrix(block, parts))
    return gradient(rows.projected(block, pair))[0].double().cpu()


def summed_matrix(
    block: Block, sums: ExampleSums, parameters: Mapping[str, Tensor]
) -> Tensor | None:
    """Return the gradients of a block, ``[batch, *block.shape]``; None if it has none."""
    every = {name: sums.rows(name) for name in block.parameters}
    there = next((rows for rows in every.values() if rows is not None), None)
    if there is None:
        return None
    parts = {
        name: there.new_zeros(len(there), *parameters[name].shape) if rows is None else rows
        for name, rows in every.items()
    }
    return block_matrix(block, parts)


def precision_of(dtype: torch.dtype) -> float:
    """Return the relative error allowed in sums of gradients of a dtype."""
    return {torch.float64: 1e-6, torch.float32: 1e-4}.get(dtype, 5e-2)
