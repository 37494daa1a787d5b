"""What was proven of batches of one size does not hold for those of another."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.programs import Program, assert_alike, logged
from tests.torch.test_run import start


class Positions(nn.Module):
    """A layer that is called once for all examples, on 6 positions, which may be their number."""

    def __init__(self):
        super().__init__()
        self.inputs, self.shared, self.out = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(4, 2)
        self.register_buffer("places", torch.randn(6, 2))

    def forward(self, x):
        return self.out(torch.tanh(self.inputs(x) + self.shared(self.places))).sum((1, 2))


@pytest.mark.parametrize("sizes", [*itertools.permutations([1, 2, 6], 3), (1, 3, 4)])
def test_a_tensor_of_all_examples_beside_batches_of_any_size(tmp_path, sizes):
    torch.manual_seed(0)
    count = sum(sizes)
    x = torch.randn(count, 6, 3).double()
    program = Program(Positions().double(), (x,), lambda model, x: (model(x) ** 2).mean())
    run, report = start(tmp_path, program, {"uncovered": "func"}, dtype="float64")
    ids = np.arange(count)
    for own in np.split(ids, np.cumsum(sizes)[:-1]):
        with run(data_id=own):
            program.of(program.part(own)).backward()
    run.finalize()
    assert_alike(logged(run, report, ids), program.alone())


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_positions_and_views_of_the_same_operations(tmp_path, order):
    """Rows of an example are neighbours if they are positions, and apart if they are views."""
    torch.manual_seed(0)
    model, several = nn.Linear(4, 5).double(), torch.randn(2, 3, 2, 4).double()

    def loss(x):
        return (model(x.flatten(0, 1)).view(*x.shape[:2], -1) ** 3).mean()

    program = Program(model, (several.flatten(0, 1),), lambda model, x: loss(x))
    run, report = start(tmp_path, program, dtype="float64")
    for ids, views in [(np.arange(3), 1), (np.arange(3, 6), 2)][order]:
        x = program.part(ids)[0]
        with run(data_id=ids, views=views):
            loss(x if views == 1 else x.transpose(0, 1)).backward()
    run.finalize()
    assert_alike(logged(run, report, range(6)), program.alone())
