"""A run against plain autograd, example by example, and the promise to change nothing."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sawlog import store
from sawlog.errors import (
    ArgumentError,
    CaptureError,
)
from tests.torch.programs import PROGRAMS, Program, assert_alike, logged, mlp
from tests.torch.run_helpers import go, start

# -- the gradients of each example ----------------------------------------------------------------


@pytest.mark.parametrize("way", ["loss.backward", "run.backward"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_each_example_alone(tmp_path, name, declared, reduction, way):
    program = PROGRAMS[name](reduction)
    said = "tokens" if name == "language" and reduction == "mean" else reduction
    run, report = start(tmp_path, program, reduction=said if declared else "auto")
    go(run, program, way=way, mask=program.batch[1] != -100 if said == "tokens" else None)
    run.finalize()
    assert_alike(logged(run, report, range(program.size)), program.alone())


LOSSES = {
    "mse": lambda out: F.mse_loss(out, torch.ones_like(out)),
    "smooth": lambda out: F.cross_entropy(
        out, torch.zeros(len(out), dtype=int), label_smoothing=0.1
    ),
    "weighted": lambda out: F.cross_entropy(
        out, torch.arange(len(out)) % 3, weight=torch.tensor([1.0, 2.0, 5.0]).double()
    ),
    "half": lambda out: 0.5 * (out**2).sum(1).mean(),
    "sum over batch, mean over classes": lambda out: (out**2).sum(0).mean(),
    "mean of means": lambda out: (out**2).mean(1).mean(0),
    "divided by the batch": lambda out: (out**2).sum() / len(out),
    "two terms": lambda out: (out**2).mean() + 0.1 * out.abs().mean(),
    "a sum of sums": lambda out: (out**2).sum() - out.sum(),
    "squeezed": lambda out: (out**2).mean(dim=(0, 1), keepdim=True).squeeze(),
}


@pytest.mark.parametrize("how", LOSSES)
def test_the_loss_tells_how_it_joins_examples(tmp_path, how):
    base = mlp()
    program = Program(base.model, base.batch[:1], lambda model, x: LOSSES[how](model(x)))
    if how in ("weighted",):
        labels = torch.arange(program.size) % 3
        weight = torch.tensor([1.0, 2.0, 5.0]).double()
        program = Program(
            base.model,
            (base.batch[0], labels),
            lambda model, x, y: F.cross_entropy(model(x), y, weight=weight),
        )
    run, report = start(tmp_path, program)
    go(run, program)
    run.finalize()
    assert_alike(logged(run, report, range(program.size)), program.alone())


def test_a_loss_that_does_not_tell_is_refused(tmp_path):
    base = mlp()
    program = Program(base.model, base.batch[:1], lambda model, x: model(x).sum() / 100)
    run, _ = start(tmp_path, program)
    with pytest.raises(ArgumentError, match=r'run.setup\(reduction="mean"\)'):
        go(run, program)
    run.finalize()


def test_batches_of_many_sizes(tmp_path):
    program = mlp(size=11)
    run, report = start(tmp_path, program)
    parts = [slice(0, 4), slice(4, 5), slice(5, 5), slice(5, 11)]
    for part in parts:
        go(run, program, np.arange(11)[part], program.part(part)) if part != slice(5, 5) else None
    with run(data_id=[]):
        pass
    run.finalize()
    assert_alike(logged(run, report, range(11)), program.alone())


def test_a_batch_without_ids_has_no_examples(tmp_path):
    program = mlp(size=3)
    run, _ = start(tmp_path, program)
    with pytest.raises(CaptureError, match="data_id names no examples"), run(data_id=[]):
        program.of().backward()
    with pytest.raises(CaptureError, match="data_id names no examples"), run(data_id=[]):
        run.backward(program.of())
    with run(data_id=[]):
        program.of(program.part(slice(0, 0))).backward()  # NaN, a mean over nothing
        program.model(program.batch[0][:0]).sum().backward()
    go(run, program)
    run.finalize()
    assert len(store.open(run.store_path).ids("grad/0.weight")) == 3


def test_gradients_of_inputs_as_well(tmp_path):
    """Asked for beside those of parameters, and of a loss that is given twice."""
    program = mlp(size=4)
    run, report = start(tmp_path, program, dtype="float64")
    x, y = program.batch
    x = x.clone().requires_grad_()
    with run(data_id=range(4)):
        loss = program.of((x, y))
        torch.autograd.backward([loss, loss], inputs=[x, *program.model.parameters()])
    run.finalize()
    twice = {name: 2 * rows for name, rows in program.alone().items()}
    assert_alike(logged(run, report, range(4)), twice)
    torch.testing.assert_close(x.grad, torch.autograd.grad(program.of((x, y)) * 2, x)[0])


def test_two_losses_for_two_parts_of_a_model(tmp_path):
    """As in adversarial training: each is asked for the gradients of its own part."""
    program = mlp(size=4)
    run, report = start(tmp_path, program, dtype="float64")
    first, last = list(program.model[:3].parameters()), list(program.model[3:].parameters())
    expected = program.alone()
    for number in range(3):  # proven, and planned
        with run(data_id=np.arange(4) + 10 * number):
            loss = program.of()
            loss.backward(inputs=last, retain_graph=True)
            (2 * loss).backward(inputs=first)
    run.finalize()
    expected = {name: (1 if name == "3.weight" else 2) * rows for name, rows in expected.items()}
    for number in range(3):
        assert_alike(logged(run, report, np.arange(4) + 10 * number), expected)


def test_what_was_not_asked_for_has_no_gradient(tmp_path):
    program = mlp(size=4)
    run, report = start(tmp_path, program, dtype="float64")
    expected = program.alone()
    for number in range(2):
        with run(data_id=np.arange(4) + 10 * number):
            program.of().backward(inputs=[program.model[3].weight])
    run.finalize()
    for number in range(2):
        found = logged(run, report, np.arange(4) + 10 * number)
        wanted = {n: rows * (n == "3.weight") for n, rows in expected.items()}
        assert_alike(found, wanted)
    with (
        pytest.raises(CaptureError, match=r"'0\.bias' is not in `inputs`.*Hint:"),
        run(data_id=range(100, 104)),
    ):
        program.of().backward(inputs=[program.model[0].weight])


@pytest.mark.parametrize("kept", ["first", "last"])
def test_one_of_several_rows_of_an_id(tmp_path, kept):
    """Of two batches with the same ids, in one program and in the next one."""
    program = mlp(size=4)
    orders = [[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1]]
    for orders_of_program in (orders[:2], orders[2:]):
        run, report = start(tmp_path, program, duplicates=kept, dtype="float64")
        for order in orders_of_program:
            go(run, program, range(4), program.part(order))
        run.finalize()
    alone, order = program.alone(), orders[0 if kept == "first" else -1]
    assert_alike(logged(run, report, range(4)), {n: rows[order] for n, rows in alone.items()})


def test_gradient_accumulation(tmp_path):
    program = mlp(size=6)
    run, report = start(tmp_path, program)
    for part in (slice(0, 3), slice(3, 6)):
        with run(data_id=np.arange(6)[part]):
            (program.of(program.part(part)) / 2).backward()
    run.finalize()
    halves = {name: rows / 2 for name, rows in program.alone().items()}  # as a batch of one has it
    assert_alike(logged(run, report, range(6)), halves)
    own = torch.autograd.grad(program.of(), program.model.parameters())
    for parameter, gradient in zip(program.model.parameters(), own, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_sequence_first(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    batch = (torch.randn(4, 5, 3).double(),)
    program = Program(model, batch, lambda model, x: (model(x.transpose(0, 1)) ** 2).sum())
    run, report = start(tmp_path, program, {"batch_axis": 1}, reduction="sum")
    go(run, program)
    run.finalize()
    assert_alike(logged(run, report, range(4)), program.alone())


class Flattened(nn.Module):
    """Sequences first, and one layer that sees all positions of all examples in a row."""

    def __init__(self, hidden):
        super().__init__()
        self.first, self.last = nn.Linear(3, hidden), nn.Linear(hidden, 2)

    def forward(self, x):
        hidden = torch.tanh(self.first(x.flatten(0, 1)))
        return self.last(hidden.unflatten(0, x.shape[:2]))


@pytest.mark.parametrize("hidden", [8, 7, 4])  # of features as many as examples, twice that, other
def test_sequence_first_and_flattened(tmp_path, hidden):
    torch.manual_seed(0)
    batch = (torch.randn(4, 5, 3).double(),)
    loss = lambda model, x: (model(x.transpose(0, 1)) ** 2).sum()
    program = Program(Flattened(hidden).double(), batch, loss)
    options = {"log": ["forward", "backward", "grad"], "reduction": "sum", "dtype": "float64"}
    run, report = start(tmp_path, program, {"batch_axis": 1}, precision="float64", **options)
    go(run, program)
    run.finalize()
    assert_alike(logged(run, report, range(4)), program.alone())
    with store.open(run.store_path) as reader:
        inputs, outputs = (reader.read(f"{what}/first") for what in ("forward", "backward"))
        whole = reader.read("grad/first.weight")[..., :3]
    np.testing.assert_array_equal(inputs, batch[0])
    assert outputs.shape == (4, 5, hidden)
    np.testing.assert_allclose(np.swapaxes(outputs, 1, 2) @ inputs, whole, atol=1e-12)


# -- training goes on as without ------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_changed(tmp_path, name):
    program = PROGRAMS[name]()
    plain = copy.deepcopy(program.model)
    run, _ = start(
        tmp_path, program, log=["forward", "backward", "grad"], statistic=["kfac", "mean"]
    )
    go(run, program)
    expected = program.loss(plain, *program.batch)
    expected.backward()
    assert torch.equal(program.of(), expected)
    for ours, theirs in zip(program.model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
        assert ours.requires_grad == theirs.requires_grad
    assert program.model.state_dict().keys() == plain.state_dict().keys()
    assert_clean(program.model)
    run.finalize()


def assert_clean(model):
    assert not any(each._forward_hooks or each._backward_hooks for each in model.modules())
    assert torch.autograd.backward.__module__ == "torch.autograd"


def test_hooks_are_gone_after_an_exception(tmp_path):
    program = mlp()
    run, _ = start(tmp_path, program)

    def fails():
        with run(data_id=range(5)):
            program.of().backward()
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fails()
    assert_clean(program.model)
    go(run, program)  # nothing of the failed batch was logged
    run.finalize()


def test_a_step_outside_of_the_with_is_not_logged(tmp_path):
    program = mlp()
    run, report = start(tmp_path, program)
    go(run, program)
    program.of(program.part(slice(0, 2))).backward()
    run.finalize()
    assert_alike(logged(run, report, range(5)), program.alone())


def test_run_backward_leaves_no_gradients(tmp_path):
    program = mlp()
    run, _ = start(tmp_path, program)
    go(run, program, way="run.backward")
    run.finalize()
    assert all(parameter.grad is None for parameter in program.model.parameters())
