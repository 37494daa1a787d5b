"""The small parts that a batch is taken apart by, each on its own."""

import numpy as np
import pytest
import torch

from sawlog.capture._nonfinite import LIMITS, rows_at_or_above
from sawlog.factored import Dense, OneHot, Pair, gradient
from sawlog.run_files._blocks import Block
from sawlog.run_files._statistics import Staged
from sawlog.torch._batch_spec import BatchSpec
from sawlog.torch._loss._normalised_weights import _normalised
from sawlog.torch._rows import _projectors
from sawlog.torch._rows._batch_statistics import _double
from sawlog.torch._rows._nonfinite import nonfinite_sums
from sawlog.torch._rows._pairs import scaled
from sawlog.torch._rows._projectors import Projectors

BLOCK = Block("fc.weight", ("fc.weight",), (3, 4), "right")


def bags() -> Pair:
    """A lookup with a weight for each row, as an EmbeddingBag has it."""
    ids, weights = torch.tensor([[0, 2], [1, 1], [2, 0]]), torch.rand(3, 2) + 0.5
    return Pair(OneHot(ids, 3, weights), Dense(torch.randn(3, 2, 4)))


def test_the_examples_to_log_of_a_lookup_with_weights():
    pair, todo = bags(), torch.tensor([False, True, True])
    chosen = BatchSpec(3, todo).chosen_pair(pair)
    torch.testing.assert_close(gradient(chosen), gradient(pair)[1:])
    assert BatchSpec(3).chosen_pair(pair) is pair


def test_a_lookup_with_weights_in_float64():
    factor = bags().left
    wide = _double(factor)
    assert wide.weights.dtype == torch.float64
    torch.testing.assert_close(wide.weights.float(), factor.weights)
    assert wide.ids is factor.ids
    assert wide.size == 3
    dense = _double(Dense(torch.ones(2, 1, 3), one=True))
    assert dense.array.dtype == torch.float64
    assert dense.one


@pytest.mark.parametrize("groups", [None, 2])
@pytest.mark.parametrize("part", [False, True])
def test_a_scale_for_each_example(groups, part):
    torch.manual_seed(0)
    shape = (3, 5) if groups is None else (3, 5, groups)
    pair = Pair(Dense(torch.randn(*shape, 4)), Dense(torch.randn(*shape, 2)))
    scale, todo = torch.tensor([2.0, 3.0, 5.0]), torch.tensor([True, False, True])
    batch = BatchSpec(3, todo if part else None)
    own = batch.chosen_pair(pair)
    want = gradient(own) * batch.chosen(scale).reshape(-1, *(1,) * (2 + (groups is not None))) / 4
    torch.testing.assert_close(gradient(scaled(own, scale, 4.0, batch)), want)
    torch.testing.assert_close(gradient(scaled(own, 6.0, 4.0, batch)), gradient(own) * 1.5)


@pytest.mark.parametrize("left", ["matrix", "vector"])
@pytest.mark.parametrize("right", ["matrix", "vector"])
@pytest.mark.parametrize("room", [1, 100, 10**9])  # bytes: for one row, for two, for all
def test_squares_in_a_basis(monkeypatch, left, right, room):
    """In parts of any size; a vector represents the identity."""
    monkeypatch.setattr(_projectors, "CHUNK", room)
    random = np.random.default_rng(0)
    rows = random.normal(size=(5, 3, 4))
    bases = {"matrix": lambda n: np.linalg.qr(random.normal(size=(n, n)))[0], "vector": np.ones}
    sides = bases[left](3), bases[right](4)
    whole = [side if side.ndim > 1 else np.eye(len(side)) for side in sides]
    projectors = Projectors({}, {BLOCK.name: sides})
    found = projectors.squares(BLOCK, torch.from_numpy(rows).float())
    want = ((whole[0].T @ rows @ whole[1]) ** 2).sum(0)
    np.testing.assert_allclose(found, want, rtol=1e-5)
    exact = projectors.squares(BLOCK, torch.from_numpy(rows))  # the same basis in another dtype
    np.testing.assert_allclose(exact, want, rtol=1e-12)
    one = torch.from_numpy(rows[:, :, :1]), torch.from_numpy(rows[:, :1])
    pair = Pair(Dense(one[0].mT.contiguous()), Dense(one[1]))
    want = ((whole[0].T @ gradient(pair).numpy() @ whole[1]) ** 2).sum(0)
    np.testing.assert_allclose(projectors.squares_of(BLOCK, pair), want, rtol=1e-12)


def test_numbers_that_round_to_infinity():
    limit = LIMITS["float16"]
    below = np.nextafter(limit, 0)
    assert np.isfinite(np.float16(below))
    assert rows_at_or_above(limit, [("a", np.array([[1.0, below]]))]) is None
    with np.errstate(over="ignore"):
        assert np.isinf(np.float16(limit))
    found = rows_at_or_above(limit, [("a", np.array([[1.0], [-limit], [2.0]]))])
    assert found.rows.tolist() == [False, True, False]
    assert found.overflows
    logs = [("a", np.array([[np.inf], [0.0]])), ("b", np.ones((2, 1))), ("c", np.full((2, 1), 1e9))]
    found = rows_at_or_above(limit, logs)
    assert found.names == ("a", "c")
    assert found.rows.tolist() == [True, True]
    assert not found.overflows


def test_sums_that_are_not_finite():
    """Of a second moment the diagonal bounds all elements; other arrays are read whole."""
    staged, inf = Staged(), float("inf")
    staged.add("moment", torch.tensor([[1.0, 2.0], [2.0, inf]]), 1)
    staged.add("squares", torch.tensor([[1.0, inf], [1.0, 1.0], [1.0, 1.0]]), 1)
    staged.add("vector", torch.tensor([1.0, -inf]), 1)
    staged.add("good", torch.ones(3, 3), 1)
    staged.add_rows("rows", torch.tensor([[1.0, 2.0, float("nan")]]))
    assert nonfinite_sums(staged) == ["moment", "squares", "vector", "rows"]


@pytest.mark.parametrize(
    ("weights", "how"),
    [
        ([0.2, 0.3, 0.5], "sum up to 1"),
        ([0.5, 0.5, 2.0], "have the mean 1"),
        ([1.0, -3.0, 2.0], "have the mean 0"),
        ([1e6, -3e6, 2e6 + 1e-1], "have the mean 0"),  # up to rounding
        ([1e-7, 2e-7, 4e-7], ""),  # small, not centred
        ([0.0, 1.0, 1.0], ""),  # a mask
        ([2.0, 2.0, 2.0], ""),
        ([1.0, -1.0, 1.0, -1.0], ""),  # signs
        ([1.0, 2.0, 4.0], ""),
    ],
)
def test_weights_that_were_normalised(weights, how):
    own = torch.tensor(weights, dtype=torch.float64)
    assert _normalised(own, own) == how


def test_weights_of_low_precision_that_were_normalised():
    """Their sum is as far from one as they are rounded."""
    own = torch.tensor([0.1, 0.3, 0.6]).to(torch.bfloat16)
    assert abs(float(own.double().sum()) - 1) > 1e-4
    assert _normalised(own, own.double()) == "sum up to 1"
    assert _normalised(own.double(), own.double()) == ""
