"""Graphs of one structure that move, pick or scale examples in another way in a later batch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sawlog.errors import CaptureError
from sawlog.torch._graph._autograd_graph import BUILT_IN
from sawlog.torch._proof._layout_attributes import _LENGTHS, _NUMBERS, _names
from tests.torch.programs import Program, assert_alike, logged, mlp
from tests.torch.test_run import go, start

ORDER = torch.tensor([2, 0, 4, 1, 3])


def one_hot(order: Tensor) -> Tensor:
    return torch.eye(len(order), dtype=torch.float64)[order]


MOVES = {  # the rows of ``h`` in an order
    "selected one by one": lambda h, order: torch.stack([h[i] for i in order.tolist()]),
    "slices": lambda h, order: torch.cat([h[i : i + 1] for i in order.tolist()]),
    "rolled": lambda h, order: h.roll(int(order[0]), 0),
    "turned": lambda h, order: h.flip(0 if order[0] else 1),
    "strided": lambda h, order: torch.cat([h, h]).as_strided(h.shape, (6, 1), 6 * int(order[0])),
    "indexed": lambda h, order: h[order],
    "indexed by a column": lambda h, order: h[order[:, None], torch.arange(6)],
    "selected by numbers": lambda h, order: h.index_select(0, order),
    "gathered": lambda h, order: h.gather(0, order[:, None].expand_as(h)),
    "selected by a negative axis": lambda h, order: h.index_select(-2, order),
    "gathered by a negative axis": lambda h, order: h.gather(-2, order[:, None].expand_as(h)),
    "copied": lambda h, order: torch.zeros_like(h).index_copy(0, order, h),
    "added": lambda h, order: torch.zeros_like(h).index_add(0, order, h),
    "scattered": lambda h, order: torch.zeros_like(h).scatter(0, order[:, None].expand_as(h), h),
    "chosen by a mask": lambda h, order: torch.cat([h[order < 3], h[order >= 3]]),
    "looked up": lambda h, order: F.embedding(order, h),
    "a product": lambda h, order: one_hot(order) @ h,
    "products": lambda h, order: torch.bmm(one_hot(order)[None], h[None])[0],
    "a product from the right": lambda h, order: (h.T @ one_hot(order).T).T,
    "a sparse product": lambda h, order: torch.sparse.mm(one_hot(order).to_sparse(), h),
    "a convolution": lambda h, order: F.conv1d(h[None], one_hot(order)[..., None])[0],
    "masked pairs": lambda h, order: (one_hot(order)[..., None] * h[None]).sum(1),
    "summed": lambda h, order: h / h.exp().sum(0 if order[0] else 1, keepdim=True),
    "padded": lambda h, order: F.pad(h, (0, 0, int(order[0]), -int(order[0]))),
    "put into slices": lambda h, order: _put(h, order, torch.slice_scatter, 1),
    "put into places": lambda h, order: _put(h, order, torch.select_scatter, None),
    "the diagonal of pairs": lambda h, order: (
        h.T[:, None].expand(6, 5, 5).tril(-int(order[0])).triu(-int(order[0])).sum(-1).T
    ),
    "written": lambda h, order: _written(h, order.tolist()),
    "attention": lambda h, order: F.scaled_dot_product_attention(
        h[None], h[None], h[None], attn_mask=one_hot(order)[None] > 0
    )[0],
}


def _written(h: Tensor, order: list[int]) -> Tensor:
    out = torch.zeros_like(h)
    for place, i in enumerate(order):
        out[place] = h[i]
    return out


def _put(h: Tensor, order: Tensor, scatter, size: int | None) -> Tensor:
    out = torch.zeros_like(h)
    for row, place in zip(h.split(1), order.tolist(), strict=True):
        where = (0, place) if size is None else (0, place, place + size)
        out = scatter(out, row[0] if size is None else row, *where)
    return out


class Moved(nn.Module):
    """Two layers, and something in between that moves examples."""

    def __init__(self, move):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.move, self.order = move, torch.arange(5)

    def forward(self, x):
        h = self.first(x).tanh()
        return self.last(self.move(h, self.order) if len(x) == len(self.order) else h)


@pytest.mark.parametrize("name", MOVES)
def test_examples_that_are_moved_in_a_later_batch(name, tmp_path):
    base = mlp()
    program = Program(Moved(MOVES[name]).double(), base.batch, base.loss)
    run, report = start(tmp_path, program)
    for first in (0, 10):  # proven, and by its plan
        go(run, program, ids=np.arange(5) + first)
    program.model.order = ORDER
    with pytest.raises(CaptureError, match=r"mix|order|axis"):
        go(run, program, ids=np.arange(5) + 20)
    program.model.order = torch.arange(5)
    go(run, program, ids=np.arange(5) + 30)
    run.finalize()
    assert_alike(logged(run, report, np.arange(5) + 10), logged(run, report, np.arange(5) + 30))


ALONG_SEQUENCES = {  # of sequences ``[positions, examples, features]``
    "indexed": lambda h, order: h[:, order],
    "selected": lambda h, order: h.index_select(1, order),
    "selected by a negative axis": lambda h, order: h.index_select(-2, order),
}


@pytest.mark.parametrize("name", ALONG_SEQUENCES)
def test_examples_of_sequences_that_are_moved_in_a_later_batch(name, tmp_path):
    torch.manual_seed(0)
    model = Moved(lambda h, order: ALONG_SEQUENCES[name](h, model.at)).double()
    model.order, model.at = [0] * 3, torch.arange(5)  # as many as there are positions
    batch = torch.randn(3, 5, 4).double(), torch.randint(0, 3, (5,))
    program = Program(model, batch, lambda model, x, y: F.cross_entropy(model(x).sum(0), y))
    run, report = start(tmp_path, program, {"batch_axis": 1})
    for first in (0, 10):
        go(run, program, ids=np.arange(5) + first)
    model.at = ORDER
    with pytest.raises(CaptureError, match=r"mix|order|axis"):
        go(run, program, ids=np.arange(5) + 20)
    run.finalize()
    assert_alike(logged(run, report, np.arange(5)), logged(run, report, np.arange(5) + 10))


class Sorted(nn.Module):
    """Examples are sorted, one by one, for a layer, and put back before another."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.order = list(range(5))

    def forward(self, x):
        order = self.order if len(x) == 5 else [0]
        h = self.first(x).tanh()
        h = self.inner(torch.stack([h[i] for i in order])).tanh()
        return self.last(torch.stack([h[order.index(i)] for i in range(len(x))]))


def test_examples_that_are_sorted_in_a_later_batch(tmp_path):
    base = mlp()
    program = Program(Sorted().double(), base.batch, base.loss)
    run, report = start(tmp_path, program)
    go(run, program, ids=np.arange(5))
    program.model.order = ORDER.tolist()
    go(run, program, ids=np.arange(5) + 10)
    run.finalize()
    assert_alike(logged(run, report, np.arange(5) + 10), program.alone())


def test_lengths_may_differ_without_a_new_proof(tmp_path, monkeypatch):
    from sawlog.torch._proof._prover import Prover

    proven = []
    original = Prover.prove
    monkeypatch.setattr(Prover, "prove", lambda *args: proven.append(1) or original(*args))
    layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    run, _ = start(tmp_path, Program(layers, (), None))
    for first, length in ((0, 7), (10, 9), (20, 6)):
        x, y = torch.randn(5, length, 4).double(), torch.randint(0, 3, (5,))
        with run(data_id=np.arange(5) + first):
            out = layers(x).transpose(1, 2)[..., 1 : length - 1]
            F.cross_entropy(out.mean(-1), y).backward()
    run.finalize()
    assert len(proven) == 1


def test_parts_of_examples_that_are_exchanged(tmp_path):
    def loss(model, x, y):
        h = model[:-1](x)
        return F.cross_entropy(model[-1](torch.cat([h[:, :2], h.flip(0)[:, 2:]], 1)), y)

    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    program = Program(model, mlp().batch, loss)
    run, _ = start(tmp_path, program)
    with pytest.raises(CaptureError, match="exchanged"):
        go(run, program)


class Clip(torch.autograd.Function):
    """The identity, with gradients of a limited size."""

    @staticmethod
    def forward(ctx, x, limit):
        ctx.limit = limit
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-ctx.limit, ctx.limit), None


@pytest.mark.parametrize("share", [0.7, 2.5])
def test_gradients_that_are_clipped_in_a_batch_of_one_only(share, tmp_path):
    """In a batch of five, the mean makes them smaller than the limit."""
    base = mlp()
    x, y = base.batch
    greatest = float((base.model(x).detach().softmax(-1) - F.one_hot(y)).abs().max())

    def loss(model, x, y):
        return F.cross_entropy(Clip.apply(model(x), share * greatest), y)

    program = Program(base.model, base.batch, loss)
    run, report = start(tmp_path, program)
    if share < 1:
        with pytest.raises(CaptureError, match=r"mix|add up"):
            go(run, program)
        return
    go(run, program)
    run.finalize()
    assert_alike(logged(run, report, np.arange(5)), base.alone())


def test_weights_that_are_normalised_in_a_later_batch(tmp_path):
    """In the first one all weights are equal, which looks like a mask."""

    def loss(model, x, y, w):
        return (F.cross_entropy(model(x), y, reduction="none") * (w / w.mean())).mean()

    base = mlp()
    run, _ = start(tmp_path, base)
    for first in (0, 10):
        with run(data_id=np.arange(5) + first):
            loss(base.model, *base.batch, torch.ones(5)).backward()
    with pytest.raises(CaptureError, match="the mean 1"), run(data_id=np.arange(5) + 20):
        loss(base.model, *base.batch, torch.arange(1.0, 6.0)).backward()


def test_every_attribute_counts_unless_it_is_known_not_to():
    """All node types of PyTorch: what they save is a tensor, counts, or is in a list."""
    counted, free = set(), set()
    for kind in BUILT_IN:
        every = {each for each in dir(kind) if each.startswith("_saved_")}
        tensors = {each for each in every if hasattr(kind, f"_raw{each}")}
        own = {name for names in _names(kind) for name in names}
        counted |= {each.removeprefix("_saved_") for each in own}
        free |= {each.removeprefix("_saved_") for each in every - tensors - own}
        assert not own & tensors
    assert {"dim", "dims", "index", "start", "end", "step", "pad", "diagonal", "offset"} <= counted
    assert {"repeats", "shifts", "chunks", "split_size", "storage_offset", "stride"} <= counted
    assert not counted & free
    assert {each for each in free if "_sym_" not in each} == _NUMBERS | _LENGTHS
