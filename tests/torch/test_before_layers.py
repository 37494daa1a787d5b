"""Examples that interact before the first watched layer: in frozen layers, or at the inputs."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sawlog
from sawlog.errors import ArgumentError, CaptureError, MixedExamplesError
from tests.torch.programs import Program, assert_alike, logged


class Backbone(nn.Module):
    """Two layers that are not trained, one that is, and what happens between them."""

    def __init__(self, first, between):
        super().__init__()
        self.first_change, self.between = first, between
        self.one, self.two, self.head = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 3)
        self.table = nn.Embedding(6, 6)
        for each in (self.one, self.two, self.table):
            each.requires_grad_(False)

    def forward(self, x):
        h = torch.tanh(self.one(self.first_change(x)))
        return self.head(self.two(self.between(self, h)))


def same(*args):
    return args[-1]


def without_gradient(change):
    return torch.no_grad()(change)


WRONG = {
    "centred features": (same, lambda m, h: h - h.mean(0)),
    "batch norm": (same, lambda m, h: F.batch_norm(h, None, None, training=True)),
    "attention over the batch": (same, lambda m, h: torch.softmax(h @ h.T, 1) @ h),
    "mixed features": (same, lambda m, h: 0.7 * h + 0.3 * h.roll(1, 0)),
    "without a gradient": (same, without_gradient(lambda m, h: h / h.abs().max())),
    "centred inputs": (lambda x: x - x.mean(0), same),
    "inputs over their greatest": (lambda x: x / x.abs().max(), same),
    "whitened inputs": (lambda x: (x - x.mean(0)) / x.std(0), same),
}
RIGHT = {
    "plain": (same, same),
    "scaled inputs": (lambda x: (x - 0.3) / 1.7, same),
    "each centred": (lambda x: x - x.mean(1, keepdim=True), lambda m, h: h - h.mean(1)[:, None]),
    "a table as long as the batch": (
        same,
        lambda m, h: h + torch.tanh(m.table(torch.arange(6))).sum(0),
    ),
    "a trained layer": (same, lambda m, h: F.layer_norm(h, h.shape[1:])),
    "looked at": (same, lambda m, h: (h.mean(0), h)[1]),
}


def start(tmp_path, kind, size=6, names=None):
    torch.manual_seed(0)
    model = Backbone(*kind).double()
    batch = torch.randn(size, 4).double(), torch.randint(0, 3, (size,))
    program = Program(model, batch, lambda model, x, y: F.cross_entropy(model(x), y))
    run = sawlog.init(project="run", root=tmp_path, config={"dtype": "float64"})
    return run, run.watch(model, names, quiet=True), program


@pytest.mark.parametrize("way", ["frozen", "not watched"])
@pytest.mark.parametrize("name", WRONG)
def test_examples_that_interact_before_the_first_layer_are_refused(tmp_path, name, way):
    run, _, program = start(tmp_path, WRONG[name], names=["head.*"])
    if way == "not watched":
        program.model.requires_grad_(True)
        run = sawlog.init(project="other", root=tmp_path)
        run.watch(program.model, ["head.*"], quiet=True)
    before = program.batch[0].clone()
    said = pytest.raises((MixedExamplesError, ArgumentError), match=r"normalises over|joins them")
    with said, run(data_id=range(6)):
        program.of().backward()
    assert torch.equal(program.batch[0], before)
    run.finalize()


@pytest.mark.parametrize("name", RIGHT)
def test_frozen_layers_that_keep_examples_apart_are_right(tmp_path, name):
    run, report, program = start(tmp_path, RIGHT[name])
    for first in (0, 6):
        with run(data_id=np.arange(6) + first):
            program.of().backward()
    run.finalize()
    assert_alike(logged(run, report, range(6)), program.alone())


def test_as_many_features_as_examples_show_nothing(tmp_path):
    """The examples could be along either axis, so none are replaced."""
    run, report, program = start(tmp_path, (lambda x: x * x.sum(1)[:, None], same), size=4)
    with run(data_id=range(4)):
        program.of().backward()
    run.finalize()
    assert_alike(logged(run, report, range(4)), program.alone())


def test_frozen_layers_run_as_they_do_without_a_run(tmp_path):
    """PyTorch computes some layers in another way where modules have hooks."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval().requires_grad_(False)
    model = nn.ModuleDict({"frozen": layer, "head": nn.Linear(8, 3)})
    x, y = torch.randn(5, 4, 8), torch.randint(0, 3, (5,))

    def of(model):
        with torch.no_grad():
            features = model["frozen"](x).mean(1)
        return features, F.cross_entropy(model["head"](features), y)

    expected, expected_loss = of(model)
    run = sawlog.init(project="run", root=tmp_path)
    run.watch(model, quiet=True)
    with run(data_id=range(5)):
        features, loss = of(model)
        loss.backward()
    run.finalize()
    assert torch.equal(features, expected)
    assert torch.equal(loss, expected_loss)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_refused(tmp_path, layout):
    torch.manual_seed(0)
    model = nn.ModuleDict({"one": nn.Linear(3, 3), "head": nn.Linear(3, 2)})
    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    run = sawlog.init(project="run", root=tmp_path)
    run.watch(model, quiet=True)

    def go():
        h = model["one"](torch.nested.nested_tensor(parts, layout=layout))
        padded = torch.nested.to_padded_tensor(h, 0.0)
        F.cross_entropy(model["head"](padded.sum(1)), torch.tensor([0, 1])).backward()

    with pytest.raises(CaptureError, match="returned a nested tensor"), run(data_id=range(2)):
        go()
    run.finalize()
