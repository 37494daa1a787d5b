"""What a skilled user would write for one model, without sawlog: hooks, projections, a raw file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _torch_models import RANK, Case
from torch import Tensor, nn

Matrix = Callable[[str, str, int], Tensor]


def capture(case: Case, path: Path, matrix: Matrix) -> None:
    """Write the projected gradients of every example, one row for each, and sync at the end.

    The gradients of the weights are never computed. ``matrix(name, side, size)`` makes a
    projection; a side that is no greater than the rank stays whole.
    """
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    ins = {name: matrix(name, "input", case.sizes(name)[0]) for name in case.layers}
    outs = {name: matrix(name, "output", case.sizes(name)[1]) for name in case.layers}

    def hook(name: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, output: Tensor) -> None:
            with torch.no_grad():
                seen[name] = (args[0] @ ins[name][:-1]).add_(ins[name][-1]), output

        return keep

    hooks = [layer.register_forward_hook(hook(name)) for name, layer in case.layers.items()]
    with open(path, "wb", buffering=0) as file:
        for batch in case.batches:
            loss, size, start = case.loss(case.model, batch), len(batch[0]), 0
            grads = torch.autograd.grad(loss, [output for _, output in seen.values()])
            rows = torch.empty(size, case.values)
            for (name, (right, _)), grad in zip(seen.items(), grads, strict=True):
                left = grad if outs[name].shape[0] <= RANK else grad @ outs[name]
                left = left.mul_(size)  # the loss is a mean
                left, right = left.view(size, -1, left.shape[-1]), right.view(size, -1, RANK)
                if not isinstance(case.layers[name], nn.Linear):
                    left, right = right, left
                stop = start + left.shape[-1] * right.shape[-1]
                out = rows[:, start:stop].view(size, left.shape[-1], right.shape[-1])
                (torch.mul if left.shape[1] == 1 else torch.bmm)(left.mT, right, out=out)
                start = stop
            file.write(rows.numpy().data)
        os.fsync(file.fileno())
    for each in hooks:
        each.remove()
