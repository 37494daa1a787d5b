"""Programs whose losses add what joins the examples to each of them, or put groups together."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .account_base import REFUSED, RIGHT, Module, Situation, numbers, right, two_layers

Join = Callable[[Tensor, Tensor, Tensor], Tensor]  # of losses, outputs and groups
GROUPS = torch.tensor([1, 0, 0, 1, 1]).bool()


def joined(join: Join) -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor, group: Tensor) -> Tensor:
        out = model(x)
        loss = join(F.cross_entropy(out, y, reduction="none"), out, group)
        loss.backward()
        return loss

    return Situation(two_layers(), (*numbers(), GROUPS), step)


def _split(each: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    one, other = (part.nonzero().flatten() for part in (group, ~group))
    return 1 - torch.sigmoid(each.index_select(0, one)), torch.sigmoid(each.index_select(0, other))


for _name, _join in {
    "a_mean_that_all_get": lambda each, out, group: each.mean().expand(len(each)).mean(),
    "a_mean_that_all_get_and_that_is_negated": lambda each, out, group: (
        -(-each.mean()).expand(len(each)).mean() * 0.3
    ),
    "a_mean_that_is_added_to_each": lambda each, out, group: (
        torch.sigmoid(each) + 0.5 * each.mean() / 3
    ).mean(),
    "a_mean_over_picked_elements_that_is_added_to_each": lambda each, out, group: (
        torch.sigmoid(each) + 0.5 * out[out.abs() > -1].pow(2).mean()
    ).mean(),
    "a_sum_that_is_subtracted_from_each": lambda each, out, group: (
        2 * (torch.sigmoid(each) - out.pow(2).sum()).mean()
    ),
    "two_means_that_are_added_to_each": lambda each, out, group: (
        (each + out.pow(2).mean()) * 0.1 - out.pow(4).mean()
    ).mean(),
    "groups_one_after_another": lambda each, out, group: torch.cat(_split(each, group)).mean(),
    "groups_with_weights": lambda each, out, group: (
        torch.cat((1.5 * each[group], each[~group].exp())).sum() * 0.3
    ),
    "groups_without_those_that_are_no_numbers": lambda each, out, group: torch.cat(
        _split(each, group)
    ).nanmean(),
    "groups_that_masks_pick": lambda each, out, group: (
        -torch.cat((each[group].exp(), each[~group] ** 2)).mean()
    ),
    "a_sum_of_what_is_a_number": lambda each, out, group: each.nansum(),
}.items():
    RIGHT[_name] = lambda join=_join: joined(join)  # type: ignore[misc]


for _name, _join, _said in (
    (
        "a_mean_that_is_added_to_each_of_a_sum",
        lambda each, out, group: (torch.sigmoid(each) + each.mean()).sum(),
        "as often as there are examples",
    ),
    (
        "a_mean_that_is_multiplied_with_each",
        lambda each, out, group: (each.mean().expand(5) * out.detach()[:, 0]).mean(),
        "mixes examples",
    ),
    (
        "the_root_of_a_mean_that_is_added_to_each",
        lambda each, out, group: (each + each.mean().sqrt()).mean(),
        "SqrtBackward0 is not linear in the losses",
    ),
    (
        "groups_whose_targets_may_follow",
        lambda each, out, group: F.mse_loss(
            torch.cat((out[group], out[~group])), torch.ones(5, 3).double()
        ),
        "in another order",
    ),
    (
        "groups_that_are_weighted_by_their_places",
        lambda each, out, group: torch.cat(_split(each, group)) @ torch.arange(5).double(),
        "in another order",
    ),
):
    REFUSED[_name] = (lambda join=_join: joined(join), _said)  # type: ignore[misc]


@right
def a_parameter_that_is_added_to_each() -> Situation:
    """A temperature, of which each example has a gradient of its own."""

    def forward(self: Any, x: Tensor) -> Any:
        return self.inner(x) * self.scale.exp()

    def step(model: Any, x: Tensor, y: Tensor) -> Any:
        each = F.cross_entropy(model(x), y, reduction="none")
        loss = (each + model.scale).mean()
        loss.backward()
        return loss

    scale = nn.Parameter(torch.tensor(math.log(2.0)).double())
    return Situation(Module(forward, inner=two_layers(), scale=scale), numbers(), step)
