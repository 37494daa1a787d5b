"""Gradient checkpointing, and operations that PyTorch compiles by itself."""

import contextlib
import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import sawlog
from sawlog.errors import CaptureError
from tests.torch.programs import Program, assert_alike, logged, mlp
from tests.torch.test_run import go, start


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.inside = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh())
        self.reentrant = reentrant

    def forward(self, x):
        h = torch.tanh(self.first(x))
        if self.reentrant is None:
            return self.last(self.inside(h))
        return self.last(checkpoint(self.inside, h, use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_logs_exactly_once(tmp_path, reentrant):
    torch.manual_seed(0)
    base = mlp()
    program = Program(Checkpointed(reentrant).double(), base.batch, base.loss)
    log = ["forward", "backward", "grad"]
    run, report = start(tmp_path, program, log=log, statistic="kfac")
    go(run, program)
    run.finalize()
    with sawlog.store.open(run.store_path) as reader:
        assert not [name for name in reader.names if "#" in name]
    found = logged(run, report, range(5))
    program.model.reentrant = None
    assert_alike(found, program.alone())


# -- reentrant checkpointing: the graph inside is hidden, so every batch is proven -----------------


class Hidden(nn.Module):
    """A layer inside reentrant checkpointing; ``use`` is how it is used there."""

    def __init__(self, use):
        super().__init__()
        self.first, self.inside, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.use, self.is_hidden = use, True

    def forward(self, x):
        hidden, h = functools.partial(self.use, self.inside), torch.tanh(self.first(x))
        return self.last(checkpoint(hidden, h, use_reentrant=True) if self.is_hidden else hidden(h))


def twice(layer, h):
    return torch.tanh(layer(h)) + F.linear(h, layer.weight)


def reversed_inside(layer, h):
    return torch.tanh(layer(h.flip(0))).flip(0)


def mean_inside(layer, h):
    return torch.tanh(layer(h - h.mean(0)))


def pairs_inside(layer, h):
    """Chosen and rejected answers, concatenated along the axis of the examples."""
    chosen, rejected = layer(torch.cat([h, -h])).chunk(2)
    return chosen - 2 * rejected


def once_for_all(layer, h):
    return h + layer(torch.ones(1, 6).double())


def plainly(layer, h):
    return torch.tanh(layer(h))


KINDS = {
    "rows": {},
    "no rows": {"save": [], "statistic": "kfac"},
    "backward logs": {"log": "backward"},
}


WRONG = [  # the output of a layer whose weight is used twice has the right gradient
    (use, kind)
    for use in (twice, reversed_inside, mean_inside, pairs_inside, once_for_all)
    for kind in KINDS
    if use is not twice or kind != "backward logs"
]


@pytest.mark.parametrize(("use", "kind"), WRONG)
def test_reentrant_checkpointing_is_proven_or_refused(tmp_path, use, kind):
    torch.manual_seed(0)
    program = Program(Hidden(use).double(), mlp().batch, mlp().loss)
    run, _ = start(tmp_path, program, **KINDS[kind])
    with pytest.raises(CaptureError, match=r"reentrant|'backward/inside' cannot"), run(range(5)):
        program.of().backward()


@pytest.mark.parametrize("use", [twice, reversed_inside, plainly])
def test_a_part_of_a_batch_through_reentrant_checkpointing(tmp_path, use):
    torch.manual_seed(0)
    program = Program(Hidden(use).double(), mlp().batch, mlp().loss)
    run, report = start(tmp_path, program, duplicates="first")
    program.model.use = plainly
    with run(data_id=[0, 10, 2, 11, 12]):
        program.of().backward()
    program.model.use = use
    refused = contextlib.nullcontext() if use is plainly else pytest.raises(CaptureError)
    with refused, run(data_id=range(5)):
        program.of().backward()
    if use is plainly:
        run.finalize()
        program.model.is_hidden = False
        assert_alike(logged(run, report, range(5)), program.alone())


def test_the_proof_through_reentrant_checkpointing_leaves_no_trace(tmp_path):
    """Gradients, also of a tensor that only the hidden part uses, and random numbers."""
    torch.manual_seed(0)
    scale = torch.randn(6, dtype=torch.float64, requires_grad=True)
    model = Hidden(lambda layer, h: F.dropout(torch.tanh(layer(h)) * scale, 0.5)).double()
    program = Program(model, mlp().batch, mlp().loss)
    run, _ = start(tmp_path, program)
    leaves = [*model.parameters(), scale]
    for each in leaves:
        each.grad = torch.ones_like(each)
    kept = [each.grad for each in leaves]
    found = []
    for way in (run(data_id=range(5)), contextlib.nullcontext()):
        torch.manual_seed(1)
        with way:
            program.of().backward()
        assert all(each.grad is own for each, own in zip(leaves, kept, strict=True))
        found.append([*(own.clone() for own in kept), torch.rand(2)])
        for own in kept:
            own.fill_(1.0)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def test_hooks_of_parameters_are_not_called_for_a_proof(tmp_path):
    program = Program(Hidden(plainly).double(), mlp().batch, mlp().loss)
    calls = []
    program.model.inside.weight.register_hook(lambda grad: calls.append(1))
    run, _ = start(tmp_path, program)
    with pytest.raises(CaptureError, match="hook"), run(range(5)):
        program.of().backward()
    assert not calls


def test_weights_over_the_batch_are_refused_with_reentrant_checkpointing(tmp_path):
    def loss(model, x, y):
        weights = torch.softmax(torch.arange(5.0).double(), 0)
        return (F.cross_entropy(model(x), y, reduction="none") * weights).sum()

    program = Program(Hidden(plainly).double(), mlp().batch, loss)
    run, _ = start(tmp_path, program)
    with pytest.raises(CaptureError, match="normalised"), run(range(5)):
        program.of().backward()


@pytest.mark.parametrize("size", [1, 3])
def test_reentrant_checkpointing_in_low_precision(tmp_path, size):
    torch.manual_seed(0)
    base = mlp(size=size)

    def loss(model, x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(model(x.float()).float(), y)

    program = Program(Hidden(plainly).float(), base.batch, loss)
    run, report = start(tmp_path, program)
    go(run, program)
    run.finalize()
    program.model.is_hidden = False
    assert_alike(logged(run, report, range(size)), program.alone(), rtol=0.03, atol=0.003)


# -- operations that PyTorch compiles by itself ----------------------------------------------------


class Chosen(nn.Module):
    """One of two functions, by ``torch.cond`` or as Python has it."""

    def __init__(self, compiled, inside=False):
        super().__init__()
        self.first, self.last, self.other = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 6)
        self.compiled, self.inside = compiled, inside

    def forward(self, x):
        h, one = self.first(x), self.other if self.inside else torch.sin
        h = torch.cond(torch.tensor(True), one, torch.cos, (h,)) if self.compiled else one(h)
        return self.last(h if self.inside else self.other(h))


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # by PyTorch
def test_a_condition(tmp_path):
    torch.manual_seed(0)
    x, y = torch.randn(6, 4).double(), torch.randint(0, 3, (6,))
    plain = Chosen(False).double()
    model = Chosen(True).double()
    model.load_state_dict(plain.state_dict())
    program = Program(plain, (x, y), lambda model, x, y: F.cross_entropy(model(x), y))
    watched = Program(model, (x, y), program.loss)
    run, report = start(tmp_path, watched, dtype="float64")
    for ids in (range(3), range(3, 6)):  # the first batch imports the compiler
        go(run, watched, ids, watched.part(list(ids)))
    run.finalize()
    assert_alike(logged(run, report, range(6)), program.alone())
    inside = Program(Chosen(True, inside=True).double(), (x, y), program.loss)
    run, _ = start(tmp_path / "inside", inside)
    with pytest.raises(CaptureError, match="Hint"):
        go(run, inside)
    run.finalize()


# -- functions of the program that call backward inside of their own backward pass -----------------


class Reversed(torch.autograd.Function):
    """Runs a layer again in the backward pass, and calls ``backward`` there, as Reformer does."""

    @staticmethod
    def forward(ctx, h, layer):
        ctx.layer = layer
        ctx.save_for_backward(h)
        with torch.no_grad():
            return layer(h)

    @staticmethod
    def backward(ctx, grad):
        h = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            ctx.layer(h).backward(grad)
        return h.grad, None


class Reversible(nn.Module):
    def __init__(self, bare=False):
        super().__init__()
        self.first, self.inside, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.bare = nn.ParameterList([torch.ones(6)] if bare else [])

    def forward(self, x):
        def inside(h):
            h = torch.tanh(self.inside(h))
            return h * self.bare[0] if len(self.bare) else h

        return self.last(Reversed.apply(self.first(x), inside))


def reversible(bare=False):
    torch.manual_seed(0)
    return Program(Reversible(bare).double(), mlp().batch, mlp().loss)


def test_a_backward_pass_inside_of_another_one(tmp_path):
    program = reversible()
    program.of().backward()
    names = [name for name, _ in program.model.named_parameters()]
    expected = [each.grad.clone() for each in program.model.parameters()]
    run, report = start(tmp_path, program)
    for turn in range(2):
        program.model.zero_grad()
        with run(data_id=np.arange(5) + 5 * turn):
            program.of().backward()
        for parameter, grad in zip(program.model.parameters(), expected, strict=True):
            assert torch.equal(parameter.grad, grad)
    run.finalize()
    alone = []
    for i in range(5):
        program.model.zero_grad()
        program.of(program.part(slice(i, i + 1))).backward()
        alone.append([each.grad.numpy().copy() for each in program.model.parameters()])
    rows = {n: np.stack(each) for n, each in zip(names, zip(*alone, strict=True), strict=True)}
    for turn in range(2):
        assert_alike(logged(run, report, np.arange(5) + 5 * turn), rows)


def test_a_bare_parameter_in_a_backward_pass_inside_of_another_one(tmp_path):
    program = reversible(bare=True)
    run, _ = start(tmp_path, program, {"names": ["*.weight", "*.bias", "bare.*"]})
    said = pytest.raises(CaptureError, match=r"a backward pass inside of another.* names=, or call")
    with said, run(range(5)):
        program.of().backward()
    run.finalize()
