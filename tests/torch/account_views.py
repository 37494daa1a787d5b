"""Programs that use parts of parameters, cut and turned in every way, also from the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .account_base import RIGHT, Module, Situation, classify, numbers

_PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "slice_from_the_end": lambda w: w[-2:][1],
    "slice_from_the_end_with_a_step": lambda w: w[-6::3][1],
    "slice_beyond_both_ends": lambda w: w[-20:20:4][1],
    "slice_of_the_last": lambda w: w[-4:-1][2],
    "row_from_the_end": lambda w: w[-6],
    "parts_that_are_computed_with": lambda w: torch.cat([w[0, -1:], w[0, -3:]]) + w[-2:].sum(0),
    "last_part_of_uneven_size": lambda w: w.split(3)[2][0],
    "part_of_uneven_size": lambda w: w.split([2, 4, 1])[1][3],
    "part_of_a_tensor_split": lambda w: w.tensor_split(2)[1][2],
    "transposed_from_the_end": lambda w: w.transpose(-3, -1)[1, :, 1:5],
    "selected_from_the_end": lambda w: w.select(-3, 2),
    "unbound_from_the_end": lambda w: w.unbind(-3)[5],
    "permuted": lambda w: w.movedim(-1, -3)[3, -4:],
}


def part_of_a_weight(part: Callable[[Tensor], Tensor]) -> Situation:
    """Some of seven matrices make one, which is used twice: as a matrix, and its row as a shift."""

    def forward(m: Any, x: Tensor) -> Tensor:
        own = part(m.weight)
        return m.out(torch.tanh(F.linear(x, own) * x + own[1]))

    weight = nn.Parameter(torch.randn(7, 4, 4))
    return Situation(Module(forward, weight=weight, out=nn.Linear(4, 3)), numbers(), classify)


for _name, _part in _PARTS.items():
    RIGHT[f"part_of_a_weight_{_name}"] = lambda part=_part: part_of_a_weight(part)  # type: ignore[misc]
