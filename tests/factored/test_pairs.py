"""Factor pairs of numpy, PyTorch and JAX arrays, against dense sums in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jax import numpy as jnp

from sawlog.errors import ArgumentError
from sawlog.factored import (
    Dense,
    OneHot,
    Pair,
    gradient,
    principal,
    random_projection,
    rows,
    vector,
)
from sawlog.factored._projections import _orthonormal
from tests.thorough import seeded_examples

Make = Callable[[np.ndarray], Any]

MAKERS: dict[str, Make] = {
    "numpy": lambda array: array,
    "torch": lambda array: torch.from_numpy(np.ascontiguousarray(array)),
    "jax": jnp.asarray,
}


def for_random(library: str, number: int, **strategies: Any) -> Callable[[Callable], None]:
    """Run a function on drawn pairs; few of them by JAX, which compiles for every shape anew."""

    def run(function: Callable) -> None:
        few = 2 if library == "jax" else max(4, number // 2)
        seeded_examples(few, number)(given(**strategies)(function))()

    return run


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def close(got: Any, want: np.ndarray, rtol: float = 1e-12) -> None:
    got = np.asarray(got)
    assert got.shape == want.shape
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-12)


# ---- random pairs, as the arrays they stand for


@st.composite
def drawn(draw: st.DrawFn) -> tuple[Pair, np.ndarray, np.ndarray]:
    """A pair of numpy arrays, and both sides in full: ``[batch, positions, groups, n]``."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    batch, positions = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    kinds = draw(st.sampled_from(["dd", "dd", "dd", "hd", "dh"]))
    groups = draw(st.sampled_from([None, None, 1, 3])) if kinds == "dd" else None
    sides = [_side(draw, random, kind, batch, positions, groups) for kind in kinds]
    (left, full_left), (right, full_right) = sides
    return Pair(left, right), full_left, full_right


def _side(draw, random, kind, batch, positions, groups):
    size = draw(st.integers(1, 4))
    if kind == "h":
        ids = random.integers(0, size, (batch, positions))
        weights = random.normal(size=ids.shape) if draw(st.booleans()) else None
        full = np.eye(size)[ids] * (1 if weights is None else weights[..., None])
        return OneHot(ids, size, weights), full[:, :, None]
    shape = (batch, positions, size) if groups is None else (batch, positions, groups, size)
    array = random.normal(size=shape)
    one = draw(st.booleans())
    full = array if groups else array[:, :, None]
    if one:
        full = np.concatenate([full, np.ones((*full.shape[:-1], 1))], axis=-1)
    return Dense(array, one=one), full


def made(pair: Pair, make: Make) -> Pair:
    return Pair(_made(pair.left, make), _made(pair.right, make))


def _made(factor: Any, make: Make) -> Any:
    if isinstance(factor, Dense):
        return Dense(make(factor.array), factor.one)
    weights = None if factor.weights is None else make(factor.weights)
    return OneHot(make(factor.ids), factor.size, weights)


def dense(left: np.ndarray, right: np.ndarray, pair: Pair) -> np.ndarray:
    whole = np.einsum("btgi,btgj->bgij", left, right)
    return whole if pair.left.groups else whole[:, 0]


@pytest.mark.parametrize("library", MAKERS)
class TestRandomPairs:
    def test_gradient(self, library):
        @for_random(library, 25, case=drawn())
        def check(case):
            pair, left, right = case
            same = made(pair, MAKERS[library])
            want = dense(left, right, pair)
            assert (same.batch, *same.shape) == want.shape
            close(gradient(same), want)

    def test_projected(self, library):
        @for_random(library, 15, case=drawn(), which=st.sampled_from(["left", "right", "both"]))
        def check(case, which):
            pair, left, right = case
            random = np.random.default_rng(0)
            groups = () if pair.left.groups is None else (pair.left.groups,)
            matrices = {
                side: random.normal(size=(*groups, getattr(pair, side).size, 2))
                for side in ("left", "right")
                if which in (side, "both")
            }
            want = dense(left, right, pair)
            if "left" in matrices:
                want = np.swapaxes(matrices["left"], -1, -2) @ want
            if "right" in matrices:
                want = want @ matrices["right"]
            make = MAKERS[library]
            small = made(pair, make).projected(**{k: make(m) for k, m in matrices.items()})
            assert (small.batch, *small.shape) == want.shape
            close(gradient(small), want)

    def test_masked(self, library):
        @for_random(library, 15, case=drawn(), integers=st.booleans())
        def check(case, integers):
            pair, left, right = case
            mask = np.random.default_rng(0).random(left.shape[:2]) < 0.5
            kept = mask[:, :, None, None]
            make = MAKERS[library]
            less = made(pair, make).masked(make(mask.astype(np.int64) if integers else mask))
            close(gradient(less), dense(left * kept, right, pair))
            if isinstance(less.right, Dense):
                close(less.right.full(), (right * kept).reshape(less.right.array.shape))

    def test_scaled(self, library):
        @for_random(library, 15, case=drawn())
        def check(case):
            pair, left, right = case
            scale = np.random.default_rng(0).normal(size=pair.batch)
            make = MAKERS[library]
            more = made(pair, make).scaled(make(scale))
            close(gradient(more), dense(left * scale[:, None, None, None], right, pair))

    def test_moments(self, library):
        @for_random(library, 15, case=drawn(), masked=st.booleans(), scaled=st.booleans())
        def check(case, masked, scaled):
            pair, left, right = case
            random = np.random.default_rng(0)
            mask = random.random(left.shape[:2]) < 0.5 if masked else np.ones(left.shape[:2], bool)
            scale = random.normal(size=pair.batch) if scaled else np.ones(pair.batch)
            weight = (mask * scale[:, None])[:, :, None, None]
            for side, full in (("left", left * weight), ("right", right * weight)):
                want = np.einsum("btgi,btgj->gij", full, full)
                factor = getattr(pair, side)
                make = MAKERS[library]
                factor = _made(factor, make)
                factor = factor.masked(make(mask)) if masked else factor
                got = (factor.scaled(make(scale)) if scaled else factor).moment()
                if isinstance(factor, OneHot):
                    want = np.einsum("gii->gi", want)
                    np.testing.assert_allclose(np.asarray(got), want[0], rtol=1e-12, atol=1e-12)
                else:
                    close(got, want if factor.groups else want[0])

    def test_vectors_and_rows(self, library):
        gradients = np.random.default_rng(0).normal(size=(3, 4, 5))
        make = MAKERS[library]
        close(gradient(rows(make(gradients))), gradients)
        close(gradient(vector(make(gradients[:, :, 0]))), gradients[:, :, :1])
        assert rows(make(gradients)).shape == (4, 5)
        assert vector(make(gradients[:, 0])).shape == (5, 1)
        left, right = make(np.eye(4)[:, :2]), make(np.eye(5)[:, 1:3])
        close(gradient(rows(make(gradients)).projected(left, right)), gradients[:, :2, 1:3])

    def test_what_is_masked_may_be_nan(self, library):
        make = MAKERS[library]
        array = np.array([[[1.0, 2.0], [np.nan, np.inf]]])
        for left in (Dense(make(array), one=True), OneHot(make(np.array([[0, 1]])), 3)):
            pair = Pair(left, Dense(make(array))).masked(make(np.array([[True, False]])))
            assert np.isfinite(np.asarray(gradient(pair))).all()

    def test_ids_of_32_bits(self, library):
        make = MAKERS[library]
        pair = Pair(OneHot(make(np.array([[2, 0]], np.int32)), 3), Dense(make(np.ones((1, 2, 2)))))
        close(gradient(pair), np.array([[[1.0, 1], [0, 0], [1, 1]]]))
        close(gradient(pair.projected(make(np.eye(3)))), np.array([[[1.0, 1], [0, 0], [1, 1]]]))
        assert np.asarray(pair.left.moment()).tolist() == [1, 0, 1]

    def test_float32_stays(self, library):
        make = MAKERS[library]
        array = np.ones((2, 3, 4), np.float32)
        ids = make(np.zeros((2, 3), np.int64))
        for left in (Dense(make(array), one=True), OneHot(ids, 5)):
            pair = Pair(left, Dense(make(array))).masked(make(np.ones((2, 3), bool)))
            small = pair.projected(None, make(np.ones((4, 2), np.float32)))
            assert np.asarray(gradient(small)).dtype == np.float32
            assert np.asarray(pair.left.moment()).dtype == np.float32


def test_pairs_may_be_inside_jit():
    array = np.random.default_rng(0).normal(size=(2, 3, 4))
    ids = np.array([[0, 2, 1], [2, 2, 0]])

    @jax.jit
    def both(array, ids):
        mask = ids != 2
        pair = Pair(OneHot(ids, 3), Dense(array, one=True)).masked(mask)
        return gradient(pair), pair.left.moment(), rows(array).left.full()

    whole, counts, identity = both(array, ids)
    full = np.concatenate([array, np.ones((2, 3, 1))], axis=-1)
    hot = np.eye(3)[ids] * (ids != 2)[..., None]
    np.testing.assert_allclose(whole, np.einsum("bti,btj->bij", hot, full), rtol=1e-12)
    assert counts.tolist() == [2, 1, 0]
    assert identity.shape == (2, 3, 3)


def test_counts_are_exact_where_a_running_sum_would_not_be():
    ids = np.concatenate([np.zeros(2**24 + 3, np.int32), [1, 2, 2]])[None]
    assert OneHot(torch.from_numpy(ids), 4).moment()[1:].tolist() == [1, 2, 0]


# ---- projections


@pytest.mark.parametrize("kind", ["orthonormal", "gaussian"])
def test_random_projections_keep_dots_on_average(kind):
    total = np.zeros((6, 6))
    for seed in range(400):
        matrix = random_projection(kind, 6, 3, seed=seed, name="layer").astype(np.float64)
        total += matrix @ matrix.T / 400
    np.testing.assert_allclose(total, np.eye(6), atol=0.2)


def test_random_projections_depend_on_seed_and_name_only():
    one = random_projection("gaussian", 6, 3, seed=1, name="a")
    assert one.dtype == np.float32
    assert one.shape == (6, 3)
    np.testing.assert_array_equal(one, random_projection("gaussian", 6, 3, seed=1, name="a"))
    for other in (
        random_projection("gaussian", 6, 3, seed=2, name="a"),
        random_projection("gaussian", 6, 3, seed=1, name="b"),
        random_projection("gaussian", 6, 3, seed=-1, name="a"),
        random_projection("gaussian", 6, 3, seed=2**32 + 1, name="a"),
    ):
        assert not np.allclose(one, other)


@pytest.mark.parametrize("rank", [0, 7])
def test_ranks_are_checked(rank):
    with pytest.raises(ArgumentError, match=f"from 1 to 6.*; got {rank}"):
        random_projection("gaussian", 6, rank, seed=0, name="layer")
    with pytest.raises(ArgumentError, match=f"from 1 to 6.*; got {rank}"):
        principal(np.eye(6), rank)


def test_kinds_are_checked():
    with pytest.raises(ArgumentError, match="'orthonormal', 'gaussian'; got 'sparse'"):
        random_projection("sparse", 6, 3, seed=0, name="layer")


def test_principal_directions_explain_most():
    random = np.random.default_rng(0)
    basis = np.linalg.qr(random.normal(size=(5, 5)))[0]
    moment = basis @ np.diag([1, 30, 2, 20, 3]) @ basis.T
    matrix = principal(moment, 2)
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(2), atol=1e-6)
    np.testing.assert_allclose(np.abs(basis[:, [1, 3]].T @ matrix), np.eye(2), atol=1e-5)
    np.testing.assert_array_equal(principal(moment, 2), principal(moment.copy(), 2))


def test_principal_directions_of_counts_are_the_most_frequent():
    matrix = principal(np.array([1.0, 5, 0, 5, 9]), 3)
    np.testing.assert_array_equal(np.argmax(matrix, axis=0), [4, 1, 3])
    np.testing.assert_array_equal(matrix.sum(0), [1, 1, 1])


@pytest.mark.parametrize(
    ("kind", "size", "first"),
    [
        ("gaussian", 6, [[-1.0083672, -0.2942555], [-0.5067233, -0.4010926]]),
        ("orthonormal", 6, [[0.7937426, 1.0232803], [-0.2401391, 0.8556417]]),
        ("orthonormal", 3, [[1.0117794, 0.6033241], [-0.3061040, 0.9253091]]),
    ],
)
def test_random_projections_stay_what_they_were(kind, size, first):
    """They are not stored: stores of before are read with those that are made today."""
    matrix = random_projection(kind, size, 2, seed=5, name="layer/left")
    np.testing.assert_allclose(matrix[:2], first, rtol=1e-5)


@pytest.mark.parametrize(("size", "rank"), [(9, 3), (9, 4), (9, 5), (9, 9), (4, 1), (1, 1)])
def test_orthonormal_columns_by_either_way(size, rank):
    """That of normal entries whose triangle has a positive diagonal, whatever finds it."""
    matrix = random_projection("orthonormal", size, rank, seed=1, name="x").astype(np.float64)
    np.testing.assert_allclose(matrix.T @ matrix, size / rank * np.eye(rank), atol=1e-5)
    normal = np.random.default_rng(0).normal(size=(size, rank))
    columns = _orthonormal(normal)
    triangle = columns.T @ normal
    np.testing.assert_allclose(columns @ triangle, normal, atol=1e-9)
    np.testing.assert_allclose(triangle, np.triu(triangle), atol=1e-9)
    assert (np.diag(triangle) > 0).all()


def test_principal_directions_have_a_sign_of_their_own():
    """The greatest element is positive, so that two runs have the same."""
    random = np.random.default_rng(0)
    for _ in range(5):
        rows = random.normal(size=(20, 6))
        matrix = principal(rows.T @ rows, 4)
        assert (matrix[np.argmax(np.abs(matrix), axis=0), np.arange(4)] > 0).all()
        lengths = np.einsum("ij,jk,ik->i", matrix.T, rows.T @ rows, matrix.T)
        assert (np.diff(lengths) < 0).all()  # the main one first


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 2, 3), (2, 1, 3), (1, 1, 2, 3)])
def test_moments_of_few_positions(shape):
    array = np.random.default_rng(0).normal(size=shape)
    rows = np.concatenate([array, np.ones((*shape[:-1], 1))], -1).reshape(-1, *shape[2:-1], 4)
    wanted = np.einsum("n...i,n...j->...ij", rows, rows)
    np.testing.assert_allclose(Dense(array, one=True).moment(), wanted)


@pytest.mark.parametrize("ids", [[[0, 1, 2], [0, 2, 1]], [[0, 1, 2], [0, 1, 1]], [[2, 1, 0]] * 2])
def test_lookups_of_as_many_positions_as_rows_are_not_whole_gradients(ids):
    """One that happens to look up a row in its place is a lookup still."""
    right = Dense(np.ones((2, 3, 4)))
    assert not Pair(OneHot(np.array(ids), 3), right).is_whole
    own = np.arange(3)[None].repeat(2, 0)
    assert Pair(OneHot(own, 3), right).is_whole
    assert not Pair(OneHot(own, 3, np.ones((2, 3))), right).is_whole
    assert not Pair(OneHot(own[:, :2], 3), Dense(np.ones((2, 2, 4)))).is_whole
    assert not Pair(right, right).is_whole
