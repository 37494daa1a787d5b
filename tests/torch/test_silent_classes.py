"""Programs whose rows were wrong without a word: they are right now, or refused."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sawlog.errors import CaptureError
from tests.torch.programs import Program, assert_alike, logged, mlp
from tests.torch.test_run import go, start


def centred(out):
    return (out - out.mean(0)).pow(2).mean()


INTERACTIONS = {  # zero when a weight is zero, and a mixture of examples otherwise
    "a term": lambda model, x, y, weight: F.cross_entropy(model(x), y) + weight * centred(model(x)),
    "a mask": lambda model, x, y, weight: (
        F.cross_entropy(model(x), y)
        + (torch.full((len(x), len(x)), weight) * (model(x) @ model(x).T)).mean()
    ),
    "a hinge": lambda model, x, y, weight: (
        F.cross_entropy(model(x), y)
        + torch.relu((model(x) @ model(x).T) - 1e6 * (1 - weight)).mean()
    ),
}


@pytest.mark.parametrize("name", INTERACTIONS)
def test_an_interaction_that_is_zero_in_the_first_batch(name, tmp_path):
    base = mlp()
    program = Program(base.model, base.batch, None)
    loss = INTERACTIONS[name]
    run, report = start(tmp_path, program)
    for first in (0, 100):  # proven, and by its plan
        with run(data_id=np.arange(5) + first):
            loss(program.model, *program.batch, 0.0).backward()
    with pytest.raises(CaptureError, match="mixes examples"), run(data_id=range(200, 205)):
        loss(program.model, *program.batch, 1.0).backward()
    run.finalize()
    assert_alike(logged(run, report, np.arange(5) + 100), base.alone())


class Adapted(nn.Module):
    """A low-rank adapter whose second factor is zero, as adapters begin."""

    def __init__(self):
        super().__init__()
        self.whole, self.down, self.up = nn.Linear(4, 3), nn.Linear(4, 2), nn.Linear(2, 3)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.whole(x) + self.up(self.down(x))


def test_gradients_that_are_zero_and_stay_so(tmp_path):
    base = mlp()
    program = Program(Adapted().double(), base.batch, base.loss)
    run, report = start(tmp_path, program)
    for first in (0, 100, 200):
        go(run, program, ids=np.arange(5) + first)
    run.finalize()
    assert_alike(logged(run, report, np.arange(5) + 200), program.alone())


class Small(nn.Module):
    """A layer with gradients much smaller than those of others, used outside of its module."""

    def __init__(self, twice, scale):
        super().__init__()
        self.a, self.b, self.c, self.o = (nn.Linear(4, n) for n in (4, 4, 4, 3))
        self.twice, self.scale = twice, scale

    def forward(self, x):
        h = self.a(x).tanh()
        if self.twice:
            inner = self.b(h).tanh() + F.linear(h.sin(), self.b.weight)
        else:
            inner = F.linear(h, self.b.weight, self.b.bias).tanh()
        return self.o(h + self.scale * self.c(inner))


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 1e-6), (torch.float64, 1e-9)])
@pytest.mark.parametrize("twice", [False, True])
def test_a_layer_with_small_gradients_is_proven_by_itself(twice, dtype, scale, tmp_path):
    torch.manual_seed(0)
    base = mlp()
    batch = (base.batch[0].to(dtype), base.batch[1])
    program = Program(Small(twice, scale).to(dtype), batch, base.loss)
    run, report = start(tmp_path, program, dtype="float64")
    for first in (0, 100):
        go(run, program, ids=np.arange(5) + first)
    run.finalize()
    expected = program.alone()["b.weight"]
    for first in (0, 100):
        found = logged(run, report, np.arange(5) + first)["b.weight"]
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert error < (1e-3 if dtype == torch.float32 else 1e-6)


PARTS = {  # the model is called on parts of the batch, or of its positions
    "two parts": lambda model, x: torch.cat([model(x[:2]), model(x[2:])]),
    "examples": lambda model, x: torch.stack([model(each) for each in x]),
    "single rows": lambda model, x: torch.cat([model(each[None]) for each in x]),
    "a solved system": lambda model, x: model(
        torch.linalg.solve_triangular(torch.tril(torch.ones(4, 4).to(x)), x.T, upper=False).T
    ),
    "chunks of positions": lambda model, x: (
        torch.cat([model(each) for each in x[:, None].expand(-1, 2, -1).flatten(0, 1).split(3)])
        .unflatten(0, (-1, 2))
        .mean(1)
    ),
}


@pytest.mark.parametrize("size", [4, 5])
@pytest.mark.parametrize("name", PARTS)
def test_a_model_that_is_called_on_parts_of_the_batch(name, size, tmp_path):
    base = mlp(size=size)
    program = Program(
        base.model, base.batch, lambda model, x, y: F.cross_entropy(PARTS[name](model, x), y)
    )
    run, report = start(tmp_path, program)
    for first in (0, 100):
        go(run, program, ids=np.arange(size) + first)
    run.finalize()
    for first in (0, 100):
        assert_alike(logged(run, report, np.arange(size) + first), program.alone())
