"""Curves against the plain definition, and sums over pieces of long series and arrays."""

import numpy as np
import pytest

import sawlog.store
from sawlog.inspect import _curves, _summarize, array_histories, series_curves, store_summary
from sawlog.inspect._curves import curve
from sawlog.records import Entries, Records


def plainly(values, steps, points):
    """The points of a curve, one by one: the entries of a step, or of consecutive steps."""
    order = sorted(range(len(values)), key=lambda i: steps[i])
    values, steps = [values[i] for i in order], [steps[i] for i in order]
    starts = [i for i in range(len(steps)) if i == 0 or steps[i] != steps[i - 1]]
    distinct = len(starts)
    if distinct > points:
        starts = [starts[int(n * distinct / points)] for n in range(points)]
    found = []
    for start, stop in zip(starts, [*starts[1:], len(values)], strict=True):
        finite = [v for v in values[start:stop] if np.isfinite(v)]
        shown = (np.mean(finite), min(finite), max(finite)) if finite else (np.nan,) * 3
        found.append((steps[(start + stop - 1) // 2], *shown))
    odd = [step for value, step in zip(values, steps, strict=True) if not np.isfinite(value)]
    return found, distinct, len(odd), odd[0] if odd else None


@pytest.mark.parametrize("points", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("kind", ["in order", "in any order", "several of a step", "odd", "one"])
def test_a_curve_is_that_of_the_definition(kind, points):
    random = np.random.default_rng(points)
    count = 1 if kind == "one" else 23
    values = random.normal(size=count)
    steps = np.arange(count) * 3.0 + 5
    if kind in ("several of a step", "odd"):
        steps = random.integers(0, 9, count).astype(float)
    elif kind == "in any order":
        steps = random.permutation(steps)
    if kind == "odd":
        values[random.choice(count, 9, replace=False)] = [np.nan, np.inf, -np.inf] * 3
        values[steps == steps[0]] = np.nan
    found = curve(values, steps, "step", points)
    wanted, distinct, nonfinite, first = plainly(values, steps, points)
    shown = np.stack([found.steps, found.mean, found.least, found.greatest], 1)
    np.testing.assert_allclose(shown, wanted, rtol=1e-12)
    said = (found.axis, found.entries, found.distinct, found.nonfinite, found.first_nonfinite)
    assert said == ("step", count, distinct, nonfinite, first)
    assert found.thinned is (len(wanted) < count)


def written(path, records, attrs=None):
    with sawlog.store.create(path, interval=None) as writer:
        for part in records:
            writer.write(Records(part))
            writer.flush()
    return path


def test_the_last_value_is_the_last_that_was_logged(tmp_path):
    """Whatever it is, and whatever its step is."""
    mask = np.array([True, True, True, False])
    odd = Entries(np.array([1.0, 2.0, np.nan, 4.0]), {"step": np.array([5, 9, 7, 8])}, mask)
    (found,) = series_curves(written(tmp_path / "s", [{"x": odd}]))
    assert np.isnan(found.last)
    assert found.last_steps == {"step": 7.0}
    (own,) = found.curves
    assert (own.entries, own.nonfinite, own.first_nonfinite) == (3, 1, 7.0)
    assert own.steps.tolist() == [5.0, 7.0, 9.0]


def test_axes_that_numbers_can_be_drawn_over(tmp_path):
    """Times count from 1970, one that is not known is no number, and texts are no axis."""
    steps = {
        "step": np.array([2, 1, 0], np.int8),
        "time": np.array(["1970-01-05", "NaT", "1970-01-03"], "M8[D]"),
        "phase": np.array(["a", "b", "c"]),
        "vector": np.zeros((3, 2)),
    }
    (found,) = series_curves(
        written(tmp_path / "s", [{"x": Entries(np.array([1.0, 2.0, 3.0]), steps)}])
    )
    assert [each.axis for each in found.curves] == ["step", "time"]
    assert found.curves[0].mean.tolist() == [3.0, 2.0, 1.0]
    np.testing.assert_array_equal(found.curves[1].steps, [2.0, 4.0, np.nan])
    assert found.curves[1].mean.tolist() == [3.0, 1.0, 2.0]
    assert found.last_steps == {"step": 0.0, "time": 2.0}


def lanes(values, batch, mask=None, **steps):
    attrs = {} if batch is None else {"logdict": {"batch": batch}}
    return Entries(values, {"step": np.arange(len(values)), **steps}, mask, attrs)


def test_each_lane_is_an_entry(tmp_path):
    values = np.arange(6.0).reshape(2, 3)
    mask = np.array([[True, False, True], [True, True, True]])
    (found,) = series_curves(written(tmp_path / "s", [{"x": lanes(values, 1, mask)}]))
    (own,) = found.curves
    assert own.entries == 5
    assert (own.steps.tolist(), own.mean.tolist()) == ([0.0, 1.0], [1.0, 4.0])
    assert (own.least.tolist(), own.greatest.tolist()) == ([0.0, 3.0], [2.0, 5.0])


@pytest.mark.parametrize(
    ("batches", "drawn"),
    [([1], True), ([1, 1], True), ([None], False), ([0], False), ([1, None], False), ([2], False)],
)
def test_arrays_are_lanes_if_all_of_them_were(tmp_path, batches, drawn):
    parts = [{"x": lanes(np.ones((1, 3)), batch)} for batch in batches]
    assert bool(series_curves(written(tmp_path / "s", parts))) is drawn


def test_lanes_that_are_too_many_have_no_curve(tmp_path, monkeypatch):
    path = written(tmp_path / "s", [{"x": lanes(np.ones((4, 3)), 1)}])
    for most, drawn in ((12, True), (11, False)):
        monkeypatch.setattr(_curves, "_MOST_LANES", most)
        assert bool(series_curves(path)) is drawn


# -- piece by piece -------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 100])
def test_long_series_are_read_in_pieces(tmp_path, monkeypatch, piece):
    """A remainder counts as every other piece does, with its mask."""
    monkeypatch.setattr(_summarize, "_PIECE", piece)
    values = np.array([4.0, 1.0, 2.0, 8.0, 5.0, 16.0, 3.0])
    mask = np.array([True, True, False, True, True, True, True])
    parts = [{"x": Entries(values[:5], {}, mask[:5])}, {"x": Entries(values[5:], {}, mask[5:])}]
    (found,) = store_summary(written(tmp_path / "s", parts)).series
    trend = found.trend
    assert (trend.least, trend.greatest) == (1.0, 16.0)
    assert trend.means(7) == [4.0, 1.0, None, 8.0, 5.0, 16.0, 3.0]
    assert trend.mean == pytest.approx(37 / 6)


@pytest.mark.parametrize("piece", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("values", "norm"),
    [
        ([3.0, 4.0, 12.0], 13.0),
        ([0.0, 4.0, 3.0], 5.0),
        ([3e200, 4e200, 0.0], 5e200),
        ([3e-200, 0.0, 4e-200], 5e-200),
        (np.array([-128, 0, 96], np.int8), 160.0),
        (np.array([3j, 4.0, 0j]), 5.0),
        ([1.0, np.inf, 2.0], np.inf),
    ],
)
def test_norms_of_large_arrays_are_added_up(tmp_path, monkeypatch, piece, values, norm):
    monkeypatch.setattr(_summarize, "_PIECE", piece)
    path = written(tmp_path / "s", [{"x": Entries(np.asarray(values)[None])}])
    assert store_summary(path).series[0].last.norm == pytest.approx(norm, rel=1e-12)


def test_entries_of_arrays_have_their_own_steps_and_infinities(tmp_path):
    """Of several segments, each with several entries."""
    parts = []
    for start in (0, 3):
        values = np.arange(start, start + 3.0)[:, None] * np.ones(3)
        values[1] = [np.inf, np.nan, 7.0]
        parts.append({"x": Entries(values, {"step": np.arange(start, start + 3) * 10})})
    (found,) = array_histories(written(tmp_path / "s", parts))
    assert [each.steps["step"] for each in found.entries] == [0, 10, 20, 30, 40, 50]
    assert [each.nonfinite for each in found.entries] == [0, 2, 0, 0, 2, 0]
    assert [each.mean for each in found.entries] == [0.0, 7.0, 2.0, 3.0, 7.0, 5.0]
