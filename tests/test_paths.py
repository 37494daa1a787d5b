"""Paths are made absolute once: a program that goes elsewhere, as Hydra does, loses nothing."""

import os

import numpy as np
import pytest

from sawlog import sinks, store
from sawlog.errors import ArgumentError
from sawlog.records import Entries, Records

ONE = Records({"loss": Entries(np.array([0.5]), {"step": np.array([1])})})


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere"


def test_writers_and_readers(tmp_path, elsewhere):
    writer = store.create("s", segment_bytes=100)
    writer.append([1], {"x": np.ones(1)})
    os.chdir(elsewhere)
    writer.append([2, 3], {"x": np.ones(2)})
    writer.close()
    assert writer.path == tmp_path / "s"
    os.chdir(tmp_path)
    reader = store.open("./s/")
    os.chdir(elsewhere)
    assert reader.ids().tolist() == [1, 2, 3]
    with store.open(tmp_path / "s", "append") as writer:
        writer.append([4], {"x": np.ones(1)})
    reader.refresh()
    assert reader.ids().tolist() == [1, 2, 3, 4]
    assert reader.gather([4])["x"].tolist() == [1.0]
    assert os.listdir(elsewhere) == []


@pytest.mark.parametrize("path", ["s", "./s", "../s"])
def test_a_directory_that_was_removed(tmp_path, elsewhere, path):
    store.create(tmp_path / "there").close()
    os.chdir(elsewhere)
    elsewhere.rmdir()
    for ask in (store.create, store.open, store.verify, sinks.CsvSink, sinks.StoreSink):
        with pytest.raises(ArgumentError, match="the current directory was removed"):
            ask(path)
    assert store.open(tmp_path / "there").names == ()


@pytest.mark.parametrize(
    "make",
    [
        lambda: sinks.StoreSink("out"),
        lambda: sinks.CsvSink("out"),
        lambda: sinks.JsonlSink("out"),
    ],
)
def test_sinks(tmp_path, elsewhere, make):
    sink = make()
    os.chdir(elsewhere)
    sink.write(ONE)
    more = {"loss": ONE["loss"], "other": ONE["loss"]}  # a CSV file gets a column, and is rewritten
    sink.write(Records(more))
    sink.close()
    assert sink.path == tmp_path / "out"
    assert os.listdir(elsewhere) == []
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "out"]


def test_loggers_and_runs(tmp_path, elsewhere):
    import sawlog
    from sawlog.loggers import CsvLogger, SaveLogger

    kept = [SaveLogger("a"), CsvLogger("b"), sawlog.init("c", root="runs")]
    os.chdir(elsewhere)
    assert [str(each.path) for each in kept] == [
        str(tmp_path / "a"),
        str(tmp_path / "b"),
        str(tmp_path / "runs" / "c"),
    ]
