"""Curvatures by themselves, against dense matrices of numpy."""

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
from sawlog.errors import ArgumentError, StoreNotFoundError, UnknownNameError
from sawlog.influence import attribute
from tests.influence.dense import hessian
from tests.thorough import examples


class Factored:
    """The factors of gradients that are outer products."""

    def __init__(self, factors):
        self.factors = factors

    def kfac(self, block):
        if block not in self.factors:
            raise UnknownNameError(f"K-FAC of {block!r} was not measured.")
        return self.factors[block]

    def ekfac(self, block):
        raise AssertionError("eigenvalues are corrected on the rows themselves")


def moments(rows):
    """Two factors that are not those of the rows, but of their size."""
    left = (rows @ np.swapaxes(rows, -1, -2)).mean(0)
    right = (np.swapaxes(rows, -1, -2) @ rows).mean(0)
    return left, right


def fitted(kind, rows, blocks=1):
    """A curvature fitted to an array, which comes in so many blocks."""
    parts = np.array_split(rows, blocks)
    return fit(kind, lambda: iter({"w": part} for part in parts), Factored({"w": moments(rows)}))


def dense(layer):
    """The matrix of a layer."""
    size = int(np.prod(layer.row_shape()))
    unit = np.eye(size).reshape(size, *layer.row_shape())
    return layer.back(layer.into(unit) * layer.values).reshape(size, size)


def random_rows(n, *shape, seed=0):
    return np.random.default_rng(seed).normal(size=(n, *shape))


SHAPES = {"matrix": (3, 4), "vector": (5, 1), "groups": (2, 3, 2), "one": (1, 1)}
FITTED = [kind for kind in KINDS if kind != "identity"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", FITTED)
def test_solve_whiten_and_quadratic_are_those_of_the_dense_matrix(kind, shape):
    rows = random_rows(20, *SHAPES[shape])
    curvature = fitted(kind, rows, blocks=3)
    matrix = dense(curvature.layers["w"]) + 0.2 * np.eye(rows[0].size)
    flat = rows.reshape(20, -1)
    solved = np.linalg.solve(matrix, flat.T).T
    np.testing.assert_allclose(curvature.solve("w", rows, 0.2).reshape(20, -1), solved, rtol=1e-9)
    quadratic = (flat * solved).sum(1)
    np.testing.assert_allclose(curvature.quadratic("w", rows, 0.2), quadratic, rtol=1e-9)
    white = curvature.whiten("w", rows, 0.2).reshape(20, -1)
    np.testing.assert_allclose(white @ white.T, flat @ solved.T, rtol=1e-8, atol=1e-9)
    assert curvature.solve("w", rows, 0.2).shape == rows.shape


@pytest.mark.parametrize("kind", FITTED)
def test_it_does_not_matter_in_which_blocks_the_rows_come(kind):
    rows = random_rows(12, 3, 2)
    alone = dense(fitted(kind, rows).layers["w"])
    np.testing.assert_allclose(dense(fitted(kind, rows, blocks=12).layers["w"]), alone, rtol=1e-9)


@pytest.mark.parametrize("shape", ["matrix", "vector", "groups"])
@pytest.mark.parametrize("kind", ["diagonal", "fisher", "shampoo"])
def test_it_is_the_dense_matrix_by_hand(kind, shape):
    rows = random_rows(9, *SHAPES[shape])
    found = dense(fitted(kind, rows).layers["w"])
    np.testing.assert_allclose(found, hessian(kind, rows), rtol=1e-9, atol=1e-12)


def test_kfac_of_a_diagonal_factor():
    left, right = np.array([0.5, 0.0, 2.0]), np.array([[2.0, 1.0], [1.0, 2.0]])
    rows = random_rows(4, 3, 2)
    curvature = fit("kfac", lambda: iter([{"w": rows}]), Factored({"w": (left, right)}))
    found = dense(curvature.layers["w"])
    np.testing.assert_allclose(found, np.kron(np.diag(left), right), atol=1e-14)
    solved = curvature.solve("w", rows, 0.0)
    expected = np.einsum("i,nij,jk->nik", [2.0, 0.0, 0.5], rows, np.linalg.inv(right))
    np.testing.assert_allclose(solved, expected, atol=1e-13)


def test_examples_are_counted():
    """Those of all blocks, not of the layers, unless the caller knows how many there are."""
    blocks = [{"a": random_rows(n, 2), "b": random_rows(n, 3)} for n in (4, 0, 3)]
    assert fit("diagonal", lambda: iter(blocks)).count == 7
    assert fit("diagonal", lambda: iter(blocks), count=9).count == 9


def test_rows_may_come_in_a_buffer_that_is_used_again():
    """Few rows are kept until they are many: as they were."""
    rows = random_rows(3, 8)

    def scan():
        buffer = np.empty((1, 8))
        for row in rows:
            buffer[0] = row
            yield {"w": buffer}

    found = dense(fit("fisher", scan).layers["w"])
    np.testing.assert_allclose(found, rows.T @ rows / 3, atol=1e-12)


def test_layers_whose_blocks_differ_in_length():
    """Means are over the rows of each layer."""
    rows = {"a": random_rows(6, 2), "b": random_rows(2, 3)}
    blocks = [{"a": rows["a"][:2], "b": rows["b"]}, {"a": rows["a"][2:], "b": rows["b"][:0]}]
    found = fit("diagonal", lambda: iter(blocks))
    for name, values in rows.items():
        np.testing.assert_allclose(found.layers[name].values, (values**2).mean(0), rtol=1e-12)


# -- spectra --------------------------------------------------------------------------------------


def test_rounding_is_that_of_each_group():
    """Eigenvalues of one group may be as small as the rounding of another's."""
    rows = random_rows(20, 2, 3, 3) * np.array([1.0, 1e-9])[:, None, None]
    for kind in ("kfac", "shampoo"):
        values = fitted(kind, rows).layers["w"].values
        assert (values > 0).all()
        assert values[0].min() > 1e6 * values[1].max()


def test_negative_eigenvalues_count_as_zero_for_damping():
    curvature = Curvature("exact", {"w": FullMatrix.of(np.diag([2.0, -1.0]), (2,))})
    assert curvature.added("w", Relative(0.5)) == pytest.approx(0.5)
    assert curvature.added("w", Typical(0.5)) == pytest.approx(1.0)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("kind", FITTED)
def test_without_damping_it_is_the_pseudo_inverse(kind, size):
    """Fewer gradients than elements; eigenvalues as small as 1e-30 and as large as 1e+30."""
    scale = np.sqrt(size)
    rows = scale * random_rows(3, 4, 1) * np.array([1.0, 1, 1, 0])[:, None]
    curvature = fitted(kind, rows)
    matrix = dense(curvature.layers["w"])
    queries = scale * random_rows(5, 4, 1, seed=1)
    expected = queries.reshape(5, -1) @ np.linalg.pinv(matrix, rcond=1e-12, hermitian=True)
    found = curvature.solve("w", queries, 0.0).reshape(5, -1)
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9 * np.abs(expected).max())
    assert np.isfinite(found).all()


@pytest.mark.parametrize("kind", FITTED)
def test_a_rank_deficient_curvature_has_no_part_in_what_never_occurs(kind):
    rows = np.zeros((6, 3, 4))
    rows[:, 1:, :2] = random_rows(6, 2, 2)
    turned = np.linalg.qr(random_rows(3, 3, seed=2))[0] @ rows @ np.linalg.qr(random_rows(4, 4))[0]
    rows = rows if kind == "diagonal" else turned
    curvature = fitted(kind, rows)
    solved = curvature.solve("w", rows, 0.0)
    matrix = dense(curvature.layers["w"])
    inverse = np.linalg.pinv(matrix, rcond=1e-11, hermitian=True)
    expected = (rows.reshape(6, -1) @ inverse).reshape(rows.shape)
    np.testing.assert_allclose(solved, expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max())


def test_eigenvalues_of_any_size_stay_apart():
    """Nothing is cut off that is no rounding: a diagonal has none."""
    curvature = Curvature("diagonal", {"w": Diagonal(np.array([1e30, 1.0, 1e-30, 0.0]))})
    found = curvature.solve("w", np.ones((1, 4)), 0.0)
    np.testing.assert_allclose(found, [[1e-30, 1.0, 1e30, 0.0]], rtol=1e-12)


def test_a_gradient_that_is_always_zero():
    curvature = fitted("fisher", np.zeros((3, 2, 1)))
    np.testing.assert_array_equal(curvature.solve("w", np.ones((1, 2, 1))), np.zeros((1, 2, 1)))
    np.testing.assert_allclose(curvature.solve("w", np.ones((1, 2, 1)), 0.5), np.full((1, 2, 1), 2))


def test_negative_eigenvalues_are_never_cut_off_silently():
    hessian = np.diag([2.0, -0.5])
    curvature = Curvature("exact", {"w": FullMatrix.of(hessian, (2,))})
    with pytest.raises(ArgumentError, match=r"eigenvalue -0\.5, which a damping of 0\.1 leaves"):
        curvature.solve("w", np.ones((1, 2)), 0.1)
    np.testing.assert_allclose(curvature.solve("w", np.ones((1, 2)), 1.0), [[1 / 3, 2.0]])


def test_a_matrix_must_be_symmetric_and_fit():
    with pytest.raises(ArgumentError, match="symmetric"):
        FullMatrix.of(np.array([[1.0, 2.0], [0.0, 1.0]]), (2,))
    with pytest.raises(ArgumentError, match="symmetric and finite"):
        FullMatrix.of(np.full((2, 2), np.nan), (2,))
    with pytest.raises(ArgumentError, match=r"have 3 elements, but the matrix has the shape \[2"):
        FullMatrix.of(np.eye(2), (3,))


# -- damping --------------------------------------------------------------------------------------


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
