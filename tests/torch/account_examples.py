"""Programs in which examples are anywhere, in any order, or interact."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .account_base import (
    Module,
    Situation,
    classify,
    language,
    numbers,
    predict,
    refused,
    right,
    tokens,
    two_layers,
)


@right
def pairs_in_one_batch() -> Situation:
    """As in DPO: the chosen, then the rejected."""

    def step(model: nn.Module, chosen: Tensor, rejected: Tensor) -> Tensor:
        ids = torch.cat([chosen, rejected])
        found = F.log_softmax(model(ids), -1)[:, :-1].gather(2, ids[:, 1:, None])
        one, two = found[..., 0].sum(1).chunk(2)
        loss = -F.logsigmoid(one - two).mean()
        loss.backward()
        return loss

    return Situation(language(), tokens(), step)


@right
def two_views() -> Situation:
    def step(model: nn.Module, x: Tensor, other: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(torch.cat([x, other])), torch.cat([y, y]))
        loss.backward()
        return loss

    batch = (numbers()[0], *numbers())
    return Situation(two_layers(), batch, step, inside={"views": 2})


@right
def examples_one_by_one() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        each = [F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]) for i in range(len(x))]
        loss = torch.stack(each).mean()
        loss.backward()
        return loss

    return Situation(two_layers(), numbers(), step)


def sequence_first() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)
    return nn.Sequential(nn.Embedding(7, 4), layer, nn.Linear(4, 7))


@right
def sequences_come_first_and_are_padded() -> Situation:
    x, y = tokens(8, 4)
    y[3:, 0], y[1:, 2] = -100, -100
    return Situation(sequence_first(), (x, y), predict, axis=1)


@right
def sequences_come_first_inside_of_the_model() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.out(torch.tanh(m.embed(x.T) @ m.weight).cumsum(0).transpose(0, 1))

    weight = nn.Parameter(torch.randn(4, 4))
    model = Module(forward, embed=nn.Embedding(7, 4), weight=weight, out=nn.Linear(4, 7))
    return Situation(model, tokens(), predict)


@refused("mixes examples|8 targets|unknown which")
def sequences_come_first_and_nobody_said_so() -> Situation:
    return Situation(sequence_first(), tokens(4, 4), predict, ids=4)


@refused("6 targets for 3 examples")
def fewer_ids_than_examples() -> Situation:
    return Situation(two_layers(), numbers(6), classify, ids=3)


@refused("unknown which")
def fewer_ids_than_examples_in_a_sum() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = (model(x) ** 2).sum()
        loss.backward()
        return loss

    return Situation(two_layers(), numbers(6), step, ids=3)


@refused("10 targets for 5 examples")
def two_views_and_nobody_said_so() -> Situation:
    return dataclasses.replace(two_views(), inside={})


# -- examples that interact -----------------------------------------------------------------------


@refused("mixes examples")
def a_contrastive_loss() -> Situation:
    def step(model: nn.Module, x: Tensor, other: Tensor) -> Tensor:
        scores = model(x) @ model(other).T
        loss = F.cross_entropy(scores, torch.arange(len(x)))
        loss.backward()
        return loss

    return Situation(two_layers(), (numbers()[0], numbers()[0]), step)


@refused("mixes examples")
def centred_by_hand() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.first(x)
        return m.out(torch.tanh(h - h.mean(0)))

    model = Module(forward, first=nn.Linear(4, 6), out=nn.Linear(6, 3))
    return Situation(model, numbers(), classify)


@refused("mixes examples")
def parameters_and_inputs_centred_by_hand() -> Situation:
    """All of it could be the same for all examples, but for the loss."""

    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.token.expand(len(x), -1) + x
        return m.out(torch.tanh(h - h.mean(0)))

    model = Module(forward, token=nn.Parameter(torch.randn(4)), out=nn.Linear(4, 3))
    return Situation(model, numbers(), classify)


@refused("mixes examples")
def parameters_and_inputs_centred_beside_others() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.token.expand(len(x), -1) + x
        return m.out(torch.tanh((h - h.mean(0)) ** 2 + m.first(x)))

    token = nn.Parameter(torch.randn(4))
    model = Module(forward, token=token, first=nn.Linear(4, 4), out=nn.Linear(4, 3))
    return Situation(model, numbers(), classify)


@right
def a_token_where_a_mask_says_so() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        tokens = torch.where(x > 0, m.token.expand(*x.shape), m.other.expand(*x.shape))
        return m.out(torch.tanh(tokens * 2 + x))

    token, other = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
    model = Module(forward, token=token, other=other, out=nn.Linear(4, 3))
    return Situation(model, numbers(), classify)


@refused("scale_grad_by_freq")
def a_table_whose_gradients_depend_on_the_batch() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        return F.linear(F.embedding(x, m.table, scale_grad_by_freq=True), m.table)

    model = Module(forward, table=nn.Parameter(torch.randn(7, 4)))
    return Situation(model, tokens(), predict)


@refused("`.eval\\(\\)`")
def a_batch_norm_that_is_not_watched() -> Situation:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    return Situation(model, numbers(), classify, watch={"names": ["2"]})


@refused("`.eval\\(\\)`")
def a_batch_norm_that_is_a_function() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.out(F.batch_norm(m.first(x), None, None, training=True))

    model = Module(forward, first=nn.Linear(4, 6), out=nn.Linear(6, 3))
    return Situation(model, numbers(), classify)


@refused("mixes examples")
def a_hook_that_clips() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.first(x)
        if h.requires_grad:
            h.register_hook(lambda grad: grad / grad.norm())
        return m.out(torch.tanh(h))

    model = Module(forward, first=nn.Linear(4, 6), out=nn.Linear(6, 3))
    return Situation(model, numbers(), classify)
