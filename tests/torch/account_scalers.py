"""Programs with scaled losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .account_base import (
    RIGHT,
    Module,
    Situation,
    language,
    numbers,
    refused,
    right,
    scaler,
    tokens,
    two_layers,
)


def scaled(start: Callable[[Any, Tensor, Tensor], Any], **more: Any) -> Situation:
    """Two losses of one batch; the second has a scale for each example."""

    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        weight = torch.tensor([0.2, 0.7, 1.3]).double()
        one = (model(x) ** 2).mean()
        two = F.cross_entropy(model(2 * x), y, weight=weight)
        start(scaler(), one, two)
        return one + two

    return Situation(two_layers(), numbers(), step, **more)


def _two_passes(s: Any, one: Tensor, two: Tensor) -> None:
    one, two = s.scale([one, two])
    one.backward()
    two.backward()


def _map(s: Any, one: Tensor, two: Tensor) -> None:
    torch.autograd.backward(list(s.scale(each for each in (one, two))))


for _name, _start in {
    "a_scaled_sum_of_terms": lambda s, one, two: s.scale(one + two).backward(),
    "two_scaled_passes_of_one_structure": _two_passes,
    "a_generator_of_scaled_losses": _map,
    "a_scaled_loss_that_is_divided": lambda s, one, two: (s.scale(two) / 4).backward(),
}.items():
    RIGHT[_name] = lambda start=_start: scaled(start, factor=1024.0)  # type: ignore[misc]


def _other_is_walked(s: Any, one: Tensor, two: Tensor) -> None:
    s.scale(one)
    two.backward()


@right
def a_scaler_for_a_loss_that_is_not_walked_back_from() -> Situation:
    return scaled(_other_is_walked)


@right
def one_pass_scaled_and_one_not() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        one = F.cross_entropy(model(x), y)
        scaler().scale(one * 2**-10).backward()
        two = (model(x) ** 2).mean()
        two.backward()
        return one + two

    situation = Situation(two_layers(), numbers(), step)
    situation.unscaled = lambda model, x, y: (
        F.cross_entropy(model(x), y) * 2**-10 + (model(x) ** 2).mean()
    )
    return situation


@right
def two_passes_of_one_structure() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        one, two = F.cross_entropy(model(x), y), F.cross_entropy(model(2 * x), y)
        one.backward()
        two.backward()
        return one + two

    return Situation(two_layers(), numbers(), step)


@right
def two_losses_of_different_layers() -> Situation:
    def step(model: Any, x: Tensor, y: Tensor) -> Tensor:
        one, two = F.cross_entropy(model.first(x), y), (model.other(x) ** 2).mean()
        torch.autograd.backward([one, two])
        return one + two

    model = Module(lambda m, x: x, first=nn.Linear(4, 3), other=nn.Linear(4, 2))
    return Situation(model, numbers(), step)


@right
def a_scale_by_hand() -> Situation:
    return scaled(
        lambda s, one, two: (two * s.get_scale()).backward(),
        inside={"scaler": scaler()},
        factor=1024.0,
    )


for _name, _scale in {"examples": 4.0, "positions": 24.0}.items():

    def _as_many(scale: float = _scale) -> Situation:
        def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            torch.amp.GradScaler("cpu", init_scale=scale).scale(loss).backward()
            return loss

        return Situation(language(), tokens(4, 6), step, factor=scale)

    RIGHT[f"a_scaler_whose_scale_is_the_number_of_{_name}"] = _as_many


@refused("by different factors")
def a_scaler_for_one_of_two_terms() -> Situation:
    return scaled(lambda s, one, two: (s.scale(one) + two).backward())


@refused("but the loss is not scaled")
def a_scaler_that_is_not_used() -> Situation:
    return scaled(lambda s, one, two: two.backward(), inside={"scaler": scaler()})
