"""Damping of curvatures, curvatures on disk, and what does not fit."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog import curvature as curvatures
from sawlog import store
from sawlog.curvature import (
    IDENTITY,
    KINDS,
    Curvature,
    Diagonal,
    FullMatrix,
    Joint,
    Kronecker,
    Relative,
    Sampled,
    Typical,
    fit,
    load,
    load_with_notes,
)
from sawlog.curvature import _row_sums as row_sums
from sawlog.errors import ArgumentError, StoreNotFoundError
from sawlog.influence import attribute
from tests.thorough import examples

from .curvature_helpers import FITTED, Factored, fitted, moments, random_rows


def few_factors(count):
    values = np.array([[1.0, 3.0, 0.0]])
    return Curvature("kfac", {"w": Kronecker(values, np.eye(1), np.eye(3))}, count=count), values


def few_rows(count):
    layer = FullMatrix.of_rows(np.diag([2.0, 4.0, 0.0])[:2], (3,))
    return Curvature("fisher", {"w": layer}, count=count), np.array([2.0, 8.0, 0.0])


def one_matrix(count):
    joint = Joint(np.diag([1.0, 3.0, 0.0]), {"w": (3,)})
    return Curvature("gauss-newton", {}, joint, count), np.array([1.0, 3.0, 0.0])


def test_amounts_of_damping():
    curvature = Curvature("diagonal", {"w": Diagonal(np.array([1.0, 3.0]))})
    assert curvature.added("w") == pytest.approx(0.05 * 2)  # of no examples that are known of
    curvature.count = 50
    assert curvature.added("w") == curvature.added("w", Sampled()) == pytest.approx(0.1 + 2.5 / 50)
    assert curvature.added("w", Sampled(0.5, 10)) == pytest.approx(1 + 25 / 50)
    assert curvature.added("w", Typical(0.4)) == pytest.approx(0.4 * (1 + 9) / (1 + 3))
    assert curvature.added("w", Relative(0.5)) == 1.0
    assert curvature.added("w", 0.5) == 0.5
    assert curvature.added("w", np.float32(0.5)) == 0.5
    assert curvature.added("w", {"w": 0.25}) == 0.25
    assert curvature.added("w", {"w": Relative(0.5)}) == 1.0
    assert curvature.added("w", 0) == 0.0
    assert IDENTITY.added("w", 3.0) == 0.0


@pytest.mark.parametrize("damping", [-1, float("nan"), float("inf"), "much", True, {"w": -1}])
def test_what_is_no_damping(damping):
    curvature = Curvature("diagonal", {"w": Diagonal(np.array([1.0, 3.0]))})
    with pytest.raises(ArgumentError, match="non-negative number"):
        curvature.solve("w", np.ones((1, 2)), damping)


@pytest.mark.parametrize("share", [-0.1, float("nan"), float("inf"), "1"])
@pytest.mark.parametrize("kind", [Relative, Typical, Sampled, lambda share: Sampled(0.1, share)])
def test_what_is_no_share(kind, share):
    with pytest.raises(ArgumentError, match=r"non-negative numbers?"):
        kind(share)


@pytest.mark.parametrize(
    ("make", "share", "noise"),
    [(few_factors, 0.05, 1), (few_rows, 0.1, 3), (one_matrix, 0.1, 10)],
)
def test_the_default_of_a_curvature_goes_by_its_freedom_and_its_examples(make, share, noise):
    for count in (None, 4, 4000):
        curvature, values = make(count)
        mean, typical = values.mean(), (values**2).sum() / values.sum()
        expected = share * mean + (noise * typical / count if count else 0)
        assert curvature.added("w") == pytest.approx(expected)


@pytest.mark.parametrize("size", [1e-200, 1e-30, 1.0, 1e30, 1e200])
def test_shares_of_spectra_of_any_size(size):
    curvature = Curvature("diagonal", {"w": Diagonal(size * np.array([1.0, 3.0, 0.0, 0.0]))})
    assert curvature.added("w", Relative(0.5)) == pytest.approx(0.5 * size)
    assert curvature.added("w", Typical(0.5)) == pytest.approx(1.25 * size)


def test_a_dict_of_damping_names_every_layer():
    curvature = Curvature("diagonal", {"w": Diagonal(np.ones(2))})
    with pytest.raises(ArgumentError, match=r"no number for the layer 'w'; .*: other"):
        curvature.solve("w", np.ones((1, 2)), {"other": 1.0})


@pytest.mark.parametrize("kind", FITTED)
def test_damping_changes_nothing_that_is_kept(kind):
    rows = random_rows(5, 2, 3)
    curvature = fitted(kind, rows)
    before = {name: array.copy() for name, array in curvature.layers["w"].arrays().items()}
    first = curvature.solve("w", rows, 0.1)
    curvature.solve("w", rows, 5.0)
    np.testing.assert_array_equal(curvature.solve("w", rows, 0.1), first)
    assert before
    for name, array in curvature.layers["w"].arrays().items():
        np.testing.assert_array_equal(array, before[name])


# -- on disk --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_save_and_load(tmp_path, kind):
    rows = random_rows(5, 2, 3)
    curvature = fitted(kind, rows)
    for notes in ({"n": 5}, {"n": 6}):  # the second replaces the first
        curvature.save(tmp_path / "deep" / "saved", notes)
    found, said = load_with_notes(tmp_path / "deep" / "saved")
    assert (found.kind, said) == (kind, {"n": 6})
    assert found.count == curvature.count == (None if kind == "identity" else 5)
    for layer in curvature.layers:
        assert found.added(layer) == curvature.added(layer)
    np.testing.assert_array_equal(
        found.solve("w", rows, 0.1), curvature.solve("w", rows, 0.1), strict=True
    )
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["saved"]
    assert load(tmp_path / "deep" / "saved").kind == kind


@pytest.mark.parametrize("names", [("a@b", "a"), ("@", "@matrix"), ("w@values", "w", "w@values@b")])
def test_any_name_of_a_layer_comes_back(tmp_path, names):
    """What is stored of a layer has its name and that of its part, joined by a mark."""
    layers = {name: Diagonal(np.arange(3.0) + n) for n, name in enumerate(names)}
    layers[names[0]] = Kronecker(np.ones((2, 2)), np.eye(2), np.ones(2))
    Curvature("diagonal", layers).save(tmp_path / "saved")
    found = load(tmp_path / "saved").layers
    assert list(found) == list(names)
    for name, layer in layers.items():
        assert type(found[name]) is type(layer)
        for part, array in layer.arrays().items():
            np.testing.assert_array_equal(found[name].arrays()[part], array)


def test_several_save_to_one_place(tmp_path):
    """Whoever is last: there is always a whole one afterwards, and nothing beside it."""
    several = [Curvature("diagonal", {"w": Diagonal(np.full(3, i + 1.0))}) for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            list(pool.map(lambda each: each.save(tmp_path / "saved"), several))
            assert load(tmp_path / "saved").layers["w"].values[0] in (1, 2, 3, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_load_something_else(tmp_path):
    with pytest.raises(StoreNotFoundError):
        load(tmp_path / "nothing")
    store.create(tmp_path / "other").close()
    with pytest.raises(ArgumentError, match="does not contain a curvature"):
        load(tmp_path / "other")


# -- what does not fit ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["kfac", "ekfac"])
def test_missing_factors_name_the_stage_to_run(kind):
    rows = lambda: iter([{"w": random_rows(3, 2, 2)}])
    for measured in (None, Factored({})):
        with pytest.raises(ArgumentError, match=r'run\.setup\(statistic="kfac"'):
            fit(kind, rows, measured)
    with pytest.raises(ArgumentError, match=r"of the shape \[3, 2\], but the rows have \[2, 2\]"):
        fit(kind, rows, Factored({"w": (np.eye(3), np.eye(2))}))
    with pytest.raises(ArgumentError, match="left factor of 'w' is not finite"):
        fit(kind, rows, Factored({"w": (np.full((2, 2), np.nan), np.eye(2))}))


@pytest.mark.parametrize("kind", ["kfac", "ekfac"])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_factors_that_are_not_finite(kind, side, bad):
    """One number is enough, of either side."""
    factors = [np.eye(2), np.ones(3)]
    factors[side][..., -1] = bad

    class OfRun:
        def kfac(self, name):
            return tuple(factors)

    which = ("left", "right")[side]
    with pytest.raises(ArgumentError, match=f"the {which} factor of 'w' is not finite"):
        fit(kind, lambda: iter([{"w": np.ones((4, 2, 3))}]), OfRun())


@pytest.mark.parametrize("kind", FITTED)
def test_no_rows(kind):
    for nothing in ([], [{"w": np.zeros((0, 2, 2))}]):
        with pytest.raises(ArgumentError, match="no rows to fit"):
            fit(kind, lambda nothing=nothing: iter(nothing), Factored({"w": (np.eye(2),) * 2}))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["diagonal", "fisher", "ekfac", "shampoo"])
def test_rows_that_are_not_numbers(kind, bad):
    rows = random_rows(4, 2, 2)
    measured = Factored({"w": moments(rows)})
    rows[2, 0, 1] = bad
    with pytest.raises(
        ArgumentError, match="At least 1 examples have gradients of 'w' that are inf"
    ):
        fit(kind, lambda: iter([{"w": rows}]), measured)


def test_unknown_kind():
    with pytest.raises(ArgumentError, match=r"'ekfac', 'shampoo'; got 'kfca'"):
        fit("kfca", lambda: iter([]))


def test_fisher_of_too_many_elements(monkeypatch):
    scan = lambda: iter([{"w": np.zeros((6, 5, 4), np.float32)}] * 2)
    monkeypatch.setattr(row_sums, "MOST_ELEMENTS", 19)
    with pytest.raises(ArgumentError, match=r"all 20 elements of 'w'.* matrix of .* GB\. Hint"):
        fit("fisher", scan)
    monkeypatch.setattr(row_sums, "MOST_KEPT", 6 * 20 - 1)
    with pytest.raises(ArgumentError, match=r"takes at least 6 rows\. Hint: run\.setup\(compress"):
        fit("fisher", scan)


@examples(15, 40)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6),
    st.sampled_from([(1,), (7,), (3, 4)]),
    st.integers(0, 9999),
    st.booleans(),
)
def test_fisher_of_few_rows_and_of_many(sizes, shape, seed, flat):
    """By the rows while they are few, by the matrix from then on: always what numpy inverts."""
    random = np.random.default_rng(seed)
    blocks = [random.normal(size=(n, *shape)) for n in [*sizes, 1]]
    if flat:  # some directions twice, so that there are fewer than rows
        blocks = [*blocks, *blocks]
    rows = np.concatenate(blocks)
    x = rows.reshape(len(rows), -1)
    dense = x.T @ x / len(x)
    curvature = fit("fisher", lambda: iter([{"w": block} for block in blocks]))
    layer = curvature.layers["w"]
    assert len(layer.values) + layer.outside == x.shape[1]
    assert layer.spectrum().mean == pytest.approx(np.trace(dense) / x.shape[1])
    some = random.normal(size=(3, *shape))
    for damping in (1e-4, 1.0):
        expected = np.linalg.solve(dense + damping * np.eye(x.shape[1]), some.reshape(3, -1).T).T
        found = curvature.solve("w", some, damping)
        np.testing.assert_allclose(found.reshape(3, -1), expected, rtol=1e-8, atol=1e-8)
        lengths = (expected * some.reshape(3, -1)).sum(1)
        np.testing.assert_allclose(curvature.quadratic("w", some, damping), lengths, rtol=1e-8)
        twice = curvature.whiten("w", curvature.whiten("w", some, damping), damping)
        np.testing.assert_allclose(twice, found, rtol=1e-8, atol=1e-8)
    pseudo = np.linalg.pinv(dense, rcond=1e-10, hermitian=True) @ x.T
    np.testing.assert_allclose(
        curvature.solve("w", rows, 0.0).reshape(x.shape), pseudo.T, rtol=1e-6, atol=1e-6
    )


def test_rows_of_other_layers_and_shapes():
    layers = {"d": Diagonal(np.ones(4)), "k": Kronecker(np.ones((2, 2)), np.eye(2), np.eye(2))}
    curvature = Curvature("mixed", layers)
    with pytest.raises(ArgumentError, match="has no layer 'x'; it was fitted to: d, k"):
        curvature.solve("x", np.ones((1, 4)))
    for name in layers:
        np.testing.assert_allclose(curvature.solve(name, np.ones((3, 4, 1)), 1.0), 0.5)
        for method in (curvature.solve, curvature.whiten, curvature.quadratic):
            with pytest.raises(ArgumentError, match=r"but these have \[5\]"):
                method(name, np.ones((1, 5)))


def test_the_old_name_of_full_matrix_warns():
    with pytest.warns(DeprecationWarning, match=r"use sawlog\.curvature\.FullMatrix"):
        assert curvatures.Dense is FullMatrix
    with pytest.raises(AttributeError, match="has no attribute 'Sparse'"):
        _ = curvatures.Sparse


def test_every_kind_that_is_listed_is_documented():
    for kind in KINDS:
        assert f'``"{kind}"``' in fit.__doc__
        assert f'``"{kind}"``' in attribute.__doc__


@pytest.mark.parametrize("kind", ["diagonal", "fisher", "shampoo"])
@pytest.mark.parametrize("count", [3, 30], ids=["fewer rows than elements", "more"])
def test_sums_keep_nothing_of_the_callers_memory_and_merge(kind, count):
    rows = np.random.default_rng(count).normal(size=(count, 2, 4))
    whole, reused, merged = (curvatures.row_sums(kind, {"w": (2, 4)}, None) for _ in range(3))
    whole.add("w", rows)
    memory = np.empty_like(rows[:2])
    for start in range(0, count, 2):
        some = memory[: len(rows[start : start + 2])]
        some[:] = rows[start : start + 2]
        part = merged.fresh()
        for sums in (reused, part):
            sums.add("w", some)
        merged.merge(part.data())
    memory[:] = 0
    wanted = whole.layers()["w"]
    asked = np.random.default_rng(0).normal(size=(5, 2, 4))
    for sums in (reused, merged):
        found = sums.layers()["w"]
        np.testing.assert_allclose(found.spectrum().mean, wanted.spectrum().mean)
        scale = [1 / (layer.values + 0.1) for layer in (found, wanted)]
        np.testing.assert_allclose(
            found.scaled(asked, scale[0], 10.0), wanted.scaled(asked, scale[1], 10.0)
        )
