"""Products of the exact Gauss-Newton matrix with vectors, without forming it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from sawlog._arrays import to_numpy
from sawlog.run_files._blocks import Block
from sawlog.torch._model._modes import modes_restored
from sawlog.torch._rows._block_matrix import block_matrix

ROWS = 64  # vectors that are multiplied at once

Parameters = dict[str, Tensor]


def _cross_entropy(outputs: Tensor, tangents: Tensor) -> Tensor:
    p = outputs.softmax(1)
    return p * tangents - p * (p * tangents).sum(1, keepdim=True)


def _mse(outputs: Tensor, tangents: Tensor) -> Tensor:
    return 2 / outputs.shape[1] * tangents


#: The second derivative of each loss with respect to the outputs, times a tangent of them.
BENDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": _cross_entropy,
    "mse": _mse,
}


def products_of(
    network: nn.Module, blocks: Sequence[Block], batches: Sequence[Tensor], loss: str
) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Return a function from rows by block to their products with the matrix, in float64.

    It keeps the model as it is now: its parameters and buffers, and which modules are training.

    Args:
        network: The model.
        blocks: Its parameters as blocks.
        batches: Inputs, on the device of the model.
        loss: ``"cross_entropy"`` or ``"mse"``.
    """
    state = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    exact = {name: _wide(tensor.detach()).clone() for name, tensor in state.items()}
    modes = {module: module.training for module in network.modules()}
    ours = {name: exact[name] for block in blocks for name in block.parameters}
    bend, count = BENDS[loss], sum(map(len, batches))
    device = next(iter(ours.values())).device

    def multiplied(vectors: Parameters) -> Parameters:
        total = {name: torch.zeros_like(vector) for name, vector in vectors.items()}
        for inputs in batches:
            one = _one_batch(network, exact, ours, _wide(inputs), bend)
            for name, part in vmap(one)(vectors).items():
                total[name] += part
        return {name: part / count for name, part in total.items()}

    def product(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        given = {name: torch.from_numpy(np.asarray(rows[name])).to(device) for name in rows}
        found: dict[str, list[np.ndarray]] = {block.name: [] for block in blocks}
        for start in range(0, len(next(iter(given.values()))), ROWS):
            some = {name: values[start : start + ROWS] for name, values in given.items()}
            vectors = {
                name: part.reshape(len(part), *ours[name].shape)
                for block in blocks
                for name, part in block.parts(some[block.name]).items()
            }
            with modes_restored(network):
                for module, training in modes.items():
                    module.training = training
                parts = multiplied(vectors)
            for block in blocks:
                found[block.name].append(to_numpy(block_matrix(block, parts)))
        return {name: np.concatenate(parts) for name, parts in found.items()}

    return product


def _one_batch(
    network: nn.Module,
    state: Parameters,
    ours: Parameters,
    x: Tensor,
    bend: Callable[[Tensor, Tensor], Tensor],
) -> Callable[[Parameters], Parameters]:
    """Return the function from a vector to its product, summed over a batch.

    The Jacobian is transposed twice, which needs reverse mode only.
    """

    def outputs(parameters: Parameters) -> Tensor:
        found: Tensor = functional_call(network, {**state, **parameters}, (x,))
        return found

    pulled: Any = vjp(outputs, ours)
    out, pull = pulled
    pushed: Any = vjp(lambda cotangent: pull(cotangent)[0], torch.zeros_like(out))
    push = pushed[1]

    def one(vector: Parameters) -> Parameters:
        found: Parameters = pull(bend(out, push(vector)[0]))[0]
        return found

    return one


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor
