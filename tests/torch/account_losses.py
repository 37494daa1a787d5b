"""Programs with losses of all sorts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
    tokens,
    two_layers,
)


def padded() -> tuple[Tensor, Tensor]:
    x, y = tokens()
    y[0, 2:], y[2, 1:] = -100, -100
    return x, y


# -- losses ---------------------------------------------------------------------------------------


def masked(few: bool) -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        each = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none")
        loss = (each.view(y.shape) * mask).sum() / mask.sum().clamp(min=1)
        loss.backward()
        return loss

    mask = torch.zeros(6, 5).double()
    if few:
        mask[0, 1], mask[3, 2:4] = 1, 1
    else:
        mask[:, 0], mask[1:4, 2] = 1, 1
    return Situation(language(), (*tokens(6, 5), mask), step)


@right
def a_masked_mean() -> Situation:
    return masked(few=False)


@right
def a_masked_mean_of_fewer_targets_than_examples() -> Situation:
    return masked(few=True)


@right
def targets_that_were_picked() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x)[mask], y[mask])
        loss.backward()
        return loss

    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0]]).bool()
    mask[3, 2] = True
    return Situation(language(), (*tokens(4, 3), mask), step)


@right
def a_mean_and_then_a_sum() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        out = model(x)
        one = F.cross_entropy(out, y)
        one.backward(retain_graph=True)
        two = (out**2).sum()
        two.backward()
        return one + two

    return Situation(two_layers(), numbers(), step)


@right
def a_gradient_of_the_inputs_on_the_way() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(F.cross_entropy(model(x), y, reduction="sum"), x)
        return classify(model, (x + 0.1 * grad.sign()).detach(), y)

    return Situation(two_layers(), numbers(), step)


@right
def a_gradient_penalty() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        out = model(x)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        loss = F.cross_entropy(out, y) + (grad.norm(dim=1) - 1).pow(2).mean()
        loss.backward()
        return loss

    return Situation(two_layers(), numbers(), step)


@refused("set to zero between two backward passes")
def gradients_dropped_in_between() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        classify(model, x, y)
        model.zero_grad()
        return classify(model, 2 * x, y)

    return Situation(two_layers(), numbers(), step)


@right
def a_scaler_that_was_not_given() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        return loss

    return Situation(two_layers(), numbers(), step, factor=1024.0)


@right
def accumulation_with_padding() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / 4
        loss.backward()
        return loss

    return Situation(language(), padded(), step)


@right
def accumulation_with_weights_of_classes() -> Situation:
    weight = torch.tensor([0.2, 0.7, 1.3]).double()

    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y, weight=weight) / 4
        loss.backward()
        return loss

    return Situation(two_layers(), numbers(), step)


@right
def soft_targets() -> Situation:
    return Situation(two_layers(), (numbers()[0], torch.rand(5, 3).double()), classify)


@right
def label_smoothing_with_padding() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), label_smoothing=0.1)
        loss.backward()
        return loss

    return Situation(language(), padded(), step)


@right
def terms_that_are_joined_in_different_ways() -> Situation:
    def step(model: Any, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        logits, kind = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        loss = loss + 0.5 * F.cross_entropy(kind, z) + 0.1 * logits.logsumexp(-1).pow(2).mean()
        loss.backward()
        return loss

    def forward(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return m.language(x), m.kind(torch.tanh(m.language.embed(x)).mean(1))

    model = Module(forward, language=language(), kind=nn.Linear(4, 2))
    return Situation(model, (*padded(), torch.tensor([0, 1, 1, 0])), step)


@right
def losses_of_single_examples() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        each = F.cross_entropy(model(x), y, reduction="none")
        each.backward(torch.ones_like(each))
        return each.sum() * 0

    return Situation(two_layers(), numbers(), step)


def started(start: Callable[..., Any], **more: Any) -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        each = F.cross_entropy(model(x), y, reduction="none")
        start(each, w)
        return each.sum() * 0

    return Situation(two_layers(), (*numbers(), torch.rand(5).double()), step, **more)


@right
def several_losses_with_ones() -> Situation:
    def start(each: Tensor, w: Tensor) -> None:
        torch.autograd.backward([each, each.sum()], [torch.ones_like(each), None])

    return started(start)


@right
def weights_of_examples_in_a_sum() -> Situation:
    return started(lambda each, w: (each * w).sum().backward())


@right
def a_mean_by_a_gradient_that_was_declared() -> Situation:
    def start(each: Tensor, w: Tensor) -> None:
        each.backward(torch.full_like(each, 1 / len(each)))

    return started(start, options={"reduction": "mean"})


@refused("call backward on a scalar")
def a_mean_by_a_gradient() -> Situation:
    return started(lambda each, w: each.backward(torch.full_like(each, 1 / len(each))))


@refused("call backward on a scalar")
def weights_by_a_gradient() -> Situation:
    return started(lambda each, w: each.backward(w))


@refused("call backward on a scalar")
def a_mean_by_a_gradient_of_a_number() -> Situation:
    return started(lambda each, w: each.sum().backward(torch.tensor(0.2).double()))


@refused("call backward on a scalar")
def several_losses_with_gradients() -> Situation:
    def start(each: Tensor, w: Tensor) -> None:
        torch.autograd.backward([each.sum(), each], [None, w])

    return started(start)


def with_penalty(rows: int) -> Situation:
    def step(model: Any, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y) + 0.1 * model.weight.pow(2).sum()
        loss.backward()
        return loss

    return Situation(nn.Linear(4, rows), numbers(5, 4, rows), step)


@refused("depends on parameters alone")
def a_penalty_on_weights() -> Situation:
    return with_penalty(3)


@refused("depends on parameters alone")
def a_penalty_on_as_many_rows_as_examples() -> Situation:
    return with_penalty(5)


def joined(join: Callable[[Tensor], Tensor], outputs: int = 3) -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = join((model(x) - 1) ** 2)
        loss.backward()
        return loss

    return Situation(nn.Linear(4, outputs), numbers(), step)


@refused("SqrtBackward0")
def a_root_of_a_mean() -> Situation:
    return joined(lambda each: each.mean().sqrt())


@refused("1 divided by the number of examples, or a constant")
def a_sum_times_the_reciprocal() -> Situation:
    return joined(lambda each: each.sum() * (1 / len(each)))


@refused("the number of examples or a constant")
def a_mean_times_the_examples() -> Situation:
    return joined(lambda each: each.mean() * len(each))


@refused("either axis")
def a_mean_over_either_axis() -> Situation:
    return joined(lambda each: each.mean(0).mean(), outputs=5)


@refused("either axis")
def a_mean_over_either_axis_by_a_negative_number() -> Situation:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = (model(x) ** 2).mean(-3).mean()
        loss.backward()
        return loss

    return Situation(language(), tokens(5, 5), step)


@refused("mixes examples")
def a_mean_that_is_weighted_afterwards() -> Situation:
    return joined(lambda each: (each.mean() * torch.rand(5).double()).mean())


def weighed(join: Callable[[Tensor, Tensor], Tensor], **more: Any) -> Situation:
    """Losses ``[examples, tokens]`` joined by weights of the same shape, uneven between them."""

    def step(model: nn.Module, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        each = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none")
        loss = join(each, w)
        loss.backward()
        return loss

    w = torch.rand(6, 5).double()
    w[0, 2:], w[4, 1] = 0, 0
    return Situation(language(), (*tokens(6, 5), w), step, **more)


def _advantages(each: Tensor, w: Tensor) -> Tensor:
    return -torch.min(each * (w - w.mean()), each.clamp(0.8, 1.2) * (w - w.mean())).mean()


for _name, _join in {
    "a_mean_by_that_of_the_weights": lambda each, w: (each * w).mean() / w.mean(),
    "a_sum_by_that_of_the_weights": lambda each, w: (each * w).sum() / w.sum(),
    "weights_normalised_for_each_example": lambda each, w: (
        (each * (w / w.sum(1, keepdim=True))).sum(1).mean()
    ),
    "weights_of_either_sign": lambda each, w: (
        (each * (w > 0.5).double().mul(2).sub(1)).sum(-1).mean(-1)
    ),
    "a_dot_product_with_weights": lambda each, w: torch.dot(each[:, 0], w[:, 0]),
    "a_constant_before_a_sum": lambda each, w: (each / 7).sum(),
    "negative_axes": lambda each, w: each.mean(-1).mean(-1),
    "a_mask_that_chooses_nothing": lambda each, w: (each[w > 2] * w[w > 2]).sum(),
}.items():
    RIGHT[_name] = lambda join=_join: weighed(join)  # type: ignore[misc]

for _name, (_join, _said) in {
    "weights_that_sum_up_to_one": (lambda each, w: (each * (w / w.sum())).sum(), "sum up to 1"),
    "weights_of_the_same_size": (
        lambda each, w: torch.dot(each.mean(1), torch.full((len(w),), 1 / len(w)).double()),
        "sum up to 1",
    ),
    "weights_with_the_mean_one": (lambda each, w: (each * (w / w.mean())).mean(), "the mean 1"),
    "advantages_with_the_mean_zero": (_advantages, "the mean 0"),
    "a_division_before_the_sum": (lambda each, w: (each / len(w)).sum(), "before it is joined"),
    "a_product_before_the_sum": (lambda each, w: (each * (1 / w.numel())).sum(), "before it is"),
    "weights_divided_before_the_sum": (lambda each, w: (each * w / w.sum()).sum(), "before it is"),
    "weights_divided_before_the_mean": (
        lambda each, w: (each * w / w.mean()).mean(),
        "before it is joined",
    ),
    "a_mean_by_a_share": (lambda each, w: (each * w).mean(1).mean() / 0.7, "the mean of a mask"),
    "a_mean_times_the_reciprocal": (
        lambda each, w: (each * w).mean() * (1 / w.mean()),
        "1 divided by the mean of a mask",
    ),
    "a_mean_times_the_positions": (
        lambda each, w: each.mean() * w.numel(),
        "may be the number of elements",
    ),
    "a_mean_times_the_positions_that_count": (
        lambda each, w: each[w > 0].mean() * (w > 0).sum() / 100,
        "may be the number of positions",
    ),
}.items():
    REFUSED[_name] = (lambda join=_join: weighed(join), _said)  # type: ignore[misc]


@refused("along another axis")
def the_last_of_cumulated_losses() -> Situation:
    """One element, in which all examples are, of a tensor as long as the batch."""

    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y, reduction="none").cumsum(0)[-1]
        loss.backward()
        return loss

    return Situation(two_layers(), numbers(), step, options={"reduction": "sum"})


@right
def weights_that_are_taken_as_they_are() -> Situation:
    """Weights of constants, so that those of a batch of one are the same."""
    w = torch.tensor([0.1, 0.2, 0.3, 0.25, 0.15]).double()

    def step(model: nn.Module, x: Tensor, y: Tensor, at: Tensor) -> Tensor:
        loss = (F.cross_entropy(model(x), y, reduction="none") * w[at]).sum()
        loss.backward()
        return loss

    batch = (*numbers(), torch.arange(5))
    return Situation(two_layers(), batch, step, options={"reduction": "sum"})
