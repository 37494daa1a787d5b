"""Programs whose losses over positions are joined with weights, masks and counts that differ."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .account_base import RIGHT, Situation, language, tokens

Join = Callable[[Tensor, Tensor], Tensor]


def uneven() -> tuple[Tensor, Tensor]:
    """Words of 4 examples, of which each has another number of targets."""
    x, y = tokens(4, 6)
    for example, length in enumerate((6, 2, 1, 4)):
        y[example, length:] = -100
    return x, y


def joined(join: Join) -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = join(model(x), y)
        loss.backward()
        return loss

    return Situation(language(), uneven(), step)


WEIGHTS = torch.tensor([0.2, 0.7, 1.3, 0.4, 2.1, 1.0, 0.9]).double()


def _each(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits.transpose(1, 2), y.clamp(min=0), reduction="none")


for _name, _join in {
    "targets_along_the_last_axis": lambda z, y: F.cross_entropy(z.transpose(1, 2), y),
    "class_weights_along_the_last_axis": lambda z, y: F.cross_entropy(
        z.transpose(1, 2), y, weight=WEIGHTS
    ),
    "a_sum_along_the_last_axis_by_its_targets": lambda z, y: (
        F.cross_entropy(z.transpose(1, 2), y, reduction="sum") / (y != -100).sum()
    ),
    "a_sum_of_class_weights_by_their_sum": lambda z, y: (
        F.cross_entropy(z.flatten(0, 1), y.flatten(), weight=WEIGHTS, reduction="sum")
        / WEIGHTS[y[y != -100]].sum()
    ),
    "a_target_that_is_ignored": lambda z, y: F.cross_entropy(z[:, 3], y[:, 3]),
    "filled_by_a_mask": lambda z, y: (
        _each(z, y).masked_fill(y == -100, 0.0).sum() / (y != -100).sum()
    ),
    "chosen_by_a_mask": lambda z, y: (
        torch.where(y != -100, _each(z, y), 0.0).sum() / (y != -100).sum()
    ),
    "filled_by_a_mask_and_scaled_many_times": lambda z, y: (
        functools.reduce(
            lambda one, _: -one, range(20), _each(z, y).masked_fill(y == -100, 0.0)
        ).sum()
        / (y != -100).sum()
    ),
    "chosen_by_the_opposite_of_a_mask": lambda z, y: (
        torch.where(y == -100, 0.0, _each(z, y)).sum() / (y != -100).sum()
    ),
    "selected_by_a_mask": lambda z, y: _each(z, y).masked_select(y != -100).mean(),
    "a_sum_of_those_selected_by_a_mask": lambda z, y: (
        _each(z, y).masked_select(y != -100).sum() / (y != -100).sum()
    ),
    "positions_before_examples": lambda z, y: F.cross_entropy(
        z.transpose(0, 1).flatten(0, 1), y.T.flatten()
    ),
    "classes_before_positions_before_examples": lambda z, y: F.nll_loss(
        z.log_softmax(-1).permute(2, 1, 0).flatten(1).T, y.T.flatten()
    ),
    "positions_before_classes_before_examples": lambda z, y: F.cross_entropy(
        z.permute(1, 2, 0), y.T, weight=WEIGHTS
    ),
    "a_dot_product_by_the_sum_of_its_weights": lambda z, y: (
        torch.dot(_each(z, y).mean(1), (y != -100).sum(1).double()) / (y != -100).sum()
    ),
    "a_sum_by_the_number_of_all_elements": lambda z, y: (z**2).sum() / z.numel(),
    "a_mean_over_negative_axes_of_masked_tokens": lambda z, y: (
        (_each(z, y) * (y != -100)).mean((-1, -2)) / (y != -100).double().mean()
    ),
}.items():
    RIGHT[_name] = lambda join=_join: joined(join)  # type: ignore[misc]
