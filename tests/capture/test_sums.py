"""Statistics, sampled labels, encodings and metrics of a run, by numpy alone."""

import warnings

import ml_dtypes
import numpy as np
import pytest

from sawlog import store
from sawlog.capture._label_sampling import LabelSampling, check_no_rows, samples_labels
from sawlog.capture._metrics import RunMetrics
from sawlog.capture._nonfinite import LIMITS, NonFiniteRows, rows_at_or_above, rows_to_store
from sawlog.capture._resume import check_same_setup
from sawlog.errors import ArgumentError, CaptureError, LogValueError
from sawlog.run_files._blocks import Block
from sawlog.run_files._encode import decode, encode, row_bytes
from sawlog.run_files._measured import LEFT, RIGHT, Measured
from sawlog.run_files._options import read
from sawlog.run_files._statistics import RunStatistics, Staged, added
from sawlog.sinks import MemorySink


def parts():
    rows = np.random.default_rng(0).normal(3.0, 2.0, size=(12, 2, 3))
    return rows, np.split(rows, [1, 8])


def test_means_and_variances_of_batches_of_different_sizes():
    rows, several = parts()
    sums = RunStatistics("float64")
    for part in several[:2]:
        sums.add_rows("x", part)
    sums.add_rows("x", rows[:0])
    resumed = RunStatistics("float64")
    resumed.load(sums.arrays())
    resumed.add_rows("x", several[2])
    other = RunStatistics("float64")
    other.add_rows("x", several[2])
    both = added(sums.arrays(), other.arrays())
    for arrays in (resumed.arrays(), both, added(other.arrays(), sums.arrays())):
        found = Measured(arrays, [], 12)
        np.testing.assert_allclose(found.mean("x"), rows.mean(0))
        np.testing.assert_allclose(found.variance("x"), rows.var(0))
        assert {count for _, count in arrays.values()} == {12}


def test_what_is_staged_counts_once_it_is_committed():
    staged, sums = Staged(), RunStatistics("float64")
    staged.add("s", np.ones(2), 3)
    staged.add_rows("x", np.array([[1.0], [3.0]]))
    assert sums.arrays() == {}
    staged.commit(sums)
    found = sums.arrays()
    assert (found["sum/s"][0].tolist(), found["sum/s"][1]) == ([1.0, 1.0], 3)
    assert (found["mean/x"][0].tolist(), found["squares/x"][0].tolist()) == ([2.0], [2.0])


@pytest.mark.parametrize("centered", [False, True])
def test_covariances(centered):
    rows = parts()[0].reshape(12, 6)
    sums = RunStatistics("float64")
    for part in np.split(rows, [5]):
        sums.add("covariance:x", part.T @ part, len(part))
        sums.add("mean:x", part.sum(0), len(part))
    found = Measured(sums.arrays(), [], 12).covariance("x", centered=centered)
    wanted = np.cov(rows.T, bias=True) if centered else rows.T @ rows / 12
    np.testing.assert_allclose(found, wanted)


@pytest.mark.parametrize("inputs", ["left", "right"])
def test_inputs_are_a_mean_over_positions_and_outputs_over_examples(inputs):
    """Whichever side they are on; there are 5 positions in each of 4 examples."""
    arrays = {
        f"sum/{LEFT}/w": (np.full((2, 2), 40.0), 20),
        f"sum/{RIGHT}/w": (np.full(3, 40.0), 20),
    }
    left, right = Measured(arrays, [Block("w", ("w",), (2, 3), inputs)], 4).kfac("w")
    assert (left[0, 0], right[0]) == ((2.0, 10.0) if inputs == "left" else (10.0, 2.0))


def test_ekfac_is_that_of_the_factors_it_was_measured_in():
    arrays = {
        f"sum/{LEFT}/w": (np.eye(2), 1),
        f"sum/{RIGHT}/w": (np.eye(3), 1),
        "sum/ekfac/w": (np.full((2, 3), 8.0), 4),
    }
    blocks = [Block("w", ("w",), (2, 3), "right")]
    own = Measured(arrays, blocks, 4).factors()
    for factors in (None, own):
        assert Measured(arrays, blocks, 4, factors=factors).ekfac("w")[0, 0] == 2.0
    with pytest.raises(ArgumentError, match="eigenbasis of an earlier K-FAC"):
        Measured(arrays, blocks, 4, factors="of others").ekfac("w")


# -- labels that are drawn ------------------------------------------------------------------------


def test_numbers_depend_on_the_seed_the_id_and_the_call_alone():
    ids = np.array([5, 9, 7])
    sampling = LabelSampling(1, ids)
    first, second, third = (sampling.uniforms(4) for _ in range(3))
    assert len({*first.ravel(), *second.ravel(), *third.ravel()}) == 36
    again = LabelSampling(1, ids[[2, 0]])
    np.testing.assert_array_equal(again.uniforms(4), first[[2, 0]])
    np.testing.assert_array_equal(again.uniforms(2), second[[2, 0], :2])
    assert not np.array_equal(LabelSampling(2, ids).uniforms(4), first)
    assert not np.array_equal(LabelSampling(1, ids.astype(str)).uniforms(4), first)
    assert ((first >= 0) & (first < 1)).all()
    with pytest.raises(CaptureError, match=r"run\.labels was not called"):
        LabelSampling(1, ids).check_used()
    sampling.check_used()


# -- what is not finite ---------------------------------------------------------------------------


def test_which_examples_cannot_be_stored():
    limit = LIMITS["float16"]
    good = np.array([[1.0, 2.0], [limit - 1, 0.0], [-1.0, 3.0]])
    assert rows_at_or_above(limit, [("a", good)]) is None
    large, odd = good.copy(), good.copy()
    large[1, 0], odd[2, 1] = -limit, np.nan
    found = rows_at_or_above(limit, [("a", large), ("b", good)])
    assert (found.rows.tolist(), found.names, found.overflows) == (
        [False, True, False],
        ("a",),
        True,
    )
    for logs in ([("a", odd), ("b", large)], [("b", large), ("a", odd)]):
        found = rows_at_or_above(limit, logs)
        assert (found.rows.tolist(), found.overflows) == ([False, True, True], False)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_limits_are_where_rounding_becomes_infinite(dtype):
    """By the rounding of the dtype itself, just below its limit and just above."""
    limit, kind = LIMITS[dtype], np.dtype(getattr(ml_dtypes, dtype, dtype))
    above = limit if dtype == "float16" else limit * (1 + 2**-15)
    for sign in (1.0, -1.0):
        rows = np.array([[sign * np.nextafter(limit, 0.0)], [sign * above]])
        with np.errstate(over="ignore"):
            rounded = rows.astype(kind).astype(np.float64)
        assert np.isinf(rounded).ravel().tolist() == [False, True]
        found = rows_at_or_above(limit, [("a", rows)])
        assert (found.rows.tolist(), found.overflows) == ([False, True], True)


def test_examples_that_would_enter_statistics_are_never_left_out():
    found, ids = NonFiniteRows(np.array([False, True]), ("a",), False), np.array([3, 4])
    with pytest.warns(UserWarning, match="1 examples were left out.*4"):
        assert rows_to_store(found, ids, read(None, nonfinite="skip")).tolist() == [True, False]
    for options in ({"nonfinite": "skip", "statistic": "kfac"}, {"nonfinite": "error"}):
        with pytest.raises(CaptureError, match="infinite or NaN"):
            rows_to_store(found, ids, read(None, **options))


@pytest.mark.parametrize(
    ("option", "value", "free"),
    [("dtype", "float16", False), ("log", ["backward"], False), ("duplicates", "first", False),
     ("interval", 7.0, True), ("offload", True, True), ("weights", "any", True),
     ("nonfinite", "skip", True)],
)  # fmt: skip
def test_which_options_may_differ_when_a_run_goes_on(tmp_path, option, value, free):
    before = {"options": read(None).to_json(), "blocks": [], "factors": None}
    now = {**before, "options": read(None, **{option: value}).to_json()}
    if free:
        check_same_setup(before, now, tmp_path)
        return
    with pytest.raises(ArgumentError, match=f"{option} was"):
        check_same_setup(before, now, tmp_path)


# -- encodings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_bytes_with_a_scale_for_each_row(dtype):
    rows = np.array([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [-300.0, 3.0, 0.1]], dtype)
    columns = encode("x", rows, "int8")
    assert columns["x.scale"].dtype == np.float32
    np.testing.assert_allclose(columns["x.scale"], [2 / 127, 0.0, 300 / 127], rtol=1e-6)
    assert np.abs(columns["x"]).max() == 127
    apart = np.abs(decode(columns, "x") - rows).max(1)
    assert (apart <= 0.51 * columns["x.scale"] + 1e-7).all()
    odd = encode("x", np.array([[1.0, np.inf], [1.0, 2.0]], np.float32), "int8")
    assert np.isnan(odd["x.scale"]).tolist() == [True, False]
    assert row_bytes(3, "int8") == 3 * columns["x"].itemsize + columns["x.scale"].itemsize
    assert row_bytes(3, "float16") == 6


# -- metrics --------------------------------------------------------------------------------------


def test_logged_arrays_are_those_of_the_moment(tmp_path):
    memory = MemorySink()
    metrics = RunMetrics(tmp_path / "m", [memory])
    array = np.ones(3)
    metrics.log(({"a": {"b": array}, "c": [1, 2.5]},), {"step": 3})
    array[:] = 9
    metrics.log(("a/b", array), {"step": 4, "where": False})
    metrics.finalize()  # flushes sinks of others, which stay open
    metrics.log(("d", 1), {"step": 5, "where": np.bool_(True)})
    assert memory.logs["a/b"].tolist() == [[1.0] * 3]
    assert (memory.logs["c/0"].tolist(), memory.logs["c/1"].tolist()) == ([1], [2.5])
    assert memory.records["d"].steps["step"].tolist() == [5]
    with pytest.raises(LogValueError):
        metrics.log(("e", "text"), {"where": False})
    metrics.close()
    with pytest.raises(ArgumentError, match="sinks of this run are closed"):
        metrics.log(("d", 1), {})


def test_the_store_of_metrics_is_opened_again(tmp_path):
    metrics = RunMetrics(tmp_path / "m", None)
    for step in range(2):
        metrics.log(("x", step), {"step": step})
        metrics.finalize()
    with warnings.catch_warnings(), store.open(tmp_path / "m") as reader:
        assert reader.read("x").tolist() == [0, 1]


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_a_diagonal_and_a_matrix_are_added_as_matrices(order):
    diagonal, dense = np.array([1.0, 2.0]), np.array([[3.0, 4.0], [5.0, 6.0]])
    both = [diagonal, dense][order]
    sums, parts = RunStatistics("float64"), []
    for array in both:
        sums.add("k", array, 1)
        part = RunStatistics("float64")
        part.add("k", array, 1)
        parts.append(part.arrays())
    expected = [[4, 4], [5, 8]]
    assert sums.arrays()["sum/k"][0].tolist() == expected
    assert added(*parts)["sum/k"][0].tolist() == expected


@pytest.mark.parametrize("shapes", [((2,), (3,)), ((2,), (2, 3)), ((1,), (2,)), ((2,), (2, 2, 2))])
def test_other_shapes_are_not_broadcast(shapes):
    sums = RunStatistics("float64")
    sums.add("k", np.ones(shapes[0]), 1)
    with pytest.raises(CaptureError, match="two batches"):
        sums.add("k", np.ones(shapes[1]), 1)


def test_labels_are_drawn_for_curvature_alone():
    for statistic in ("kfac", "ekfac"):
        true = read(None, fisher="true", statistic=[statistic], save=[])
        assert samples_labels(true)
        assert not samples_labels(true.without_statistic(save=None))
        assert not samples_labels(read(None, statistic=[statistic], save=[]))
        check_no_rows(true)
    with pytest.raises(ArgumentError, match="one pass cannot do both"):
        check_no_rows(read(None, fisher="true", statistic=["kfac"], save=["grad"]))
