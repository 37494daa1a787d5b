"""Forward logs of layers that have the sequence first, where no gradient shows the examples."""

import numpy as np
import pytest
import torch
from torch import nn

from sawlog.influence import Logs
from tests.torch.programs import Program
from tests.torch.test_run import start


class Attending(nn.Module):
    """Examples come first, but for the attention unless ``batch_first``."""

    def __init__(self, batch_first):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first)
        self.out = nn.Linear(4, 2)
        self.batch_first = batch_first

    def forward(self, x):
        h = x if self.batch_first else x.transpose(0, 1)
        h, _ = self.attention(h, h, h, need_weights=False)
        return self.out(h if self.batch_first else h.transpose(0, 1))


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", ["input", "output"])
def test_as_many_positions_as_examples(tmp_path, batch_first, kind):
    torch.manual_seed(0)
    x = torch.randn(3, 3, 4)
    program = Program(Attending(batch_first), (x,), None)
    run, _ = start(tmp_path, program, log=["forward"], forward=kind)
    with run(data_id=[7, 8, 9]), torch.no_grad():
        out = program.model(x)
        hidden = program.model.attention(*[x if batch_first else x.transpose(0, 1)] * 3)[0]
    run.finalize()
    logs = Logs(run.store_path, names=["forward/attention", "forward/out"])
    rows = logs.gather([7, 8, 9]).rows()
    hidden = hidden if batch_first else hidden.transpose(0, 1)
    wanted = (x, hidden) if kind == "input" else (hidden, out)
    for name, each in zip(("attention", "out"), wanted, strict=True):
        found = np.asarray(rows[f"forward/{name}"]).reshape(3, 3, -1)
        np.testing.assert_allclose(found, each.detach().numpy(), rtol=1e-5, atol=1e-6)


class Turning(nn.Module):
    """Its second layer has the positions first, and its fourth the features."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(5))
        self.seen = []

    def forward(self, x):
        for layer, axes in zip(self.layers, AXES, strict=True):
            into = x.permute(axes)
            out = layer(into)
            x = torch.tanh(out).permute([axes.index(n) for n in range(3)])
            self.seen.append((into.detach(), out.detach()))
        return x


AXES = [(0, 1, 2), (1, 0, 2), (0, 1, 2), (2, 0, 1), (0, 2, 1)]


@pytest.mark.parametrize("kind", ["input", "output"])
def test_gradients_show_which_of_equal_axes_has_the_examples(tmp_path, kind):
    """Three examples of three positions of three features: no length tells them apart."""
    torch.manual_seed(0)
    x = torch.randn(3, 3, 3)
    model = Turning()
    run, _ = start(tmp_path, Program(model, (x,), None), log=["forward", "grad"], forward=kind)
    with run(data_id=[7, 8, 9]):
        (model(x) ** 2).sum((1, 2)).mean().backward()
    run.finalize()
    names = [f"forward/layers.{n}" for n in range(5)]
    rows = Logs(run.store_path, names=names).gather([9, 7, 8]).rows()
    for name, axes, pair in zip(names, AXES, model.seen[:5], strict=True):
        wanted = pair[kind == "output"].movedim(axes.index(0), 0)[[2, 0, 1]]
        np.testing.assert_allclose(rows[name].reshape(3, 3, 3), wanted, rtol=1e-5, atol=1e-6)
