"""Programs that use weights by lookups and convolutions without a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .account_base import RIGHT, Module, Situation, classify, predict, sequences, tokens

Lookup = Callable[[Tensor, Tensor], Tensor]


def looked_up(look: Lookup, length: int) -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.out(torch.tanh(look(m.table, x)).cumsum(1))

    model = Module(forward, table=nn.Parameter(torch.randn(7, 4)), out=nn.Linear(4, 7))
    return Situation(model, tokens(4, length), predict)


for _name, _look, _length in (
    ("a_lookup_with_padding", lambda w, x: F.embedding(x, w, padding_idx=2), 6),
    ("a_lookup_from_the_end", lambda w, x: w[x - 7], 6),
    ("a_lookup_of_one_word_each", lambda w, x: w[x], 1),
):
    RIGHT[_name] = lambda look=_look, length=_length: looked_up(look, length)  # type: ignore[misc]


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv_transpose1d(x.mT, weight, stride=2).mT


def transposed_convolution() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.out(torch.tanh(convolved(x, m.weight)).mean(1))

    model = Module(forward, weight=nn.Parameter(torch.randn(4, 5, 3)), out=nn.Linear(5, 3))
    return Situation(model, sequences(), classify)


RIGHT["a_transposed_convolution"] = transposed_convolution
