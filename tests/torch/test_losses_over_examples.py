"""Losses that are not a sum or mean over examples: refused, also if a reduction is declared."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sawlog.errors import CaptureError
from tests.torch.programs import Program, assert_alike, logged, mlp
from tests.torch.test_run import go, start

UNCLEAR = "one of a softmax"  # unless it is declared
JOINED = {  # of the outputs, and of a loss for each example
    "log-sum-exp of all": lambda out, each: out.logsumexp((0, 1)),
    "product": lambda out, each: each.prod(),
    "root of a mean": lambda out, each: each.mean().sqrt(),
    "logarithm": lambda out, each: each.mean().log(),
    "square": lambda out, each: each.mean() ** 2,
    "perplexity": lambda out, each: each.mean().exp(),
    "greatest": lambda out, each: each.max(),
    "greatest, along an axis": lambda out, each: each.amax(0),
    "median": lambda out, each: each.median(),
    "hardest two": lambda out, each: each.topk(2).values.mean(),
    "norm": lambda out, each: each.norm(),
    "mean and variance": lambda out, each: each.mean() + each.var(),
    "mean and deviation": lambda out, each: each.mean() + each.std(),
    "hinge of deviations": lambda out, each: F.relu(1 - out.std(0)).mean(),
    "product of means": lambda out, each: each.mean() * out.mean(),
    "quotient of sums": lambda out, each: 1 - 2 * each.sum() / (out.exp().sum() + 3),
    "neighbours": lambda out, each: (out[:-1] * out[1:]).sum(),
    "flooding": lambda out, each: (each.mean() - 0.1).abs(),
    "clamped mean": lambda out, each: each.mean().clamp(min=0.1),
    "less of two means": lambda out, each: torch.minimum(each.mean(), out.mean()),
    "one list of candidates": lambda out, each: F.cross_entropy(out[None, :, 0], torch.tensor([0])),
    "candidates, one axis": lambda out, each: F.cross_entropy(out[:, 0], torch.tensor(0)),
    "margins of candidates": lambda out, each: F.multi_margin_loss(
        out[None, :, 0], torch.tensor([0])
    ),
    UNCLEAR: lambda out, each: -F.log_softmax(out[:, 0], 0)[0],
}
SUMMED = {
    "mean": lambda out, each: each.mean(),
    "one minus a mean": lambda out, each: 1 - each.mean(),
    "finite mean": lambda out, each: torch.nan_to_num(each.mean()),
    "chosen mean": lambda out, each: torch.where(each.mean() > 0, each.mean(), torch.zeros(())),
    "product with a vector": lambda out, each: torch.ones(len(each)).to(each) @ each / len(each),
}


def _program(loss):
    base = mlp()

    def joined(model, x):
        out = model(x)
        return loss(out, out.pow(2).mean(1))

    return Program(base.model, base.batch[:1], joined)


@pytest.mark.parametrize(
    ("name", "declared"),
    [*((name, True) for name in JOINED), *((name, False) for name in JOINED if name != UNCLEAR)],
)
def test_a_loss_that_joins_examples_is_refused(tmp_path, name, declared):
    program = _program(JOINED[name])
    options = {"reduction": "mean"} if declared else {}
    run, _ = start(tmp_path, program, **options)
    with pytest.raises(CaptureError, match=r"not a sum or mean over the examples.*Hint"):
        go(run, program)
    run.finalize()


@pytest.mark.parametrize("name", SUMMED)
def test_a_declared_mean_is_a_mean(tmp_path, name):
    program = _program(SUMMED[name])
    run, report = start(tmp_path, program, reduction="mean")
    go(run, program)
    run.finalize()
    assert_alike(logged(run, report, range(program.size)), program.alone())


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("ignored", [-100, 1])
def test_smoothed_labels_with_class_weights_and_ignored_targets(tmp_path, reduction, ignored):
    base, weight = mlp(), torch.tensor([1.0, 2.0, 5.0]).double()
    labels = torch.tensor([0, 2, 2, ignored, 0])

    def loss(model, x, y):
        return F.cross_entropy(
            model(x),
            y,
            weight=weight,
            ignore_index=ignored,
            label_smoothing=0.1,
            reduction=reduction,
        )

    program = Program(base.model, (base.batch[0], labels), loss)
    run, report = start(tmp_path, program)
    go(run, program)
    run.finalize()
    alone = {name: np.nan_to_num(rows) for name, rows in program.alone().items()}
    assert_alike(logged(run, report, range(program.size)), alone)
