"""What Muon multiplies gradients with, against its own iterations in float64."""

import pytest
import torch

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
