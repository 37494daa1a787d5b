"""What a scan reads ahead and releases, in which order and in which thread."""

import mmap
import sys
import threading

import numpy as np
import pytest

from sawlog import store
from sawlog.store._disk._page_advice import populate, release
from sawlog.store._format._segment import Segment

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems may refuse advice")


@LINUX
def test_pages_are_populated_and_released(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * (3 * mmap.PAGESIZE + 1))
    with (tmp_path / "file").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    for advise in (populate, release, populate):
        assert advise(mapped, 1, mmap.PAGESIZE + 1)
        assert advise(mapped, 0, len(mapped))
        assert mapped[:] == b"x" * len(mapped)


def test_there_is_nothing_to_advise_about_bytes_that_are_not_there():
    mapped = mmap.mmap(-1, mmap.PAGESIZE)
    for advise in (populate, release):
        assert not advise(mapped, mmap.PAGESIZE, 2 * mmap.PAGESIZE)
        assert not advise(mapped, 5, 5)


@pytest.mark.parametrize("again", [False, True], ids=["to be checked", "checked before"])
def test_blocks_are_fetched_in_a_thread_and_released_in_order(tmp_path, monkeypatch, again):
    path = tmp_path / "store"
    with store.create(path, segment_bytes=200_000, merge=False) as writer:
        ids = np.arange(96)
        writer.append(ids, {"x": np.repeat(ids[:, None], 1000, axis=1)})
    reader = store.open(path)
    if again:
        for _ in reader.blocks(budget=100_000):
            pass
    events = []

    def recorded(what):
        call = getattr(Segment, what)

        def record(segment, names, start, stop):
            events.append((what, segment.name, start, threading.get_ident()))
            call(segment, names, start, stop)

        return record

    for what in ("fetch", "release"):
        monkeypatch.setattr(Segment, what, recorded(what))
    seen = []
    for block in reader.blocks(budget=100_000):
        events.append(("yield", None, len(seen), 0))
        seen += [block.ids]
        assert (block.values["x"] == block.ids[:, None]).all()
    assert np.concatenate(seen).tolist() == list(range(96))
    fetched = [event[1:3] for event in events if event[0] == "fetch"]
    released = [event[1:3] for event in events if event[0] == "release"]
    assert fetched == released
    assert len(fetched) == len(set(fetched)) == len(seen) > 6
    assert {e[3] for e in events if e[0] == "fetch"}.isdisjoint({threading.get_ident()})
    order = {event[:3]: at for at, event in enumerate(events)}
    for number, (gone, new) in enumerate(zip(fetched, fetched[2:], strict=False)):
        assert order["yield", None, number] < order["release", *gone] < order["fetch", *new]


def test_small_files_that_were_checked_need_no_thread(tmp_path, monkeypatch):
    path = tmp_path / "store"
    with store.create(path, interval=None) as writer:
        writer.append([1, 2], {"x": np.array([3, 4])})
    reader = store.open(path)
    reader.read("x")
    monkeypatch.setattr(Segment, "fetch", None)
    assert [block.values["x"].tolist() for block in reader.blocks()] == [[3, 4]]
