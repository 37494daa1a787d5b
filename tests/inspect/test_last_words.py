"""What stopped a program that failed is stored with its run, and said where runs are shown."""

import json

import pytest

import sawlog
import sawlog.store
from sawlog.inspect import store_overview, store_summary
from sawlog.report._source import PageSource
from sawlog.sinks import Async, Every, StoreSink
from tests.left_out import LEFT_OUT


class Stopped(Exception):
    pass


def writer(path):
    return sawlog.store.create(path)


def sink(path):
    return Async(Every(StoreSink(path), 2))


def run(path):
    return sawlog.init(path.name, root=path.parent)


def logger(path):
    from sawlog.loggers import SaveLogger

    opened = SaveLogger(path.parent)
    opened.log(opened.init(0, name=path.name), {"x": 1.0})
    return opened


def told(folder):
    (store,) = sawlog.inspect.find_stores(folder)
    return store, store_overview(store).error


@pytest.mark.parametrize("make", [writer, sink, run, logger])
def test_the_error_of_a_block_is_kept(make, tmp_path):
    if make is logger and "jax" in LEFT_OUT:
        pytest.skip("jax is left out")
    opened = make(tmp_path / "own")
    if make is run:
        opened.log({"x": 1.0}, step=0)
    with pytest.raises(Stopped), opened:
        raise Stopped("loss is NaN: <b>7</b>")
    store, error = told(tmp_path)
    assert error == "Stopped: loss is NaN: <b>7</b>"
    assert store_summary(store).to_json()["error"] == error
    index = PageSource([tmp_path]).part("index")
    assert [each["error"] for each in index["runs"]] == [error]


def test_errors_that_are_given_long_or_without_text(tmp_path):
    for name, error, expected in (
        ("given", OSError("full"), "OSError: full"),
        ("long", ValueError("x" * 5000), "ValueError: " + "x" * 988),
        ("bare", KeyboardInterrupt(), "KeyboardInterrupt"),
        ("none", None, None),
    ):
        own = sawlog.store.create(tmp_path / name)
        own.fail(error)
        own.close()
        overview = store_overview(tmp_path / name)
        assert (overview.state, overview.error) == ("failed", expected)
    with sawlog.store.create(tmp_path / "fine"):
        pass
    assert store_overview(tmp_path / "fine").error is None


@pytest.mark.parametrize("odd", [7, ["a"], None, {"a": 1}])
def test_what_is_no_text_is_ignored(tmp_path, odd):
    own = sawlog.store.create(tmp_path / "run")
    own.fail(ValueError("seen"))
    own.close()
    (note,) = (tmp_path / "run" / "writers").iterdir()
    said = json.loads(note.read_text())
    note.write_text(json.dumps({**said, "error": odd}))
    overview = store_overview(tmp_path / "run")
    assert (overview.state, overview.error) == ("failed", None)


def test_the_command_shows_it_as_text(tmp_path, capsys):
    from sawlog.cli import main

    own = sawlog.store.create(tmp_path / "run")
    own.fail(ValueError("\x1b[31mred"))
    own.close()
    main(["show", str(tmp_path / "run")])
    out = capsys.readouterr().out
    assert "error     ValueError: \\x1b[31mred" in out


def test_the_first_error_is_the_reason(tmp_path):
    writer = sawlog.store.create(tmp_path / "s")
    writer.fail(Stopped("first"))
    writer.fail(ValueError("because of it"))
    writer.fail()
    writer.close()
    assert told(tmp_path)[1] == "Stopped: first"
