"""The second moments of an optimizer, in the layout of the gradients that are logged."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from sawlog._arrays import to_numpy
from sawlog.errors import ArgumentError
from sawlog.torch._gauss_newton import watched_of
from sawlog.torch._optimizer_state import adam_second_moments, bare_optimizer
from sawlog.torch._rows._block_matrix import block_matrix
from sawlog.torch._run import Run


def second_moments(model: Run | nn.Module, optimizer: Any) -> dict[str, np.ndarray]:
    """Return the second moments of Adam by layer, for ``attribute(second_moments=)``.

    Args:
        model: A run, of which what is watched is used, or a model.
        optimizer: An Adam, AdamW or similar optimizer of its parameters, after at least one step.
            Moments are divided by ``1 - beta2 ** step``, as Adam does; with ``amsgrad`` they are
            the largest so far.

    Raises:
        ArgumentError: The optimizer has no second moments of a parameter.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> model(torch.ones(1, 2)).sum().backward()
    >>> optimizer.step()
    >>> second_moments(model, optimizer)["weight"].round(6)
    array([[1., 1., 1.]], dtype=float32)
    """
    network, blocks = watched_of(model)
    parameters, optimizer = dict(network.named_parameters()), bare_optimizer(optimizer)
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    found = {}
    for block in blocks:
        parts = {
            name: _moments(name, parameters[name], optimizer, groups)[None]
            for name in block.parameters
        }
        found[block.name] = to_numpy(block_matrix(block, parts)[0])
    return found


def _moments(name: str, parameter: Tensor, optimizer: Any, groups: dict[int, Any]) -> Tensor:
    state = optimizer.state.get(parameter, {})
    if "exp_avg_sq" not in state:
        raise ArgumentError(
            f"The optimizer has no second moments of {name!r}. Hint: use Adam or AdamW, after a "
            "step, with the parameters of the watched model."
        )
    return adam_second_moments(state, groups.get(id(parameter), {}))
