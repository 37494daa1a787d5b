"""Examples that interact without a gradient: refused; programs that look alike: right."""

import copy
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from sawlog.errors import MixedExamplesError
from sawlog.torch._interactions import _policy
from sawlog.torch._interactions._recorder import Recorder
from sawlog.torch._interactions._replay import TapeReplay
from sawlog.torch._proof._prover import Prover
from tests.torch import interacting_programs
from tests.torch.expert_models import Experts
from tests.torch.interacting_programs import (
    RANDOM,
    RIGHT,
    WRONG,
    Net,
    hidden,
    losses_of,
    noted,
    program_of,
    routed,
    run_of,
)
from tests.torch.programs import Program, assert_alike, logged


@pytest.fixture
def concluded(monkeypatch):
    """Why checks could conclude nothing."""
    reasons = []
    original = _policy.InteractionChecks.check

    def check(self, structure, *args):
        original(self, structure, *args)
        reasons.append(self.checked[structure])

    monkeypatch.setattr(_policy.InteractionChecks, "check", check)
    return reasons


@pytest.mark.parametrize("name", WRONG)
def test_examples_that_interact_are_refused(tmp_path, name):
    loss, operation = WRONG[name]
    program = program_of(loss, kind=Experts if "experts" in name else Net)
    run, _ = run_of(tmp_path, program)
    before = copy.deepcopy(program.model.state_dict())
    said = pytest.raises(MixedExamplesError, match="leaves no gradient")
    with said as error, run(data_id=range(program.size)):
        program.of().backward()
    if operation is not None:
        where = f"joins them is '({operation})' of {interacting_programs.__file__}:"
        assert re.search(where, str(error.value))
    assert "Hint:" in str(error.value)
    assert all(torch.equal(each, before[n]) for n, each in program.model.state_dict().items())
    run.finalize()


@pytest.mark.parametrize("name", RIGHT)
def test_programs_that_look_alike_are_right(tmp_path, name, concluded):
    program = program_of(RIGHT[name])
    run, report = run_of(tmp_path, program, dtype="float64")
    for first in (0, 100):
        with run(data_id=np.arange(program.size) + first):
            program.of().backward()
    run.finalize()
    assert concluded == [""]
    expected = program.alone()
    found = logged(run, report, range(program.size))
    assert_alike(found, {each: expected[each] for each in found})


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_stay_those_of_the_program(tmp_path, name, concluded):
    program = program_of(RANDOM[name])
    program.model.train()
    torch.manual_seed(1)
    expected = program.of()
    expected.backward()
    after, grads = torch.rand(1), [p.grad for p in program.model.parameters()]
    program.model.zero_grad()
    run, _ = run_of(tmp_path, program)
    torch.manual_seed(1)
    with run(data_id=range(program.size)):
        found = program.of()
        found.backward()
    run.finalize()
    assert concluded == [""]
    assert torch.equal(found, expected)
    assert torch.equal(torch.rand(1), after)
    for parameter, grad in zip(program.model.parameters(), grads, strict=True):
        assert grad is None or torch.equal(parameter.grad, grad)


class Picks(nn.Module):
    """Adds an expert to the tokens that are greater than 1: in this batch, one of each example."""

    def __init__(self):
        super().__init__()
        self.first, self.expert, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        with torch.no_grad():
            self.first.weight.copy_(torch.eye(4))
            self.first.bias.zero_()

    def forward(self, x):
        tokens = self.first(x).flatten(0, 1)
        picked = (tokens[:, 0] > 1).nonzero()[:, 0]
        tokens = tokens.index_add(0, picked, self.expert(tokens[picked]))
        return self.out(tokens.view(x.shape).mean(1))


@pytest.mark.parametrize("seed", [1, 7])
def test_rows_that_values_picked_are_those_of_all_examples_by_chance(tmp_path, concluded, seed):
    torch.manual_seed(seed)
    model = Picks().double()
    x = torch.randn(4, 4, 4).double()
    x[..., 0] = 1 - 0.02 * torch.rand(4, 4)
    x[:, 1, 0] = 1 + 0.01 * torch.rand(4)
    batch = (x, torch.randint(0, 3, (4,)))
    program = Program(model, batch, lambda model, x, y: F.cross_entropy(model(x), y))
    run, report = run_of(tmp_path, program, dtype="float64")
    with run(data_id=range(4)):
        program.of().backward()
    run.finalize()
    assert concluded == [""]
    assert_alike(logged(run, report, range(4)), program.alone())


def test_tokens_that_are_routed(tmp_path, concluded):
    """Other examples are sent to other experts, so that shapes differ."""
    program = program_of(routed, kind=Experts)
    run, report = run_of(tmp_path, program, dtype="float64")
    with run(data_id=range(program.size)):
        program.of().backward()
    run.finalize()
    assert concluded == [""]
    assert_alike(logged(run, report, range(program.size)), program.alone())


@pytest.fixture
def replayed(monkeypatch):
    """The checks that replayed a forward pass."""
    checks = []
    original = _policy.check_interactions
    monkeypatch.setattr(
        _policy, "check_interactions", lambda *args: checks.append(1) or original(*args)
    )
    return checks


def dead_mean(h):
    """A mean that others would bring to life."""
    return h + F.relu(h.mean(0) - h.mean(0).detach() - 0.1) * 5


def dead_for_one(model, x, y):
    """The loss of an example is zero, whatever it is mixed with."""
    return F.relu(losses_of(model, x, y) - torch.tensor([99.0, 0, 0, 0, 0, 0]).double()).mean()


SEEN = ["plain", "layer norm", "eval batch norm", "smoothed labels", "in place", "checkpointed"]
GAPS = {
    "rounded": lambda h: h + h.round() * 0.1,
    "divided and rounded": lambda h: h + torch.div(h, 0.3, rounding_mode="floor") * 0.1,
    "integers": lambda h: h + h.to(torch.int64).to(h) * 0.1,
    "compared": lambda h: torch.where(h > 0, h, 0.1 * h),
    "the places of the greatest": lambda h: h * (1 + h.max(1).indices[:, None]),
    "without a gradient": lambda h: h * h.detach().abs(),
    "no_grad": lambda h: h + torch.no_grad()(lambda: h * 2)(),
    "an operation of the user": lambda h: Twice.apply(h),
}


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        return h * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@pytest.mark.parametrize("name", [*SEEN, "dropout"])
def test_nothing_is_replayed_where_the_gradient_shows_all(tmp_path, name, concluded, replayed):
    program = program_of({**RIGHT, **RANDOM}[name])
    program.model.first.train()
    run, _ = run_of(tmp_path, program)
    with run(data_id=range(program.size)):
        program.of().backward()
    run.finalize()
    assert (concluded, replayed) == ([""], [])


@pytest.mark.parametrize("name", GAPS)
def test_what_leaves_no_gradient_is_replayed(tmp_path, name, concluded, replayed):
    program = program_of(hidden(GAPS[name]))
    run, _ = run_of(tmp_path, program)
    with run(data_id=range(program.size)):
        program.of().backward()
    run.finalize()
    assert (concluded, replayed) == ([""], [1])


@pytest.mark.parametrize("loss", [hidden(dead_mean), dead_for_one])
def test_what_has_a_gradient_of_zero_is_replayed(tmp_path, loss, replayed):
    """Another example may bring it to life."""
    program = program_of(loss)
    run, _ = run_of(tmp_path, program)
    try:
        with run(data_id=range(program.size)):
            program.of().backward()
    except MixedExamplesError:
        pass
    run.finalize()
    assert replayed == [1]


class Attention(nn.Module):
    """Has reshapes, which make other nodes where operations are recorded."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        h = self.layer(x[:, None] * torch.tensor([1.0, 2.0]).double()[:, None])
        return self.head(torch.einsum("btd,t->bd", h, torch.ones(2).double()))


def test_a_batch_that_is_recorded_has_the_graph_of_others(tmp_path, monkeypatch, concluded):
    proven = []
    original = Prover.prove
    monkeypatch.setattr(Prover, "prove", lambda *args: proven.append(1) or original(*args))
    program = program_of(lambda m, x, y: F.cross_entropy(m(x), y), kind=Attention)
    run, _ = run_of(tmp_path, program)
    for first in (0, 100, 200):
        with run(data_id=np.arange(program.size) + first):
            program.of().backward()
    run.finalize()
    assert concluded == [""]
    assert len(proven) == 1


def test_another_graph_is_checked_in_the_next_batch(tmp_path, concluded):
    program = program_of(RIGHT["plain"])
    run, _ = run_of(tmp_path, program)

    def go(loss, first):
        with run(data_id=np.arange(program.size) + first):
            loss(program.model, *program.batch).backward()

    go(RIGHT["plain"], 0)
    go(WRONG["centred"][0], 100)  # not recorded
    with pytest.raises(MixedExamplesError, match="leaves no gradient"):
        go(WRONG["centred"][0], 200)
    go(RIGHT["plain"], 300)
    with pytest.raises(MixedExamplesError, match="leaves no gradient"):
        go(WRONG["centred"][0], 400)
    run.finalize()
    assert concluded == [""]


def test_what_cannot_be_replayed_is_logged_as_before(tmp_path, concluded):
    """Nothing can be concluded, which is no error."""

    def sparse(model, x, y):
        out = model(x)
        noted.seen = torch.sparse.sum(out.detach().to_sparse())
        return F.cross_entropy(out, y)

    program = program_of(sparse)
    run, report = run_of(tmp_path, program, dtype="float64")
    with run(data_id=range(program.size)):
        program.of().backward()
    run.finalize()
    assert "Sparse" in "".join(concluded)
    expected = program.alone()
    found = logged(run, report, range(program.size))
    assert_alike(found, {each: expected[each] for each in found})


def test_a_tape_holds_no_values():
    """Only what existed before is kept alive."""
    x = torch.randn(4, 4)
    with Recorder() as recorder:
        y = (x * 2).sin()
        memory = StorageWeakRef(y.untyped_storage())
        z = y.sum()
    del y
    tape = recorder.tape
    assert memory.expired()
    assert [
        each.tensor is x or torch.equal(each.tensor, x) for each in tape.externals.values()
    ] == [True]
    again = TapeReplay(tape, len(tape.operations), [tape.known(z)]).run()
    assert torch.equal(again[tape.known(z)], z)


def test_memory_that_is_changed_is_replayed_as_it_was():
    buffer, x = torch.ones(3), torch.randn(3)
    with Recorder() as recorder:
        part = buffer[:2]
        buffer.add_(x)
        found = buffer * part.sum()
    tape = recorder.tape
    for _ in range(2):
        again = TapeReplay(tape, len(tape.operations), [tape.known(found)]).run()
        assert torch.equal(again[tape.known(found)], found)
    assert torch.equal(buffer, 1 + x)


def test_a_number_that_pytorch_has_as_a_tensor():
    """Read from a graph, as a program may do inside of the ``with``."""
    x = torch.randn(3, requires_grad=True)
    y = x / 4
    with Recorder() as recorder:
        assert y.grad_fn._saved_other.item() == 4
        assert torch.equal(torch.neg(y.grad_fn._saved_other), torch.tensor(-4))
    assert recorder.tape is not None
