"""``sawlog ls``."""

import json
import os
import time

import numpy as np
import pytest

import sawlog.store
from tests.cli.stores import cut, make_run, segments


def listed(done, folder):
    assert done.err == ""
    return {os.path.relpath(store["path"], folder): store for store in done.json}


def test_every_store_under_a_folder(sawlog_, tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "deep" / "er" / "b", steps=5)
    make_run(tmp_path / "a" / "inside")  # the folder of a store is its own business
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "store.json").write_text('{"format": "of somebody else"}')
    done = sawlog_("ls", tmp_path, "--json")
    assert done.code == 0
    found = listed(done, tmp_path)
    assert set(found) == {"a", "deep/er/b"}
    a = found["a"]
    assert a["names"] == 4
    assert a["rows"] == 7
    assert a["entries"] == 60
    assert a["segments"] == 3
    assert a["bytes"] == sum(file.stat().st_size for file in segments(tmp_path / "a"))
    assert a["state"] == "closed"
    assert a["written"].endswith("+00:00")
    assert found["deep/er/b"]["entries"] == 10


def test_a_table_for_people(sawlog_, tmp_path):
    make_run(tmp_path / "a")
    head, row = sawlog_("ls", tmp_path).out.splitlines()
    assert " ".join(head.split()) == "store names rows entries segments size written state"
    assert row.split()[:5] == [str(tmp_path / "a"), "4", "7", "60", "3"]
    assert row.split()[-1] == "closed"


def test_here_is_where_it_looks(sawlog_, tmp_path, monkeypatch):
    make_run(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    assert [store["path"] for store in sawlog_("ls", "--json").json] == ["a"]
    monkeypatch.chdir(tmp_path / "a")
    assert [store["path"] for store in sawlog_("ls", "--json").json] == ["."]


def test_a_store_itself(sawlog_, run):
    assert [store["path"] for store in sawlog_("ls", run, "--json").json] == [str(run)]


def test_no_stores(sawlog_, tmp_path):
    assert sawlog_("ls", tmp_path) == (0, "", f"no stores under {tmp_path}\n")
    assert sawlog_("ls", tmp_path, "--json").json == []


def test_writing_closed_unfinished_empty(sawlog_, tmp_path):
    def state():
        return sawlog_("ls", tmp_path, "--json").json[0]["state"]

    writer = sawlog.store.create(tmp_path / "run")
    assert state() == "writing"  # nothing yet, but a program is there
    writer.log({"loss": 1.0}, step=0)
    writer.flush()
    assert state() == "writing"
    (file,) = (tmp_path / "run" / "writers").iterdir()
    long_ago = time.time() - 3600
    os.utime(file, (long_ago, long_ago))
    assert state() == "writing"  # however slowly
    writer.abort()
    assert state() == "unfinished"
    with sawlog.store.open(tmp_path / "run", "append") as resumed:
        resumed.log({"loss": 1.0}, step=1)
    assert state() == "closed"  # the first writer never said so
    writer.close()
    assert state() == "closed"
    (tmp_path / "run" / "writers").rename(tmp_path / "of-writers")
    (tmp_path / "run" / "segments").rename(tmp_path / "of-segments")
    (tmp_path / "run" / "writers").mkdir()
    (tmp_path / "run" / "segments").mkdir()
    assert state() == "empty"


def test_notes_of_writers_that_cannot_be_read_do_not_matter(sawlog_, run):
    (run / "writers" / "x.json").write_text("{")
    (run / "writers" / "y.json").write_text("[]")
    assert sawlog_("ls", run, "--json").json[0]["state"] == "closed"


@pytest.mark.parametrize("damage", ["cut", "missing", "store", "no store", "schema"])
def test_damage_at_first_sight(sawlog_, tmp_path, damage):
    run = make_run(tmp_path / "bad")
    make_run(tmp_path / "good")
    first = segments(run)[0]
    {
        "cut": lambda: cut(first),
        "missing": first.unlink,
        "store": lambda: cut(run / "store.json"),
        "no store": (run / "store.json").unlink,
        "schema": lambda: cut(run / "schema" / "00000001.json"),
    }[damage]()
    done = sawlog_("ls", tmp_path, "--json")
    assert done.code == 1
    found = listed(done, tmp_path)
    assert {name: store["state"] for name, store in found.items()} == {
        "bad": "damaged",
        "good": "closed",
    }
    assert found["bad"]["problem"]
    assert found["bad"]["rows"] is None
    assert found["bad"]["segments"] in (2, 3)
    assert sawlog_("ls", tmp_path).code == 1


def test_a_newer_store_is_listed(sawlog_, run):
    from sawlog.store._format._json_files import to_json

    said = json.loads((run / "store.json").read_text()) | {"version": 99}
    del said["checksum"]
    (run / "store.json").write_bytes(to_json(said))
    done = sawlog_("ls", run, "--json")
    assert done.code == 0
    assert done.json[0]["state"] == "newer"


def test_values_are_not_read(sawlog_, run):
    """Changed values are for verify to find: ls looks at headers only."""
    from tests.cli.stores import change_value

    change_value(segments(run)[0], "loss")
    assert sawlog_("ls", run, "--json").json[0]["state"] == "closed"


@pytest.mark.parametrize("width", [10, 30, 60, 80, 200])
def test_it_fits(sawlog_, tmp_path, width):
    path = tmp_path / ("long" * 30) / "损失"
    with sawlog.store.create(path) as writer:
        writer.append(range(10), {"x": np.zeros(10)})
    done = sawlog_("ls", tmp_path, width=width)
    from rich.cells import cell_len

    assert max(map(cell_len, done.out.splitlines())) <= width
    assert str(path) in done.out.replace("\n", "").replace(" ", "") or width >= 60
