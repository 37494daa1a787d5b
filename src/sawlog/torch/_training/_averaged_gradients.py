"""By what processes divide gradients to average them, which is part of the share of an example."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sawlog.torch._model._sharded import is_split, sharding_groups


def averaging_divisor(model: nn.Module, parameters: Iterable[Tensor]) -> float:
    """Return by what the gradients of parameters are divided when processes reduce them.

    It is 1 in one process, and not a number where parts of the model are divided by different
    numbers, since no share is right then.

    Args:
        model: the model, as it is trained: wrapped, or with sharded parts.
        parameters: the parameters that are watched.

    >>> averaging_divisor(nn.Linear(2, 2), [])
    1.0
    """
    replicated = {
        id(parameter): float(module.process_group.size())
        for module in model.modules()
        if isinstance(module, DistributedDataParallel)
        for parameter in module.parameters()
    }
    groups = sharding_groups(model)
    if not replicated and not groups:
        return 1.0
    divisors = {_divisor(group) for group in groups}
    divisors |= {  # 1 where each process has a gradient of its own
        replicated.get(id(each), 1.0)
        for each in parameters
        if each.requires_grad and not is_split(each)
    }
    return divisors.pop() if len(divisors) == 1 else math.nan


def _divisor(group: Any) -> float:
    if group.gradient_divide_factor is not None:
        return float(group.gradient_divide_factor)
    mesh = group.mesh_info
    sizes = (getattr(mesh, name, 1) for name in ("shard_mesh_size", "replicate_mesh_size"))
    return float(math.prod(sizes))
