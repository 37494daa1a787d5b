"""What a scan reads ahead and releases, in which order and in which thread."""

import functools
import mmap
import sys
import threading

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import ArgumentError
from sawlog.store._disk import SMALL, _local, _page_advice
from sawlog.store._disk._page_advice import MappedPages
from sawlog.store._format._segment import Segment
from sawlog.store._reading import _blocks

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems may refuse advice")


@LINUX
def test_pages_are_populated_and_released(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * (3 * mmap.PAGESIZE + 1))
    with (tmp_path / "file").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    pages = MappedPages(mapped)
    for advise in (pages.populate, pages.release, pages.populate):
        assert advise(1, mmap.PAGESIZE + 1)
        assert advise(0, len(mapped))
        assert mapped[:] == b"x" * len(mapped)


def test_there_is_nothing_to_advise_about_bytes_that_are_not_there():
    pages = MappedPages(mmap.mmap(-1, mmap.PAGESIZE))
    for advise in (pages.populate, pages.release):
        assert not advise(mmap.PAGESIZE, 2 * mmap.PAGESIZE)
        assert not advise(5, 5)


@LINUX
def test_what_is_in_memory_is_told_from_what_is_on_disk(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * (20 * mmap.PAGESIZE))
    with (tmp_path / "file").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    pages = MappedPages(mapped)
    assert pages.is_resident(1, 20 * mmap.PAGESIZE)
    assert not pages.is_resident(5, 5)
    memory = mmap.mmap(-1, 20 * mmap.PAGESIZE)
    fresh = MappedPages(memory)
    assert not fresh.is_resident(0, len(memory))  # no page was used
    memory[0] = 1
    assert fresh.is_resident(0, 1)
    assert not fresh.is_resident(0, mmap.PAGESIZE + 1)


@LINUX
@pytest.mark.parametrize("user", ["owner", "other"])
def test_the_system_does_not_tell_what_is_in_memory_of_the_files_of_others(
    tmp_path, monkeypatch, user
):
    """It says that all of it is, also of what is on disk."""
    file = tmp_path / "file"
    file.write_bytes(b"x" * (2 * SMALL))
    number = file.stat().st_uid + (user == "other")
    monkeypatch.setattr(_page_advice.os, "geteuid", lambda: number)
    asked = []
    monkeypatch.setattr(MappedPages, "_advising", lambda *_: lambda: asked.append(1))
    mapped = _local._File(str(file)).map()
    assert mapped.is_in_memory(0, SMALL) == (user != "other")
    mapped.prefetch(0, SMALL)
    assert asked == [1] * (user == "other")


@pytest.mark.parametrize("again", ["to be checked", "on disk", "in memory"])
def test_blocks_are_fetched_in_a_thread_and_released_in_order(tmp_path, monkeypatch, again):
    """Those that were checked before and are in memory are left to the program."""
    path = tmp_path / "store"
    with store.create(path, segment_bytes=200_000, merge=False) as writer:
        ids = np.arange(96)
        writer.append(ids, {"x": np.repeat(ids[:, None], 1000, axis=1)})
    reader = store.open(path)
    monkeypatch.setattr(Segment, "is_in_memory", lambda *_: again == "in memory")
    if again != "to be checked":
        for _ in reader.blocks(budget=100_000):
            pass
    events = []

    releasing = Segment.releasing
    calls = {"fetch": Segment.fetch, "release": lambda *rows: [call() for call in releasing(*rows)]}

    def recorded(what):
        call = calls[what]

        def record(segment, names, start, stop):
            events.append((what, segment.name, start, threading.get_ident()))
            call(segment, names, start, stop)

        return record

    monkeypatch.setattr(Segment, "fetch", recorded("fetch"))
    released_later = functools.partial(functools.partial, recorded("release"))
    monkeypatch.setattr(Segment, "releasing", lambda *rows: [released_later(*rows)])
    seen = []
    for block in reader.blocks(budget=100_000):
        events.append(("yield", None, len(seen), 0))
        seen += [block.ids]
        assert (block.values["x"] == block.ids[:, None]).all()
    assert np.concatenate(seen).tolist() == list(range(96))
    fetched = [event[1:3] for event in events if event[0] == "fetch"]
    released = [event[1:3] for event in events if event[0] == "release"]
    assert len(released) == len(set(released)) == len(seen) > 6
    assert fetched == ([] if again == "in memory" else released)
    assert threading.get_ident() not in {e[3] for e in events if e[0] == "fetch"}
    order = {event[:3]: at for at, event in enumerate(events)}
    for number, gone in enumerate(released):
        assert order["yield", None, number] < order["release", *gone]
    for gone, new in zip(fetched, fetched[2:], strict=False):
        assert order["release", *gone] < order["fetch", *new]


def test_small_files_that_were_checked_need_no_thread(tmp_path, monkeypatch):
    path = tmp_path / "store"
    with store.create(path, interval=None) as writer:
        writer.append([1, 2], {"x": np.array([3, 4])})
    reader = store.open(path)
    reader.read("x")
    monkeypatch.setattr(_page_advice, "_system_call", None)
    monkeypatch.setattr(_blocks.Executor, "submit", None)
    assert [block.values["x"].tolist() for block in reader.blocks()] == [[3, 4]]


@pytest.mark.parametrize("read_ahead", [False, True])
def test_rows_that_are_read_together_are_yielded_in_blocks(tmp_path, monkeypatch, read_ahead):
    path, ids = tmp_path / "store", np.arange(1000)
    x = np.repeat(ids[:, None], 100, axis=1)
    with store.create(path, segment_bytes=300_000, merge=False) as writer:
        writer.append(ids, {"x": x})
    monkeypatch.setattr(_blocks, "_BLOCK", 13 * x[0].nbytes)
    fetched = []
    fetch = Segment.fetch

    def counted(segment, names, start, stop):
        fetched.append(stop - start)
        fetch(segment, names, start, stop)

    monkeypatch.setattr(Segment, "fetch", counted)
    monkeypatch.setattr(Segment, "is_in_memory", lambda *_: False)
    reader = store.open(path)
    for rows, most in ((None, 13), (7, 7), (1, 1), (10_000, 1000)):
        fetched.clear()
        blocks = list(reader.blocks(rows=rows, read_ahead=read_ahead))
        assert max(map(len, blocks)) <= most
        assert np.concatenate([block.ids for block in blocks]).tolist() == ids.tolist()
        assert all((block.values["x"] == block.ids[:, None]).all() for block in blocks)
        sizes = {len(block) for block in blocks}
        assert most in sizes or most == 1000
        assert sum(fetched) == 1000
        assert len(fetched) < len(blocks) or most == 1000
    small = list(reader.blocks(budget=20 * x[0].nbytes, rows=99))
    assert max(map(len, small)) == 10  # two times as many rows fit into the budget
    with pytest.raises(ArgumentError, match="`rows` must be a positive number of rows, or None"):
        reader.blocks(rows=0)


def test_rows_that_were_replaced_are_left_out_of_every_block(tmp_path, monkeypatch):
    monkeypatch.setattr(_blocks, "_BLOCK", 4 * 8)
    path, new = tmp_path / "store", [4, 5, 6, 7, 9, 18]
    with store.create(path, duplicates="replace", merge=False) as writer:
        writer.append(range(20), {"x": np.arange(20.0)})
        writer.flush()
        writer.append(new, {"x": np.array(new) + 0.5})
    blocks = list(store.open(path, duplicates="replace").blocks())
    ids = [np.asarray(block.ids).tolist() for block in blocks]
    assert ids == [
        [0, 1, 2, 3],
        [],
        [8, 10, 11],
        [12, 13, 14, 15],
        [16, 17, 19],
        [4, 5, 6, 7],
        [9, 18],
    ]
    values = {i: v for b in blocks for i, v in zip(b.ids.tolist(), b.values["x"], strict=True)}
    assert values == {i: i + 0.5 * (i in new) for i in range(20)}
