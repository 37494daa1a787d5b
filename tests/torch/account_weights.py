"""Weights that a model computes, in shapes that data could have, and data that look like them."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .account_base import (
    RIGHT,
    Module,
    Situation,
    classify,
    numbers,
    predict,
    refused,
    right,
    sequences,
    tokens,
)


class Scaled(torch.autograd.Function):
    """The product of two matrices and a number, as an operation of its own."""

    @staticmethod
    def forward(ctx: Any, one: Tensor, two: Tensor, times: Tensor) -> Tensor:
        ctx.save_for_backward(one, two, times)
        return one @ two * times

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        one, two, times = ctx.saved_tensors
        return grads[0] @ two.mT * times, one.mT @ grads[0] * times, None


@right
def a_weight_of_an_operation_of_the_user() -> Situation:
    """As in LoHa."""
    model = Module(
        lambda m, x: m.out(torch.tanh(x @ Scaled.apply(m.a, m.b, torch.tensor(0.5)).mT)),
        a=nn.Parameter(torch.randn(8, 2)),
        b=nn.Parameter(torch.randn(2, 4)),
        out=nn.Linear(8, 3),
    )
    return Situation(model, numbers(4), classify)


@right
def a_rotation_of_a_few_numbers() -> Situation:
    """As in OFT: the numbers are written to both halves of blocks, by indices that are buffers."""

    def forward(m: Any, x: Tensor) -> Tensor:
        blocks = torch.zeros(4, 2, 2, dtype=x.dtype)
        blocks[:, m.rows, m.cols] = m.numbers
        blocks = blocks - blocks.mT
        turned = torch.linalg.solve(torch.eye(2).double() + blocks, torch.eye(2).double() - blocks)
        return m.out(torch.einsum("bkr,krc->bkc", x.unflatten(1, (4, 2)), turned).flatten(1))

    model = Module(forward, numbers=nn.Parameter(torch.randn(4, 1)), out=nn.Linear(8, 3))
    model.register_buffer("rows", torch.tensor([0]))
    model.register_buffer("cols", torch.tensor([1]))
    return Situation(model, numbers(4, 8), classify)


def trained_rows_of_a_frozen_table(words: int) -> Situation:
    """As adapters train a few tokens."""

    def forward(m: Any, x: Tensor) -> Tensor:
        table = m.embed.weight.index_copy(0, torch.tensor([1, 3]), m.rows)
        return F.linear(torch.tanh(F.embedding(x, table)).cumsum(1), table)

    embed = nn.Embedding(words, 4).requires_grad_(False)
    model = Module(forward, embed=embed, rows=nn.Parameter(torch.randn(2, 4)))
    return Situation(model, tokens(4, 6, words), predict)


for _name, _words in {"as_many": 4, "twice_as_many": 8}.items():
    RIGHT[f"trained_rows_of_a_table_of_{_name}_rows_as_examples"] = functools.partial(
        trained_rows_of_a_frozen_table, _words
    )


@right
def rows_that_are_written_to_each_example() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = x.index_copy(1, torch.tensor([0, 3]), m.token.expand(len(x), -1, -1))
        h = torch.cat([h, torch.zeros_like(x).index_add(1, torch.tensor([1, 1]), h[:, :2])], 2)
        return m.out(torch.tanh(h).mean(1))

    model = Module(forward, token=nn.Parameter(torch.randn(1, 2, 4)), out=nn.Linear(8, 3))
    return Situation(model, sequences(), classify)


@right
def positions_that_are_multiplied_with_a_weight() -> Situation:
    """As in Funnel and other models with relative positions."""

    def forward(m: Any, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])[:, None] / 10 ** torch.arange(4.0)
        kernel = torch.einsum("td,dnh->tnh", places.sin().to(x), m.kernel)
        return m.out(
            torch.tanh(torch.einsum("btnh,tnh->btn", m.first(x)[:, :, None], kernel)).sum(1)
        )

    model = Module(
        forward,
        kernel=nn.Parameter(torch.randn(4, 2, 4)),
        first=nn.Linear(4, 4),
        out=nn.Linear(2, 3),
    )
    return Situation(model, sequences(4, 8), classify)


@right
def a_buffer_times_a_weight() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.out(torch.tanh(x + (m.table * m.scale).mean(0)))

    model = Module(forward, scale=nn.Parameter(torch.randn(1, 4)), out=nn.Linear(4, 3))
    model.register_buffer("table", torch.randn(8, 4))
    return Situation(model, numbers(4), classify)


@right
def a_spectrum_at_a_few_places() -> Situation:
    """As in FourierFT, whose module keeps the places in a dict."""

    def forward(m: Any, x: Tensor) -> Tensor:
        dense = torch.zeros(4, 4, dtype=x.dtype)
        dense[m.places["default"][0], m.places["default"][1]] = m.spectrum
        return m.out(torch.tanh(x @ torch.fft.ifft2(dense).real))

    model = Module(forward, spectrum=nn.Parameter(torch.randn(5)), out=nn.Linear(4, 3))
    model.places = {"default": torch.tensor([[0, 0, 1, 2, 3], [1, 3, 2, 0, 0]])}
    return Situation(model, numbers(4), classify)


@refused("mixes examples")
def words_that_the_model_has_kept() -> Situation:
    """They are not its constants, since it is called with them."""

    def step(model: nn.Module, words: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(words, F.one_hot(y, 4).double()), y)
        loss.backward()
        return loss

    model = Module(
        lambda m, words, x: centred(m, m.first[words] * 0.5, x),
        first=nn.Parameter(torch.randn(7, 4)),
        layer=nn.Linear(4, 4),
        out=nn.Linear(4, 3),
    )
    words = torch.tensor([2, 1, 3, 0])
    model.kept = words
    return Situation(model, (words, torch.tensor([0, 1, 2, 0])), step)


def centred(m: Any, h: Tensor, x: Tensor) -> Tensor:
    return m.out(torch.tanh(h - h.mean(0)) + m.layer(x))


@refused("mixes examples")
def inputs_that_the_program_makes_as_constants() -> Situation:
    """Outside of the model, so they are not its constants."""

    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(torch.eye(len(y), 4).double(), x), y)
        loss.backward()
        return loss

    model = Module(
        lambda m, ones, x: centred(m, ones @ m.first, x),
        first=nn.Parameter(torch.randn(4, 4)),
        layer=nn.Linear(4, 4),
        out=nn.Linear(4, 3),
    )
    return Situation(model, numbers(4), step)


@refused("mixes examples")
def a_buffer_that_inputs_are_written_to() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        m.inputs.copy_(x)
        return centred(m, m.inputs @ m.first, x)

    model = Module(
        forward,
        first=nn.Parameter(torch.randn(4, 4)),
        layer=nn.Linear(4, 4),
        out=nn.Linear(4, 3),
    )
    model.register_buffer("inputs", torch.zeros(4, 4))
    return Situation(model, numbers(4), classify)


@refused("mixes examples")
def random_numbers_of_each_example() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        return centred(m, torch.rand(len(x), 4).double() @ m.first, x)

    model = Module(
        forward,
        first=nn.Parameter(torch.randn(4, 4)),
        layer=nn.Linear(4, 4),
        out=nn.Linear(4, 3),
    )
    return Situation(model, numbers(4), classify)


class Remembering(torch.autograd.Function):
    """A product with inputs that are no argument."""

    inputs: Tensor

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        ctx.inputs = Remembering.inputs
        return Remembering.inputs @ weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return ctx.inputs.mT @ grads[0]


def remembering(mix: bool) -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        Remembering.inputs = x
        h = Remembering.apply(m.first)
        return centred(m, h, x) if mix else m.out(torch.tanh(h) + m.layer(x))

    return Module(
        forward,
        first=nn.Parameter(torch.randn(4, 4)),
        layer=nn.Linear(4, 4),
        out=nn.Linear(4, 3),
    )


@right
def an_operation_of_the_user_with_inputs_besides() -> Situation:
    return Situation(remembering(False), numbers(4), classify)


@refused("mixes examples")
def an_operation_of_the_user_with_inputs_that_are_mixed() -> Situation:
    return Situation(remembering(True), numbers(4), classify)
