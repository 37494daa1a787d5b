"""Examples that interact without a gradient: refused; programs that look alike: right."""

import copy
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import sawlog
from sawlog.errors import MixedExamplesError
from sawlog.torch._interactions import _policy
from sawlog.torch._interactions._recorder import Recorder
from sawlog.torch._interactions._replay import TapeReplay
from sawlog.torch._proof._prover import Prover
from tests.torch.expert_models import Experts
from tests.torch.programs import Program, assert_alike, logged


class Net(nn.Module):
    """Two layers, between which a function changes the hidden features."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)
        self.norm, self.batch_norm = nn.LayerNorm(6), nn.BatchNorm1d(6)
        self.batch_norm.running_mean += 0.1

    def forward(self, x, change=lambda h: h):
        return self.second(change(torch.tanh(self.first(x))))


def hidden(change):
    """A program that changes hidden features."""
    return lambda model, x, y: F.cross_entropy(model(x, change), y)


def losses_of(model, x, y):
    return F.cross_entropy(model(x), y, reduction="none")


def by_statistics_without_gradients(h):
    with torch.no_grad():
        mean, var = h.mean(0), h.var(0)
    return (h - mean) / (var + 1e-5).sqrt()


def mixed_up(h):
    order = torch.arange(len(h)).roll(1)
    return 0.7 * h + 0.3 * h[order].detach()


def sharpness_aware(model, x, y):
    """The loss at weights that went up along the gradient of the batch."""
    weights = dict(model.named_parameters())
    weights = {name: weights[name] for name in ("first.weight", "second.weight")}
    grads = torch.autograd.grad(F.cross_entropy(model(x), y), list(weights.values()))
    moved = {n: w + 0.5 * g for (n, w), g in zip(weights.items(), grads, strict=True)}
    return F.cross_entropy(torch.func.functional_call(model, moved, (x,)), y)


def over_itself(model, x, y):
    loss = 9 * losses_of(model, x, y).mean()
    return loss / loss.detach()


def hard_examples(model, x, y):
    each = losses_of(model, x, y)
    return (each * (each.detach() > each.detach().median())).mean()


def balanced(model, x, y):
    out, share, chosen = model(x)
    used = F.one_hot(chosen, 2).double().mean(0)  # a fraction of the batch
    return F.cross_entropy(out, y) + 2 * (share * used).sum(1).mean()


def routed(model, x, y):
    return F.cross_entropy(model(x)[0], y)


WRONG = {  # the program, and what the error names
    "centred": (hidden(lambda h: h - h.detach().mean(0)), "mean"),
    "divided by the greatest": (hidden(lambda h: h / h.detach().abs().max()), "max|div"),
    "statistics without gradients": (hidden(by_statistics_without_gradients), "mean"),
    "standardised by .data": (hidden(lambda h: h / h.data.std()), "std"),
    "a Python number": (hidden(lambda h: h / h.std().item()), "std"),
    "a number of a Python number": (hidden(lambda h: h * (1 - h.mean().item())), "mean"),
    "mixup of features": (hidden(mixed_up), "add"),
    "centred logits": (
        lambda model, x, y: F.cross_entropy(model(x) - model(x).detach().mean(0), y),
        "mean",
    ),
    "sharpness": (sharpness_aware, "nll_loss_forward"),
    "over itself": (over_itself, None),
    "over the greatest loss": (
        lambda m, x, y: (lambda each: (each / each.detach().max()).mean())(losses_of(m, x, y)),
        "max|div",
    ),
    "hard examples": (hard_examples, "median"),
    "ranks": (
        lambda m, x, y: (lambda each: (each * each.detach().argsort().argsort()).mean())(
            losses_of(m, x, y)
        ),
        "sort",
    ),
    "weights of the batch": (
        lambda m, x, y: (lambda each: (each * (each.detach() - each.detach().mean()).sigmoid()))(
            losses_of(m, x, y)
        ).mean(),
        "mean",
    ),
    "a running statistic": (None, "mean"),
    "balanced experts": (balanced, "mean"),
}  # fmt: skip


def with_running_mean():
    """A buffer that is changed in place, and then used."""
    mean = torch.zeros(6).double()

    def change(h):
        mean.mul_(0.9).add_(0.1 * h.detach().mean(0))
        return h - mean

    return hidden(change)


def padded(model, x, y):
    """By the longest of the batch, with a mask."""
    h = F.pad(torch.tanh(model.first(x)), (0, 0, 0, 3))
    return F.cross_entropy(model.second(h)[: len(y)], y)


def attended(model, x, y):
    """Over three positions of each example, of which a mask hides one."""
    h = model.first(x)[:, None] * torch.tensor([1.0, -0.5, 2.0]).double()[:, None]
    mask = torch.tensor([True, True, False])
    h = F.scaled_dot_product_attention(h, h, h, attn_mask=mask, dropout_p=0.2)
    return F.cross_entropy(model.second(h.mean(1)), y)


def noted(model, x, y):
    """Statistics of the batch that are only looked at."""
    out = model(x)
    noted.seen = (out.detach().mean(0), out.std().item(), bool(torch.isfinite(out).all()))
    return F.cross_entropy(out, y)


def remembered(model, x, y):
    """A buffer that is changed in place, and not used."""
    h = torch.tanh(model.first(x))
    remembered.mean.mul_(0.9).add_(0.1 * h.detach().mean(0))
    return F.cross_entropy(model.second(h), y)


remembered.mean = torch.zeros(6).double()


RIGHT = {
    "plain": hidden(lambda h: h),
    "each over its norm": hidden(lambda h: h / h.detach().norm(dim=1, keepdim=True)),
    "each centred": hidden(lambda h: h - h.detach().mean(1, keepdim=True)),
    "layer norm": lambda m, x, y: F.cross_entropy(m(x, m.norm), y),
    "eval batch norm": lambda m, x, y: F.cross_entropy(m(x, m.batch_norm), y),
    "a constant": hidden(lambda h: h / torch.tensor(1.234567891).double().item()),
    "confidence": lambda m, x, y: (
        losses_of(m, x, y) * m(x).detach().softmax(1).amax(1)
    ).mean(),
    "its own rank": hidden(lambda h: h * h.detach().argsort(1).argsort(1)),
    "the greatest, for numbers": lambda m, x, y: (
        lambda z: -(z - (z - z.detach().max()).exp().sum(1).log()[:, None] - z.detach().max())[
            torch.arange(len(z)), y
        ].mean()
    )(m(x)),
    "a constant of the batch": lambda m, x, y: (
        lambda each: (each - each.detach().mean()).mean()
    )(losses_of(m, x, y)),
    "smoothed labels": lambda m, x, y: F.cross_entropy(m(x), y, label_smoothing=0.1),
    "counted": lambda m, x, y: (
        lambda each, there: (each * there).sum() / there.sum()
    )(m(x).exp(), (m(x).detach() > 0).double()),
    "in place": hidden(lambda h: (h + 1).mul_(2).sin_().relu_()),
    "padded": padded,
    "checkpointed": lambda m, x, y: F.cross_entropy(
        torch.utils.checkpoint.checkpoint(m, x, use_reentrant=False), y
    ),
    "noted": noted,
    "remembered": remembered,
}  # fmt: skip
RANDOM = {
    "dropout": hidden(lambda h: F.dropout(h, 0.3)),
    "attention with dropout": attended,
    "noise": hidden(lambda h: h + 0.1 * torch.randn_like(h)),
}
WRONG["a running statistic"] = (with_running_mean(), "mean")


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


def program_of(loss, size=6, kind=Net):
    torch.manual_seed(0)
    model = kind().double().eval() if kind is Net else kind().double()
    return Program(model, (torch.randn(size, 4).double(), torch.arange(size) % 3), loss)


def run_of(tmp_path, program, **options):
    run = sawlog.init(project="run", root=tmp_path)
    run.setup(**options)
    names = [n for n, p in program.model.named_parameters() if "norm" not in n]
    return run, run.watch(program.model, names, quiet=True)


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
        assert re.search(f"joins them is '({operation})' of {__file__}:", str(error.value))
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
