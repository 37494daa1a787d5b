"""Examples that interact in what a program was given: inputs before the model, and labels."""

import contextlib

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sawlog
from sawlog.errors import CaptureError, MixedExamplesError
from tests.torch.programs import Program, assert_alike, logged


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 7), nn.Linear(7, 3)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def of_inputs(change):
    return lambda m, x, t, w, y: F.cross_entropy(m(change(x)), y)


def losses_of(m, x, y):
    return F.cross_entropy(m(x), y, reduction="none")


def balanced(m, x, t, w, y):
    positive = (y > 0).double()
    weight = ((1 - positive).sum() + 1) / (positive.sum() + 1)
    return F.binary_cross_entropy_with_logits(m(x)[:, 0], positive, pos_weight=weight)


def prior(m, x, t, w, y):
    return F.cross_entropy(m(x) - (torch.bincount(y, minlength=3).double() + 1).log(), y)


WRONG = {
    "centred inputs": of_inputs(lambda x: x - x.mean(0)),
    "inputs by a number": of_inputs(lambda x: x / x.std().item()),
    "inputs between 0 and 1": of_inputs(lambda x: (x - x.amin(0)) / (x.amax(0) - x.amin(0))),
    "mixed inputs": of_inputs(lambda x: 0.7 * x + 0.3 * x.roll(1, 0)),
    "inputs mixed at random": of_inputs(lambda x: 0.7 * x + 0.3 * x[torch.randperm(len(x))]),
    "ranks of inputs": of_inputs(lambda x: x.argsort(0).argsort(0).double()),
    "without the first": of_inputs(lambda x: x - x[:1]),
    "by the layers of a model": lambda m, x, t, w, y: F.cross_entropy(
        m.second(torch.tanh(m.first(x / x.abs().max()))), y
    ),
    "standardised targets": lambda m, x, t, w, y: F.mse_loss(m(x), (t - t.mean(0)) / t.std(0)),
    "standardised numbers": lambda m, x, t, w, y: F.mse_loss(m(x)[:, 0], w / w.std()),
    "weights over the greatest": lambda m, x, t, w, y: (losses_of(m, x, y) * w / w.max()).mean(),
    "balanced classes": balanced,
    "a prior of the labels": prior,
}  # fmt: skip
RIGHT = {
    "plain": of_inputs(lambda x: x),
    "scaled inputs": of_inputs(lambda x: (x - 0.5) / 3),
    "each centred": of_inputs(lambda x: x - x.mean(1, keepdim=True)),
    "each of them sorted": of_inputs(lambda x: x.sort(1).values),
    "weights": lambda m, x, t, w, y: (losses_of(m, x, y) * w).mean(),
    "a weighted mean": lambda m, x, t, w, y: (losses_of(m, x, y) * w).sum() / w.sum(),
    "targets": lambda m, x, t, w, y: F.mse_loss(m(x), t),
    "each target standardised": lambda m, x, t, w, y: F.mse_loss(m(x), t / t.std(1, keepdim=True)),
    "smoothed labels": lambda m, x, t, w, y: F.cross_entropy(m(x), y, label_smoothing=0.1),
    "a mask of labels": lambda m, x, t, w, y: (
        (losses_of(m, x, y) * (y > 0)).sum() / (y > 0).sum()
        if len(y) > 1 or y > 0
        else 0 * m(x).sum()
    ),
    "labels that are looked at": lambda m, x, t, w, y: (
        torch.bincount(y).double().max().item(), F.cross_entropy(m(x), y)
    )[1],
    # Each example has the loss of its own class, whatever that class weighs.
    "a mean weighted by counts of labels": lambda m, x, t, w, y: F.cross_entropy(
        m(x), y, weight=1 / (torch.bincount(y, minlength=3).double() + 1)
    ),
}  # fmt: skip


def start(tmp_path, loss, seed=0):
    torch.manual_seed(seed)
    model = Net().double()
    x, t, w = torch.randn(6, 4).double(), torch.randn(6, 3).double(), torch.rand(6).double()
    program = Program(model, (x, t, w, torch.tensor([0, 1, 1, 2, 0, 1])), loss)
    run = sawlog.init(project="run", root=tmp_path, config={"dtype": "float64"})
    return run, run.watch(model, quiet=True), program


@pytest.mark.parametrize("name", WRONG)
def test_data_that_a_program_joins_are_refused(tmp_path, name):
    run, _, program = start(tmp_path, WRONG[name])
    before = [each.clone() for each in program.batch]
    said = pytest.raises((CaptureError, MixedExamplesError), match=r"leaves no gradient.* Hint:")
    with said, run(data_id=range(6)):
        program.of().backward()
    assert all(torch.equal(one, two) for one, two in zip(program.batch, before, strict=True))
    run.finalize()


@pytest.mark.parametrize("name", RIGHT)
def test_data_that_a_program_keeps_apart_are_right(tmp_path, name):
    run, report, program = start(tmp_path, RIGHT[name])
    for first in (0, 6):
        with run(data_id=np.arange(6) + first):
            program.of().backward()
    run.finalize()
    assert_alike(logged(run, report, range(6)), program.alone())


def test_a_table_as_long_as_the_batch_is_not_of_examples(tmp_path):
    """It meets no row of the examples, so its rows are not replaced."""
    torch.manual_seed(1)
    table, weights = torch.randn(6, 4).double(), torch.rand(6).double()

    def loss(m, x, t, w, y):
        near = torch.cdist(x, table / table.std())
        return F.cross_entropy(m(x) * near.mean(1)[:, None] * (weights / weights.max()).mean(), y)

    run, report, program = start(tmp_path, loss)
    with run(data_id=range(6)):
        program.of().backward()
    run.finalize()
    assert_alike(logged(run, report, range(6)), program.alone())


def test_counts_whose_mean_is_one_are_no_normalised_weights(tmp_path):
    """The targets of a Poisson loss are factors in its graph."""
    run, report, program = start(
        tmp_path, lambda m, x, t, w, y: F.poisson_nll_loss(m(x)[:, 0], y.double())
    )
    program.batch = (*program.batch[:3], torch.tensor([0, 1, 1, 2, 0, 2]))
    with run(data_id=range(6)):
        program.of().backward()
    run.finalize()
    assert_alike(logged(run, report, range(6)), program.alone())


def test_sequences_that_are_packed_by_their_lengths(tmp_path):
    torch.manual_seed(0)
    model = nn.ModuleDict({"embed": nn.Embedding(9, 5), "rnn": nn.GRU(5, 4, batch_first=True)})
    model["head"] = nn.Linear(4, 2)
    ids, lengths = torch.randint(0, 9, (6, 8)), torch.tensor([8, 3, 2, 5, 7, 3])

    def loss(m, ids, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            m["embed"](ids), lengths, batch_first=True, enforce_sorted=False
        )
        out, _ = nn.utils.rnn.pad_packed_sequence(m["rnn"](packed)[0], batch_first=True)
        there = torch.arange(out.shape[1]) < lengths[:, None]
        means = (out * there[..., None]).sum(1) / lengths[:, None]
        return (m["head"](means) ** 2).sum(1).mean()

    program = Program(model.double(), (ids, lengths), loss)
    run = sawlog.init(project="run", root=tmp_path, config={"dtype": "float64"})
    report = run.watch(model, quiet=True)
    with run(data_id=range(6)):
        program.of().backward()
    run.finalize()
    assert_alike(logged(run, report, range(6)), program.alone())


@pytest.mark.parametrize("joined", [True, False])
def test_numbers_of_examples_are_searched_beside_integers_of_positions(tmp_path, joined):
    """The words of a text stay as they are, and weights of examples are replaced."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"words": nn.Embedding(9, 5), "head": nn.Linear(5, 3)}).double()
    ids, w, y = torch.randint(0, 9, (4, 6)), torch.rand(4).double(), torch.tensor([0, 2, 1, 2])

    def loss(m, ids, w, y):
        each = F.cross_entropy(m["head"](m["words"](ids).mean(1)), y, reduction="none")
        ranks = w.argsort().argsort().double() + 1
        return (each * (ranks if joined else w)).mean()

    program = Program(model, (ids, w, y), loss)
    run = sawlog.init(project="run", root=tmp_path, config={"dtype": "float64"})
    report = run.watch(model, quiet=True)
    said = pytest.raises(MixedExamplesError) if joined else contextlib.nullcontext()
    with said, run(data_id=range(4)):
        program.of().backward()
    run.finalize()
    if not joined:
        assert_alike(logged(run, report, range(4)), program.alone())
