"""What stores and runs contain, as plain data: what the command line shows, without it."""

import contextlib
import dataclasses
import json
import os
from types import SimpleNamespace

import numpy as np
import pytest

import sawlog
import sawlog.inspect
from sawlog.errors import ArgumentError, DamagedStoreError, StoreNotFoundError, UnknownNameError
from sawlog.inspect import (
    _coverage,
    find_runs,
    find_stores,
    row_store,
    row_stores,
    store_overview,
    store_summary,
)
from sawlog.inspect._coverage import coverage_of
from sawlog.inspect._run_summary import _worst, run_summary
from sawlog.inspect._values import jsonable
from tests.cli.stores import change_value, cut, make_run, segments


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


def test_a_summary_is_plain_data(run):
    summary = store_summary(run)
    assert (summary.path, summary.state, summary.names, summary.segments) == (run, "closed", 4, 3)
    assert summary.nbytes == sum(file.stat().st_size for file in segments(run))
    loss, hidden = sorted(summary.series, key=lambda series: series.name, reverse=True)
    assert (loss.name, loss.type, loss.entries, loss.axes) == ("loss", "float32", 30, ("step",))
    assert (loss.last.value, loss.last.steps) == (29.0, {"step": 29})
    assert (loss.trend.least, loss.trend.greatest, loss.trend.nans) == (0.0, 29.0, 1)
    assert (hidden.type, hidden.last.norm, hidden.trend) == ("float32[4]", 58.0, None)
    (table,) = summary.tables
    assert (table.ids, table.stored, table.distinct, table.last_id) == ("int", 7, 7, 16)
    with pytest.raises(dataclasses.FrozenInstanceError):
        summary.names = 5
    text = json.dumps(jsonable(summary.to_json()), allow_nan=False)
    assert json.loads(text)["series"][0]["entries"] == 30


def test_it_is_what_the_command_line_prints(run, capsys):
    from sawlog.cli import main

    assert main(["show", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == jsonable(store_summary(run).to_json())
    assert main(["ls", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [store_overview(run).to_json()]


def test_some_names(run):
    summary = store_summary(run, ["l*", "grad"], limit=2)
    found = [column.name for table in summary.tables for column in table.columns]
    found += [series.name for series in summary.series]
    assert (found, summary.left_out) == (["grad", "loss"], 1)  # the first two of the schema
    with pytest.raises(UnknownNameError, match="'loss'"):
        store_summary(run, ["los"])


def test_an_open_reader_stays_open(run):
    with sawlog.store.open(run) as reader:
        found, expected = store_summary(reader), store_summary(run)
        assert jsonable(found.to_json()) == jsonable(expected.to_json())
        assert reader.gather([10])["label"].tolist() == [0]


def test_damage(run):
    change_value(segments(run)[2], "grad")
    (table,) = store_summary(run).tables
    assert [column.damage is None for column in table.columns] == [False, True]
    assert store_summary(run).state == "damaged"
    cut(segments(run)[0])
    with pytest.raises(DamagedStoreError):
        store_summary(run)
    assert segments(run)[0].name in str(store_summary(run, damaged="skip").problems)
    overview = store_overview(run)
    assert (overview.state, overview.rows) == ("damaged", None)
    assert segments(run)[0].name in overview.problem


def test_finding_stores(tmp_path):
    for name in ("b", "a/deep"):
        make_run(tmp_path / name)
    (tmp_path / "other").mkdir()
    assert sorted(find_stores(tmp_path)) == [tmp_path / "a" / "deep", tmp_path / "b"]
    assert store_overview(tmp_path / "other") is None
    assert store_overview(tmp_path / "b").entries == 60


def test_stores_of_a_run(tmp_path):
    with pytest.raises(StoreNotFoundError, match="no run and no store"):
        row_stores(tmp_path)
    grads, forward = (make_run(tmp_path / "logs" / name) for name in ("grad", "forward"))
    assert row_stores(tmp_path) == row_stores(tmp_path / "logs") == [forward, grads]
    assert row_store(grads) == grads
    with pytest.raises(ArgumentError, match="several kinds: forward, grad"):
        row_store(tmp_path)


def test_everything_public_is_listed_and_needs_no_display():
    for name in sawlog.inspect.__all__:
        assert getattr(sawlog.inspect, name).__doc__
    values = store_summary.__annotations__
    assert values["return"] == "StoreSummary"
    assert np.array_equal(
        sawlog.inspect.Trend(None, None, 0, 0, np.zeros((3, 2))).means(2), [None] * 2
    )


@pytest.mark.parametrize(("dtype", "nbytes"), [("float32", 64), ("bfloat16", 32), ("int8", 20)])
def test_what_a_run_watches(tmp_path, dtype, nbytes):
    """A layer counts with all of its parameters, and with what is stored of them."""
    block = {"name": "fc.weight", "parameters": ["fc.weight", "fc.bias"], "inputs": "right"}
    block |= {"shape": [6, 10], "ranks": [4, 4]}
    said = {"blocks": [block], "options": {"dtype": dtype}, "parameters": 240}
    said["skipped"] = [["head.weight", "not selected"]]
    (tmp_path / "run.json").write_text(json.dumps(said))
    found = coverage_of(tmp_path)
    assert (found.watched, found.parameters, found.share) == (60, 240, 0.25)
    assert found.skipped == (("head.weight", "not selected"),)
    assert found.to_json()["layers"] == [
        {
            "name": "fc.weight",
            "parameters": 60,
            "shape": [6, 10],
            "stored": [4, 4],
            "bytes": nbytes,
        }
    ]


def test_an_overview_in_json(run):
    found = store_overview(run)
    said = found.to_json()
    fields = [field.name for field in dataclasses.fields(found)]
    assert {*said} == {*fields} - {"nbytes"} | {"bytes"}
    assert (said["bytes"], said["path"]) == (found.nbytes, str(run))


def test_a_run_is_in_the_most_serious_state_of_its_stores():
    serious = ["damaged", "failed", "writing", "unfinished", "newer", "unreadable", "closed"]
    for place, state in enumerate(serious):
        assert _worst([*serious[:place:-1], state, "empty"]) == state
    assert _worst(["empty", "empty"]) == _worst([]) == "empty"


def test_a_run_was_written_when_its_last_store_was(tmp_path):
    for part, when in (("logs/whole", 3e8), ("metrics", 5e8), ("scores/asked", 4e8)):
        with sawlog.store.create(tmp_path / part) as writer:
            writer.log({"x": 1.0}, step=0)
        for report in (tmp_path / part / "writers").iterdir():
            os.utime(report, (when, when))
    found = run_summary(tmp_path)
    assert (found.written, found.to_json()["written"]) == (5e8, "1985-11-05T00:53:20+00:00")
    assert [*found.stores] == ["metrics", "logs/whole", "scores/asked"]


def test_weights_of_stores_that_can_be_read(tmp_path, monkeypatch):
    """One that cannot be opened hides none of the others."""
    monkeypatch.setattr(_coverage, "stores_under", lambda folder: list("abcd"))
    weights = {"b": ["1", "2"], "d": ["2", "3"]}

    def opened(path):
        if path not in weights:
            raise DamagedStoreError("cut")
        return contextlib.nullcontext(weights[path])

    monkeypatch.setattr(_coverage.sawlog.store, "open", opened)
    monkeypatch.setattr(
        _coverage, "noted", lambda own: [SimpleNamespace(weights=each) for each in own]
    )
    assert _coverage._weights(tmp_path) == ["1", "2", "3"]


def test_runs_are_in_natural_order_and_parts_are_none(tmp_path):
    for name in ("seed-10", "seed-9", "b/seed-1"):
        sawlog.store.create(tmp_path / name).close()
    for part in ("scores", "curvature", "examples"):
        sawlog.store.create(tmp_path / f"a-{part}", meta={part: 1}).close()
    sawlog.store.create(tmp_path / "run" / "metrics").close()
    sawlog.store.create(tmp_path / "run" / "logs" / "whole-float32").close()
    found = [path.relative_to(tmp_path).as_posix() for path in find_runs(tmp_path)]
    assert found == ["b/seed-1", "run", "seed-9", "seed-10"]
