"""What a compiled region is called with: shapes, modes and constants."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn

_CONSTANTS = (int, float, bool, str, type(None), torch.dtype, torch.device)


def signature_of(module: nn.Module, args: Any, kwargs: Any, more: Hashable) -> Hashable | None:
    """Return what the layer calls of a module depend on; None if its arguments are unknown.

    Two calls with the same signature have the same layers, with outputs of the same shapes, unless
    the module decides by values.
    """
    leaves, structure = torch.utils._pytree.tree_flatten((args, kwargs))
    found: list[Hashable] = []
    for each in leaves:
        if isinstance(each, Tensor):
            found.append((tuple(each.shape), each.dtype, str(each.device), each.requires_grad))
        elif isinstance(each, _CONSTANTS):
            found.append((type(each).__name__, each))
        else:
            return None
    modes = tuple([each.training for each in module.modules()])
    mixed = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
    types = torch.get_autocast_dtype("cpu"), torch.get_autocast_dtype("cuda")
    return (tuple(found), str(structure), modes, mixed, types, more)
