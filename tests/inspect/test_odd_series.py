"""Summaries of series with masks, several segments, infinities, large integers, and ids again."""

import json
import math
import os
import time

import numpy as np
import pytest

import sawlog.store
from sawlog.inspect import _activity, array_histories, store_summary
from sawlog.inspect._activity import writer_activity
from sawlog.inspect._trend import TrendBuilder
from sawlog.records import Entries, Records
from sawlog.store._disk._local import _File
from sawlog.store._format import _writer_notes


def summary_of(path, *parts):
    """Write each of the parts as a segment of its own, and summarize the series."""
    with sawlog.store.create(path, interval=None) as writer:
        for part in parts:
            writer.write(Records(part))
            writer.flush()
    return {series.name: series for series in store_summary(path).series}


def test_the_last_entry_is_the_last_that_was_logged(tmp_path):
    steps = {"step": np.arange(4)}
    masked = Entries(np.arange(4.0), steps, np.array([True, False, True, False]))
    nothing = Entries(np.full(2, 9.0), {"step": np.array([8, 9])}, np.zeros(2, bool))
    x = summary_of(tmp_path / "s", {"x": masked}, {"x": nothing})["x"]
    assert (x.last.value, x.last.steps) == (2.0, {"step": 2})
    assert (x.trend.least, x.trend.greatest, x.trend.mean) == (0.0, 2.0, 1.0)


def test_the_norm_is_that_of_what_was_logged(tmp_path):
    values = np.array([[1.0, 1.0], [3.0, 400.0]])
    lanes = Entries(values, mask=np.array([[True, True], [True, False]]))
    found = summary_of(
        tmp_path / "s",
        {
            "lanes": lanes,
            "infinite": Entries(np.array([[1.0, np.inf]])),
            "nan": Entries(np.array([[1.0, np.nan]])),
            "zero": Entries(np.zeros((1, 3))),
            "huge": Entries(np.array([[3e200, 4e200]])),
            "complex": Entries(np.array([[3.0, 4.0j]])),
        },
    )
    assert found["lanes"].last.norm == 3.0
    assert found["infinite"].last.norm == math.inf
    assert math.isnan(found["nan"].last.norm)
    assert found["zero"].last.norm == 0.0
    assert found["huge"].last.norm == pytest.approx(5e200)
    assert found["complex"].last.norm == pytest.approx(5.0)


def test_the_trend_goes_through_all_segments(tmp_path):
    parts = [{"x": Entries(np.full(3, float(i)))} for i in (5, 1, 3)]
    trend = summary_of(tmp_path / "s", *parts)["x"].trend
    assert trend.means(3) == [5.0, 1.0, 3.0]
    assert trend.mean == 3.0


def test_masked_values_leave_their_places_empty():
    builder = TrendBuilder(4)
    builder.add(np.array([7.0, 7.0, 1.0, 3.0]), 0, np.array([False, False, True, True]))
    assert builder.trend().means(4) == [None, None, 1.0, 3.0]


def test_what_is_not_finite_is_counted_by_kind():
    builder = TrendBuilder(6)
    builder.add(np.array([np.nan, np.inf, 2.0]), 0)
    builder.add(np.array([-np.inf, np.nan, np.inf]), 3)
    trend = builder.trend()
    assert (trend.nans, trend.infinities, trend.least, trend.greatest) == (2, 3, 2.0, 2.0)


def test_large_integers_are_exact():
    builder = TrendBuilder(2)
    builder.add(np.array([2**53 + 1, 2**60 + 1]), 0)
    trend = builder.trend()
    assert (trend.least, trend.greatest) == (2**53 + 1, 2**60 + 1)


@pytest.mark.parametrize(("policy", "norm"), [("first", 1.0), ("replace", 4.0)])
def test_the_last_row_of_an_id_that_was_written_before(tmp_path, policy, norm):
    """Two writers that do not know of each other write the same id."""
    path = tmp_path / "s"
    one, two = (sawlog.store.create(path, exists="append", duplicates=policy) for _ in range(2))
    for writer, ids, rows in [
        (one, [7, 8], [[1.0], [2.0]]),
        (two, [5], [[5.0]]),
        (two, [9, 7], [[2.0], [4.0]]),  # the second segment of its writer, so it is the last
    ]:
        writer.append(ids, {"x": np.array(rows)})
        writer.flush()
    one.close()
    two.close()
    (table,) = store_summary(path).tables
    assert (table.stored, table.distinct, table.last_id) == (5, 4, 7)
    assert table.columns[0].last.norm == norm


def test_arrays_of_one_value_have_bins(tmp_path):
    with sawlog.store.create(tmp_path / "s") as writer:
        writer.write(Records({"x": Entries(np.full((2, 5), 3.0))}))
    (history,) = array_histories(tmp_path / "s")
    assert (np.diff(history.edges) > 0).all()
    assert [sum(entry.counts) for entry in history.entries] == [5, 5]
    assert history.edges[0] == 3.0


def test_a_writer_elsewhere_that_is_silent_for_long_is_not_finished(tmp_path, monkeypatch):
    path = tmp_path / "s"
    monkeypatch.setattr(_writer_notes, "system_id", lambda: "another machine")
    writer = sawlog.store.create(path, interval=None)
    writer.log({"x": 1.0}, step=0)
    writer.flush()
    monkeypatch.undo()
    monkeypatch.setattr(_File, "held", lambda file: False)  # its locks are not seen from here
    assert writer_activity(path).state == "writing"
    later = time.time() + 601
    monkeypatch.setattr(_activity.time, "time", lambda: later)
    assert writer_activity(path).state == "unfinished"
    writer.close()
    assert writer_activity(path).state == "closed"


@pytest.mark.parametrize(
    ("ended", "state"),
    [
        ({"a": (1, "open"), "b": (2, "closed")}, "writing"),  # one of two goes on
        ({"a": (1, "failed"), "b": (2, "open")}, "writing"),
        ({"a": (1, "failed"), "b": (2, "closed")}, "closed"),
        ({"a": (2, "failed"), "b": (1, "closed")}, "failed"),
        ({"a": (-700, "open"), "b": (2, "closed")}, "closed"),  # it was killed long ago
        ({"a": (-500, "open"), "b": (2, "failed")}, "writing"),
        ({"a": (-700, "open"), "b": (-800, "closed")}, "unfinished"),
    ],
)
def test_what_several_writers_did_last(tmp_path, monkeypatch, ended, state):
    sawlog.store.create(tmp_path / "s").close()
    writers = tmp_path / "s" / "writers"
    for file in writers.iterdir():
        file.unlink()
    now = 2e9
    monkeypatch.setattr(_activity.time, "time", lambda: now + 10)
    for name, (when, how) in ended.items():
        said = {"published": 0, "closed": how != "open"}
        said |= {"failed": True, "error": "E: x"} if how == "failed" else {}
        (writers / f"{name}.json").write_text(json.dumps(said))
        os.utime(writers / f"{name}.json", (now + when, now + when))
    found = writer_activity(tmp_path / "s")
    last = max(when for when, _ in ended.values())
    assert (found.state, found.written) == (state, now + last)
    assert found.error == ("E: x" if state == "failed" else None)
