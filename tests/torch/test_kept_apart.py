"""Operations that are said to keep examples apart do so, and plain programs need no replay."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sawlog
from sawlog.errors import MixedExamplesError
from sawlog.torch._interactions import _policy
from sawlog.torch._interactions._flow import Flow
from sawlog.torch._interactions._kept_apart import KeptApart
from sawlog.torch._interactions._recorder import Recorder
from tests.torch.programs import Program, assert_alike, logged

BATCH = 3
TABLE = torch.randn(7, 4, dtype=torch.float64)

APART = {
    "sum of two": lambda x: x + 2 * x,
    "of another shape": lambda x: x * torch.arange(1.0, 1.0 + x.shape[-1]),
    "cast": lambda x: x.float(),
    "mask": lambda x: torch.where(x > 0, x, -x),
    "power": lambda x: x.abs() ** 1.5,
    "gelu": F.gelu,
    "copy": lambda x: x.clone(),
    "new last axis": lambda x: x.unsqueeze(-1).squeeze(-1),
    "new first axis": lambda x: x.unsqueeze(0),
    "expanded": lambda x: x.unsqueeze(-1).expand(*x.shape, 5),
    "expanded in front": lambda x: x.expand(2, *x.shape),
}
OVER_AN_AXIS = {
    "softmax": lambda x, d: x.softmax(d),
    "log softmax": lambda x, d: x.log_softmax(d),
    "running sum": lambda x, d: x.cumsum(d),
    "mean": lambda x, d: x.mean(d),
    "sum": lambda x, d: x.sum(d - x.dim(), keepdim=True),
    "greatest": lambda x, d: x.amax((d,)),
    "smallest": lambda x, d: x.amin(d, keepdim=True),
    "variance": lambda x, d: x.var(d),
    "slice": lambda x, d: x.narrow(d, 0, x.shape[d] - 1),
    "one": lambda x, d: x.select(d, 0),
    "parts": lambda x, d: x.split(1, d)[0],
    "unequal parts": lambda x, d: x.split([1, x.shape[d] - 1], d)[1],
}
OF_TWO_AXES = {
    "transposed": lambda x, d, e: x.transpose(d, e - x.dim()),
    "permuted": lambda x, d, e: x.permute(d, *({*range(x.dim())} - {d, e}), e - x.dim()),
    "sums of two": lambda x, d, e: x.sum((d, e)),
    "means of two": lambda x, d, e: x.mean((d, e), keepdim=True),
}
SHAPED = {
    "layer norm": ((3, 4, 5), lambda x: F.layer_norm(x, x.shape[1:])),
    "layer norm of features": ((2, 3, 5), lambda x: F.layer_norm(x, x.shape[2:])),
    "layer norm of all": ((3, 4), lambda x: F.layer_norm(x, x.shape)),
    "joined axes": ((3, 4, 5), lambda x: x.view(3, 20)),
    "joined with the examples": ((3, 4, 5), lambda x: x.view(12, 5)),
    "parted and joined": ((3, 4), lambda x: x.view(3, 2, 2).reshape(6, 2)),
    "into columns": ((4, 3), lambda x: x.contiguous().view(3, 4)),
    "lookup": ((3, 4), lambda x: F.embedding(x.abs().long() % 7, TABLE)),
    "matrix": ((3, 4), lambda x: x.t()),
    "all": ((3, 4), lambda x: x.sum()),
    "of all, kept": ((3, 4), lambda x: x.amax((), keepdim=True)),
    "sorted": ((3, 4), lambda x: x.sort(0).values),
    "rolled": ((3, 4), lambda x: x.roll(1, 0)),
    "with its mean": ((3, 4), lambda x: x - x.mean(0)),
    "with itself transposed": ((3, 3), lambda x: x + x.t()),
    "in place": ((3, 4), lambda x: x.clone().copy_(x.flip(0))),
    "a number": ((3, 4), lambda x: x * x.detach().sum().item()),
    "product": ((3, 4), lambda x: x @ x.t()),
}


def programs():
    shapes = [(3, 4), (4, 3), (3, 4, 3), (2, 3, 5), (5, 2, 3)]
    for shape in shapes:
        axes = [axis for axis, size in enumerate(shape) if size == BATCH]
        for axis in axes:
            for name, call in APART.items():
                yield f"{name} {shape} {axis}", shape, axis, call, True
            for (name, call), d in itertools.product(OVER_AN_AXIS.items(), range(len(shape))):
                over = lambda x, call=call, d=d: call(x, d)
                yield f"{name} {d} {shape} {axis}", shape, axis, over, d != axis
            if len(shape) > 2:
                for name, call in OF_TWO_AXES.items():
                    for d, e in itertools.combinations(range(3), 2):
                        both = lambda x, call=call, d=d, e=e: call(x, d, e)
                        yield f"{name} {d} {e} {shape} {axis}", shape, axis, both, None
    for name, (shape, call) in SHAPED.items():
        for axis in [axis for axis, size in enumerate(shape) if size == BATCH]:
            yield f"{name} {axis}", shape, axis, call, None


CASES = {name: rest for name, *rest in programs()}


def kept_axes(call, x, axis):
    """Return which operations are said to keep examples apart, and their axis in the result."""
    recorder = Recorder()
    with recorder:
        recorder.tape.number_of(x)
        result = call(x)
    tape = recorder.tape
    number = next(iter(tape.externals))
    flow, apart = Flow(tape), KeptApart(tape, BATCH)
    flow.add(number)
    apart.add(number, axis)
    kept = [apart.follow(each, flow, Flow(tape)) for each in _followed(tape, flow)]
    return kept, apart._axes.get(tape.number_of(result))


def _followed(tape, flow):
    for place, operation in enumerate(tape.operations):
        if any(flow.has(number) for number in operation.reads()):
            yield operation
        flow.follow(place, operation)


@pytest.mark.parametrize("name", CASES)
def test_what_is_said_to_keep_examples_apart_does_so(name):
    shape, axis, call, expected = CASES[name]
    torch.manual_seed(0)
    x = 3 * torch.randn(shape, dtype=torch.float64)
    kept, where = kept_axes(call, x, axis)
    apart = all(kept) and where is not None
    if expected is not None:
        assert apart == expected
    if not apart:
        return
    for example in range(BATCH):
        other = x.clone()
        other.select(axis, example).copy_(5 * torch.randn_like(x.select(axis, example)))
        torch.manual_seed(0)
        again = call(other)
        torch.manual_seed(0)
        base = call(x)
        rest = [each for each in range(BATCH) if each != example]
        index = torch.tensor(rest)
        assert torch.equal(again.index_select(where, index), base.index_select(where, index))


@pytest.mark.parametrize("name", [each for each in SHAPED if "joined axes" not in each])
def test_what_may_join_examples_is_not_said_to_keep_them_apart(name):
    shape, call = SHAPED[name]
    safe = {"layer norm", "lookup", "matrix", "layer norm of features"}
    torch.manual_seed(0)
    kept, where = kept_axes(call, torch.randn(shape, dtype=torch.float64), shape.index(BATCH))
    assert (all(kept) and where is not None) == (name in safe)


class Decoder(nn.Module):
    """Tables that are not watched, a residual stream and blocks that are watched."""

    def __init__(self, change):
        super().__init__()
        self.words, self.places = nn.Embedding(11, 6), nn.Embedding(5, 6)
        self.norm, self.one, self.two = nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 11)
        self.change = change

    def forward(self, ids):
        h = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        h = self.change(h)
        return self.two(h + torch.tanh(self.one(self.norm(h))))


CHANGES = {
    "plain": (lambda h: h, False),
    "its own mean": (lambda h: h - h.mean(-1, keepdim=True), False),
    "root mean square": (lambda h: h * h.pow(2).mean(-1, keepdim=True).rsqrt(), False),
    "over the words": (lambda h: h - h.detach().mean(1, keepdim=True), False),
    "centred": (lambda h: h - h.detach().mean(0), True),
    "over the greatest": (lambda h: h / h.detach().abs().max(), True),
    "turned": (lambda h: h + h.detach().flip(0), True),
}


@pytest.mark.parametrize("name", CHANGES)
def test_tables_and_norms_that_are_not_watched_need_no_replay(tmp_path, monkeypatch, name):
    change, wrong = CHANGES[name]
    torch.manual_seed(0)
    model = Decoder(change).double()
    ids = torch.randint(0, 11, (4, 5))
    replays = []
    check = _policy.check_interactions
    monkeypatch.setattr(
        _policy, "check_interactions", lambda *args: (replays.append(1), check(*args))
    )
    run = sawlog.init(project="run", root=tmp_path, config={"dtype": "float64"})
    report = run.watch(model, ["one", "two"], quiet=True)
    program = Program(
        model,
        (ids,),
        lambda model, ids: F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()),
    )
    if wrong:
        with pytest.raises(MixedExamplesError), run(data_id=range(4)):
            program.of().backward()
        run.finalize()
        return
    with run(data_id=range(4)):
        program.of().backward()
    run.finalize()
    assert not replays
    found, alone = logged(run, report, range(4)), program.alone()
    assert_alike(found, {each: alone[each] for each in found})
    assert len(found) == 4
