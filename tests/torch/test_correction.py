"""What Muon multiplies gradients with, against its own iterations in float64."""

import pytest
import torch

from sawlog.errors import ArgumentError
from sawlog.factored import Dense, OneHot, Pair, gradient, rows
from sawlog.run_files._blocks import Block
from sawlog.torch._training._correction import Correction

A, B, C = 3.4445, -4.7750, 2.0315  # the coefficients of Newton-Schulz in torch.optim.Muon


def iterated(momentum, steps=5):
    """Newton-Schulz: it increases a singular value that is nearly 0 by ``A`` in each step."""
    found = momentum / momentum.norm()
    for _ in range(steps):
        square = found @ found.T
        found = A * found + (B * square + C * square @ square) @ found
    return found


@pytest.mark.parametrize("shape", [(3, 5), (4, 4), (6, 3)])
def test_singular_values_near_0_are_increased_no_more_than_by_the_iterations(shape):
    torch.manual_seed(0)
    least = min(shape)
    left, right = (torch.linalg.qr(torch.randn(n, least).double())[0] for n in shape)
    values = torch.ones(least).double()
    values[-1] = 1e-6  # of a direction in which there is nearly no momentum
    momentum = left * values @ right.T
    weight = torch.nn.Parameter(torch.zeros(shape))
    optimizer = torch.optim.Muon([weight], lr=0.1)
    optimizer.state[weight]["momentum_buffer"] = momentum.float()
    block = Block("w", ("w",), shape, "right")
    correction = Correction(optimizer, {"w": weight})
    along = (left[:, -1:] @ right[:, -1:].T).float()[None]  # a gradient in that direction
    one = Pair(Dense(left[None, None, :, -1].float()), Dense(right[None, None, :, -1].float()))
    lookup = Pair(OneHot(torch.arange(shape[0])[None], shape[0]), Dense(along))
    wanted = (left[:, -1] @ iterated(momentum) @ right[:, -1]) / 1e-6
    wanted = float(wanted) * max(1.0, shape[0] / shape[1]) ** 0.5
    for pair in (one, lookup, rows(along)):
        found = gradient(correction.apply(block, pair))[0].double()
        torch.testing.assert_close(found, wanted * along[0].double(), rtol=1e-2, atol=1e-2 * wanted)


@pytest.mark.parametrize("shape", [(3, 5), (6, 3)])
def test_the_scale_of_a_matrix_is_that_of_the_update(shape):
    """As in the change that a step makes with it, and without the learning rate."""
    found = {}
    for adjust in ("original", "match_rms_adamw"):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(shape))
        optimizer = torch.optim.Muon([weight], lr=0.1, weight_decay=0.0, adjust_lr_fn=adjust)
        weight.grad, before = torch.randn(shape), weight.detach().clone()
        optimizer.step()
        correction = Correction(optimizer, {"w": weight})
        row = gradient(
            correction.apply(Block("w", ("w",), shape, "right"), rows(weight.grad[None]))
        )
        found[adjust] = (row, before - weight.detach())
    (one, step), (other, other_step) = found.values()
    torch.testing.assert_close(other.norm() / one.norm(), other_step.norm() / step.norm())


class Muon(torch.optim.Optimizer):
    """An optimizer of that name that scales matrices in its own way."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1, "ns_steps": 5})

    def step(self):
        for group in self.param_groups:
            for each in group["params"]:
                self.state[each]["momentum_buffer"] = torch.ones_like(each)


class Rotated(Muon):
    """An optimizer that divides in another basis, as SOAP does."""

    def step(self):
        for group in self.param_groups:
            for each in group["params"]:
                self.state[each] = {"exp_avg_sq": torch.ones_like(each), "step": 1}


def radam(parameters):
    return torch.optim.RAdam(parameters, lr=0.1)


@pytest.mark.parametrize(
    ("optimizer_of", "message"),
    [
        (Muon, "neither Adam's nor that of Muon"),
        (Rotated, "Rotated has second moments of 'w', but whether it divides"),
        (radam, "RAdam has second moments of 'w', but whether it divides"),
    ],
)
def test_optimizers_that_do_something_else_are_refused(optimizer_of, message):
    weight = torch.nn.Parameter(torch.ones(3, 2))
    optimizer = optimizer_of([weight])
    weight.grad = torch.ones(3, 2)
    optimizer.step()
    correction = Correction(optimizer, {"w": weight})
    with pytest.raises(ArgumentError, match=message):
        correction.apply(Block("w", ("w",), (3, 2), "right"), rows(torch.ones(1, 3, 2)))


def test_adam_is_known_by_its_subclasses():
    class Own(torch.optim.AdamW):
        pass

    weight = torch.nn.Parameter(torch.ones(3, 2))
    optimizer = Own([weight], eps=0.0)
    weight.grad = torch.full((3, 2), 4.0)
    optimizer.step()
    correction = Correction(optimizer, {"w": weight})
    row = correction.apply(Block("w", ("w",), (3, 2), "right"), rows(torch.ones(1, 3, 2)))
    torch.testing.assert_close(gradient(row), torch.full((1, 3, 2), 0.25))
