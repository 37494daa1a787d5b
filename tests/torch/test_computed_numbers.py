"""Python numbers that a program computes from values of the batch: they differ in the next one."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import sawlog
from sawlog.errors import MixedExamplesError
from tests.torch.interacting_programs import Net, hidden, losses_of
from tests.torch.programs import Program, assert_alike, logged

EARLY = {
    "arithmetic": hidden(lambda h: h * (0.3 * float(h.detach().mean()) + 0.7)),
    "a root": hidden(lambda h: h / (float(h.detach().var()) + 1e-5) ** 0.5),
    "a ratio of two": hidden(lambda h: h * (float(h.detach().max()) / float(h.detach().std()))),
    "a logarithm": hidden(lambda h: h * math.log(2 + float(h.detach().abs().max()))),
    "a sum of several": hidden(lambda h: h / sum(float(row.detach().norm()) for row in h)),
    "by numpy": hidden(lambda h: h / float(h.detach().numpy().std())),
    "a balance of terms": lambda m, x, y: (
        lambda one, two: one + two * (one.detach().item() / two.detach().item())
    )(losses_of(m, x, y).mean(), (m(x) ** 2).mean()),
    "of the inputs": lambda m, x, y: kept(m, x, y),
    "a moving average": lambda m, x, y: F.cross_entropy(
        m(x, lambda h: h / (0.9 * 1.3 + 0.1 * h.detach().std().item())), y
    ),
    "the moving average of an object": lambda m, x, y: F.cross_entropy(m(x, Moving()), y),
    "a mean of a list": hidden(lambda h: h - sum(h.detach()[:, 0].tolist()) / len(h)),
    "a root of numpy": hidden(lambda h: h / float(np.sqrt(h.detach().numpy().var() + 1e-5))),
}  # fmt: skip
WRONG = {
    "a sine": hidden(lambda h: h * (2 + math.sin(float(h.detach().mean())))),
    "constants of many digits": hidden(lambda h: h * (0.31234 * float(h.detach().std()) + 0.7717)),
    "an integer": hidden(lambda h: h * (1 + int(1000 * h.detach().mean().abs()))),
    "an array": hidden(lambda h: h - torch.from_numpy(h.detach().numpy()[:, :1].mean(0))),
    "a tensor of an array": hidden(lambda h: h - torch.tensor(h.detach().numpy()[:, :1].std(0))),
    "a count": hidden(lambda h: h / int((h.detach() > 0).sum())),
    "a length": hidden(lambda h: h / len((h.detach() > 0).nonzero())),
    "a size": hidden(lambda h: h / h.detach()[h.detach() > 0].shape[0]),
}  # fmt: skip
SCHEDULE = itertools.count(1.3, 0.1)
WINDOW = np.hanning(5)[1:4]
STEPS = itertools.count(1)


class Cooling:
    """Keeps a temperature as an attribute."""

    temperature = 1.7

    def step(self):
        self.temperature *= 0.9


COOLING = Cooling()


class Moving:
    """Divides by a moving average of the batches."""

    def __init__(self):
        self.size = 1.2345678

    def __call__(self, h):
        self.size = 0.99 * self.size + 0.01 * float(h.detach().abs().max())
        return h / self.size


def annealed(m, x, y):
    """A weight that is computed before a value is read, and used after that."""
    beta = 0.5 * (1 + math.cos(math.pi * next(STEPS) / 50))
    each = losses_of(m, x, y)
    annealed.seen = each.mean().item()
    return beta * each.mean() + (1 - beta) * (m(x) ** 2).mean()


def cooled(m, x, y):
    COOLING.step()
    h = m(x)
    cooled.seen = h.std().item(), h.detach().numpy().mean()
    return F.cross_entropy(h / COOLING.temperature, y)


def kept(m, x, y):
    """A statistic of the inputs, which was read first, is none of the program's own numbers."""
    size = float(x.std()) + 1e-4
    h = m(x)
    kept.seen = h.std().item()
    return F.cross_entropy(h / size, y)


RIGHT = {
    "looked at": lambda m, x, y: (
        lambda h, each: (h.std().item(), len((h > 0).nonzero()), each.mean())[2]
    )(m(x), losses_of(m, x, y)),
    "each by its own number": lambda m, x, y: F.cross_entropy(
        m(x, lambda h: torch.stack([row / (float(row.detach().norm()) + 1e-5) for row in h])), y
    ),
    "each by the mean of its own list": lambda m, x, y: F.cross_entropy(
        m(x, lambda h: torch.stack([row - sum(row.tolist()) / len(row) for row in h])), y
    ),
    "constants": lambda m, x, y: (
        lambda h: (h.std().item(), F.cross_entropy(0.7 * h / 3, y))[1]
    )(m(x)),
    "counts of labels": lambda m, x, y: (
        lambda h: (h.std().item(), losses_of(m, x / int((y > 0).sum()), y).mean())[1]
    )(m(x)),
    "a schedule": lambda m, x, y: (
        lambda h: (h.std().item(), F.cross_entropy(h * torch.tensor(next(SCHEDULE)), y))[1]
    )(m(x)),
    "an array of constants": lambda m, x, y: (
        lambda h: (h.detach().numpy().mean(), F.cross_entropy(h * torch.from_numpy(WINDOW), y))[1]
    )(m(x)),
    "an array that is made again": lambda m, x, y: (
        lambda h: (h.detach().numpy().mean(), F.cross_entropy(h * torch.tensor([1, 0.3, 2]), y))[1]
    )(m(x)),
    "a weight computed before": annealed,
    "an attribute": cooled,
}  # fmt: skip


def start(tmp_path):
    torch.manual_seed(0)
    model = Net().double().eval()
    run = sawlog.init(project="run", root=tmp_path, config={"dtype": "float64"})
    names = [n for n, _ in model.named_parameters() if "norm" not in n]
    report = run.watch(model, names, quiet=True)
    batches = [(torch.randn(6, 4).double(), torch.randint(0, 3, (6,))) for _ in range(5)]
    return run, report, model, batches


def go(run, model, loss, batches, first=0):
    for number, (x, y) in enumerate(batches, first):
        with run(data_id=np.arange(6) + 6 * number):
            loss(model, x, y).backward()


@pytest.mark.parametrize("name", EARLY)
def test_a_short_formula_of_numbers_that_were_read_is_refused_at_once(tmp_path, name):
    run, _, model, batches = start(tmp_path)
    with pytest.raises(MixedExamplesError, match="leaves no gradient") as error:
        go(run, model, EARLY[name], batches[:1])
    assert "Hint:" in str(error.value)
    run.finalize()


@pytest.mark.parametrize("name", WRONG)
def test_a_number_that_differs_from_batch_to_batch_is_refused(tmp_path, name):
    run, _, model, batches = start(tmp_path)
    with pytest.raises(MixedExamplesError, match="differs from batch to batch") as error:
        go(run, model, WRONG[name], batches)
    assert f"of {__file__}:" in str(error.value)
    assert "Hint:" in str(error.value)
    with pytest.raises(MixedExamplesError, match="differs from batch to batch"):
        go(run, model, WRONG[name], batches[-1:], 9)  # as before
    run.finalize()


@pytest.mark.parametrize("name", RIGHT)
def test_numbers_that_do_not_come_from_examples_are_right(tmp_path, name):
    run, report, model, batches = start(tmp_path)
    go(run, model, RIGHT[name], batches)
    run.finalize()
    if name in ("a schedule", "counts of labels", "a weight computed before", "an attribute"):
        return  # of the batch, the same for its examples
    for number, batch in enumerate(batches):
        expected = Program(model, batch, RIGHT[name]).alone()
        found = logged(run, report, np.arange(6) + 6 * number)
        assert_alike(found, {each: expected[each] for each in found})


def test_nothing_is_compared_where_no_value_was_read(tmp_path):
    run, _, model, batches = start(tmp_path)
    scales = iter([0.3, 0.4, 0.5, 0.6, 0.7])
    go(run, model, lambda m, x, y: F.cross_entropy(m(x) * next(scales), y), batches)
    run.finalize()
