"""Programs that reorder examples, and transformations, hooks and precisions of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.nn.utils import parametrizations

from .account_base import (
    REFUSED,
    RIGHT,
    Module,
    Situation,
    classify,
    language,
    numbers,
    refused,
    right,
    sequences,
    tokens,
    two_layers,
)


def picked(pick: Callable[[Tensor, Tensor], Tensor]) -> Situation:
    """Outputs are put into another order, and labels are or are not: the graph is the same."""

    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(pick(model(x), x[:, 0].argsort().argsort()) * 2, y)
        loss.backward()
        return loss

    return Situation(two_layers(), numbers(), step)


def _put(h: Tensor, i: Tensor) -> Tensor:
    return torch.zeros_like(h).index_put((i,), h)


for _name, _pick in {
    "index": lambda h, i: h[i],
    "index_select": lambda h, i: h.index_select(0, i),
    "gather": lambda h, i: h.gather(0, i[:, None].expand(-1, 3)),
    "take_along_dim": lambda h, i: h.take_along_dim(i[:, None], 0),
    "flip": lambda h, i: h.flip(0),
    "roll": lambda h, i: h.roll(1, 0),
    "sort": lambda h, i: h.sort(0)[0],
    "index_copy": lambda h, i: torch.zeros_like(h).index_copy(0, i, h),
    "index_put": _put,
    "index_select_from_the_end": lambda h, i: h.index_select(-2, i),
    "gather_from_the_end": lambda h, i: h.gather(-2, i[:, None].expand(-1, 3)),
    "flip_from_the_end": lambda h, i: h.flip(-2),
    "index_copy_from_the_end": lambda h, i: torch.zeros_like(h).index_copy(-2, i, h),
    "scatter_from_the_end": lambda h, i: torch.zeros_like(h).scatter(
        -2, i[:, None].expand(-1, 3), h
    ),
}.items():
    REFUSED[f"examples_in_another_order_by_{_name}"] = (
        lambda pick=_pick: picked(pick),  # type: ignore[misc]
        "order of the examples",
    )

for _name, _pick in {
    "index": lambda h, i: h[torch.arange(len(h))],
    "index_select": lambda h, i: h.index_select(0, torch.arange(len(h))),
    "flip_of_features": lambda h, i: h.flip(1),
    "sort_of_features": lambda h, i: h.sort(1)[0],
    "copy_of_features": lambda h, i: torch.zeros_like(h).index_copy(-1, torch.tensor([2, 0, 1]), h),
    "features": lambda h, i: h[:, torch.tensor([2, 0, 1])],
}.items():
    RIGHT[f"examples_in_their_order_by_{_name}"] = lambda pick=_pick: picked(pick)  # type: ignore[misc]


def picked_of_three(pick: Callable[[Tensor], Tensor]) -> Situation:
    """Outputs ``[batch, tokens, words]``, of which axes are reordered; a node may count from -1."""

    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        h = pick(model(x)) * 2
        loss = F.cross_entropy(h.flatten(0, 1), y[:, : h.shape[1]].flatten())
        loss.backward()
        return loss

    return Situation(language(), tokens(), step)


def _swapped(h: Tensor, axis: int) -> Tensor:
    return torch.arange(h.shape[axis]).flip(0)


_REORDERS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "flip": lambda h, axis: h.flip(-1, axis),
    "roll": lambda h, axis: h.roll(1, axis),
    "sort": lambda h, axis: h.sort(axis)[0],
    "index_select": lambda h, axis: h.index_select(axis, _swapped(h, axis)),
    "gather": lambda h, axis: h.gather(axis, h.argsort(axis)),
    "index_copy": lambda h, axis: torch.zeros_like(h).index_copy(axis, _swapped(h, axis), h),
}
for _name, _reorder in _REORDERS.items():
    REFUSED[f"examples_of_three_axes_in_another_order_by_{_name}"] = (
        lambda own=_reorder: picked_of_three(lambda h: own(h, -3)),  # type: ignore[misc]
        "order of the examples",
    )
    RIGHT[f"positions_of_three_axes_in_another_order_by_{_name}"] = (
        lambda own=_reorder: picked_of_three(lambda h: own(h, -2))  # type: ignore[misc]
    )


@refused("another order than in the loss")
def examples_and_labels_in_another_order_inside() -> Situation:
    def step(model: Any, x: Tensor, y: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        h = torch.tanh(model[0](x))[order]
        loss = F.cross_entropy(model[2](torch.tanh(h)), y[order])
        loss.backward()
        return loss

    return Situation(two_layers(), numbers(), step)


@right
def examples_that_are_sorted_and_put_back() -> Situation:
    def step(model: Any, x: Tensor, y: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        h = torch.tanh(torch.tanh(model.first(x))[order] @ model.weight)
        loss = F.cross_entropy(model.out(h[order.argsort()]), y)
        loss.backward()
        return loss

    weight = nn.Parameter(torch.randn(6, 6))
    model = Module(step, first=nn.Linear(4, 6), weight=weight, out=nn.Linear(6, 3))
    return Situation(model, numbers(), step)


@right
def a_place_of_each_example() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor, at: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x)[torch.arange(len(x)), at], y[:, 0])
        loss.backward()
        return loss

    return Situation(language(), (*tokens(), torch.tensor([3, 0, 5, 1])), step)


def _looked_up(table: Callable[[nn.Module], Tensor], at: list[int]) -> Situation:
    """A table that has as many rows as there are examples."""

    def step(model: nn.Module, x: Tensor, at: Tensor) -> Tensor:
        loss = ((table(model)[at] * x).sum(1) ** 2).mean()
        loss.backward()
        return loss

    model = Module(
        lambda m, x: x,
        table=nn.Parameter(torch.randn(5, 4)),
        more=nn.Parameter(torch.randn(4, 4)),
    )
    return Situation(model, (numbers()[0], torch.tensor(at)), step)


@right
def a_table_of_as_many_rows_as_examples() -> Situation:
    return _looked_up(lambda m: m.table, [3, 0, 1, 3, 4])


@right
def a_table_of_as_many_rows_as_examples_in_order() -> Situation:
    return _looked_up(lambda m: m.table, [0, 0, 1, 3, 4])


@right
def a_table_that_is_computed_of_as_many_rows_as_examples() -> Situation:
    return _looked_up(lambda m: torch.tanh(m.table @ m.more), [0, 0, 1, 3, 4])


@right
def layers_for_some_of_the_examples() -> Situation:
    def step(model: Any, x: Tensor, y: Tensor) -> Tensor:
        h, some = torch.tanh(model.body(x)), y > 0
        loss = F.cross_entropy(model.one(h[some]), y[some], reduction="sum")
        loss = loss + F.gelu(model.two(h[~some])).pow(2).sum()
        loss.backward()
        return loss

    model = Module(lambda m, x: x, body=nn.Linear(4, 6), one=nn.Linear(6, 3), two=nn.Linear(6, 2))
    return Situation(model, (numbers()[0], torch.tensor([0, 1, 2, 0, 1])), step)


def _as_many_positions(loss: Callable[..., Tensor]) -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        found = loss(model, x, y)
        found.backward()
        return found

    batch = torch.randn(4, 4, 4).double(), torch.randint(0, 3, (4, 4))
    return Situation(two_layers(), batch, step)


@refused("examples seem to be along another axis")
def as_many_positions_as_examples_and_positions_first() -> Situation:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x).transpose(0, 1).flatten(0, 1), y.T.flatten())

    return _as_many_positions(loss)


@refused("examples seem to be along another axis")
def as_many_positions_as_examples_one_after_the_other() -> Situation:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        each = [F.cross_entropy(model(x[:, t]), y[:, t]) for t in range(4)]
        return torch.stack(each).mean()

    return _as_many_positions(loss)


@right
def as_many_positions_as_examples() -> Situation:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        each = [model(x[:, t]) for t in range(4)]
        return F.cross_entropy(torch.stack(each, 1).flatten(0, 1), y.flatten())

    return _as_many_positions(loss)


# -- transformations, hooks and parametrisations of PyTorch ----------------------------------------


@right
def a_weight_that_is_a_matrix_exponential() -> Situation:
    layer = nn.Linear(4, 4).double()
    parametrizations.orthogonal(layer, orthogonal_map="matrix_exp")
    model = nn.Sequential(layer, nn.Tanh(), nn.Linear(4, 3))
    return Situation(model, numbers(n=4), classify)


@right
def positions_first_and_their_mean() -> Situation:
    x, y = torch.randn(5, 3, 4).double(), torch.randint(0, 3, (3,))
    model = Module(lambda m, x: m.out(torch.tanh(m.inner(x))).mean(0))
    model.inner, model.out = nn.Linear(4, 4), nn.Linear(4, 3)  # as many classes as examples
    return Situation(model, (x, y), classify, axis=1)


@right
def a_hook_on_several_parameters() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        seen: list[int] = []
        tensors = tuple(model.parameters())
        handle = register_multi_grad_hook(tensors, lambda grads: seen.append(len(grads)))
        loss = classify(model, x, y)
        handle.remove()
        assert seen
        return loss

    return Situation(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)), numbers(), step)


# -- operations that only lower precision has -----------------------------------------------------


def an_lstm_in_one_operation() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        every, (last, cell) = m.recurrent(x)
        return m.out(torch.cat([every[:, 2], last[1], cell[0]], 1))

    recurrent = nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True)
    return Situation(
        Module(forward, recurrent=recurrent, out=nn.Linear(12, 3)), sequences(), classify
    )


def experts_in_one_product() -> Situation:
    def forward(m: Any, x: Tensor) -> Tensor:
        flat = m.first(x).flatten(0, 1)
        weight, chosen = (flat @ m.router).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        ends = torch.bincount(chosen, minlength=3).cumsum(0).to(torch.int32)
        made = F.grouped_mm(flat[order], m.fused.transpose(1, 2), offs=ends)
        made = torch.zeros_like(made).index_copy(0, order, made * weight[order, None])
        return m.out(made.view(*x.shape[:2], -1).mean(1))

    model = Module(
        forward,
        first=nn.Linear(4, 8),
        router=nn.Parameter(torch.randn(8, 3)),
        fused=nn.Parameter(torch.randn(3, 8, 8)),
        out=nn.Linear(8, 3),
    )
    return Situation(model, sequences(), classify)


SINGLE = {each.__name__: each for each in (an_lstm_in_one_operation, experts_in_one_product)}
