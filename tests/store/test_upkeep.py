"""Small segments are merged as they come, beside whoever writes, reads and compacts."""

import math
import os
import shutil
import signal
import threading
import time

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import StoreWriteError
from sawlog.store._format._layout import Folder, identity_of
from sawlog.store._maintenance import _replacements
from sawlog.store._maintenance._merge_small import FAN, SmallSegmentMerger
from sawlog.store._maintenance._replacements import exclusive_lease, retire

from .numbers import expected, write_numbers
from .plain_reader import PlainStore


def folder_of(path):
    return Folder(path)


def upkeep_of(path, **options):
    folder = Folder(path)
    return SmallSegmentMerger(folder, identity_of(folder), **options)


def check(path, count):
    truth = expected(np.arange(count))
    plain = PlainStore(path)
    assert plain.missing == []
    assert plain.ids("grad") == truth.numbers.tolist()
    assert plain.ids("text") == truth.texts
    assert plain.series("loss")[0].tolist() == truth.columns["loss"].tolist()
    with store.open(path) as reader:
        assert reader.ids("grad").tolist() == truth.numbers.tolist()
        assert reader.read("loss").tolist() == truth.columns["loss"].tolist()
        assert reader.gather(truth.texts, ["text"])["text"].tolist() == list(truth.columns["text"])
        return len(reader.segments)


def test_the_number_of_segments_stays_small(tmp_path):
    path, most = tmp_path / "store", 0
    with store.create(path, interval=None, merge=False) as writer:
        upkeep = upkeep_of(path)
        for number in range(300):
            write_numbers(writer, [number])
            writer.flush()
            upkeep.published(1000)
            most = max(most, len(os.listdir(path / "segments")))
    assert most <= FAN * (1 + math.ceil(math.log(300, FAN)))
    assert check(path, 300) <= most
    assert store.verify(path).ok
    assert [r for s in PlainStore(path).segments for r in s.description.get("replaces", {})]
    store.compact(path, grace=0)
    assert check(path, 300) == 1
    assert list((path / "replaced").iterdir()) == []


def test_several_writers_and_a_compaction(tmp_path):
    """All of them merge, and nothing is doubled, lost or out of order."""
    path = tmp_path / "store"
    store.create(path, interval=None, merge=False).close()
    failures = []

    def write(number):
        try:
            with store.open(path, "append", interval=None, merge=False) as writer:
                upkeep = upkeep_of(path)
                for turn in range(60):
                    writer.log({f"s{number}": turn}, step=turn)
                    writer.append([1000 * number + turn], {"x": np.array([turn])})
                    writer.flush()
                    upkeep.published(1000)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    reader = store.open(path)
    while any(thread.is_alive() for thread in threads):
        reader.refresh()
        for name in set(reader.names) - {"x"}:
            values = reader.read(name).tolist()
            assert values == list(range(len(values)))
        store.compact(path)
    assert failures == []
    with store.open(path) as reader:
        for number in range(3):
            assert reader.read(f"s{number}").tolist() == list(range(60))
        assert sorted(reader.ids("x")) == sorted(1000 * n + t for n in range(3) for t in range(60))
        assert len(reader.segments) < 3 * FAN
    assert store.verify(path).ok


def test_an_open_reader_goes_on(tmp_path):
    """What it has not read yet was merged away, and is kept for it."""
    path = tmp_path / "store"
    with store.create(path, interval=None, merge=False) as writer:
        for number in range(FAN):
            write_numbers(writer, [number])
            writer.flush()
        reader = store.open(path)
        assert upkeep_of(path).merge() == FAN
        assert len(os.listdir(path / "segments")) == 1
        assert reader.read("loss").tolist() == expected(np.arange(FAN)).columns["loss"].tolist()


@pytest.mark.parametrize("policy", ["first", "replace"])
def test_which_row_counts_stays_the_same(tmp_path, policy):
    path = tmp_path / "store"
    with store.create(path, duplicates=policy, interval=None, merge=False) as writer:
        for number in range(2 * FAN):
            writer.append([number % 5, 100 + number], {"x": np.array([number, number])})
            writer.flush()
        before = {i: PlainStore(path).rows("x")[i] for i in PlainStore(path).rows("x")}
        assert upkeep_of(path).merge() == 2 * FAN
    assert PlainStore(path).rows("x") == before
    with store.open(path) as reader:
        assert {int(i): int(x) for i, x in zip(reader.ids(), reader.read("x"), strict=True)} == {
            int(i): int(x) for i, x in before.items()
        }


def test_nothing_is_merged_while_another_has_the_lease(tmp_path):
    path = tmp_path / "store"
    with store.create(path, interval=None, merge=False) as writer:
        for number in range(FAN):
            write_numbers(writer, [number])
            writer.flush()
    with exclusive_lease(folder_of(path)):
        assert upkeep_of(path).merge() == 0
    assert upkeep_of(path).merge() == FAN


def test_writers_that_are_killed_again_and_again(tmp_path):
    """Each leaves two segments, too few to merge: whoever starts when enough are there does it."""
    path = tmp_path / "store"
    store.create(path).close()
    most, runs = 0, FAN
    for number in range(runs):
        writer = store.open(path, "append", interval=None)
        found = len(store.open(path).segments)
        for part in (0, 1):
            write_numbers(writer, [2 * number + part])
            writer.flush()
        deadline = time.monotonic() + 120
        while found >= FAN and len(store.open(path).segments) >= FAN:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        writer.abort()
        most = max(most, found)
    assert most >= FAN  # it was due at least once
    assert check(path, 2 * runs) <= FAN + 1  # of twice as many


def test_a_second_compaction_gives_up(tmp_path, monkeypatch):
    path = tmp_path / "store"
    store.create(path, merge=False).close()
    monkeypatch.setattr(_replacements, "_PATIENCE", 0.1)
    with exclusive_lease(folder_of(path)), pytest.raises(StoreWriteError, match="another process"):
        store.compact(path)


def test_a_damaged_store_is_left_alone(tmp_path):
    """Who writes goes on; who reads is told."""
    path = tmp_path / "store"
    with store.create(path, interval=None, merge=False) as writer:
        for number in range(FAN):
            write_numbers(writer, [number])
            writer.flush()
    sorted((path / "segments").iterdir())[3].write_bytes(b"broken")
    before = sorted(os.listdir(path / "segments"))
    assert upkeep_of(path).merge() == 0
    assert sorted(os.listdir(path / "segments")) == before


# ---- leftovers


def interrupted(path):
    """A compaction that was killed when the merged segment had its name."""
    with store.create(path, interval=None, merge=False) as writer:
        for number in range(4):
            write_numbers(writer, [number])
            writer.flush()
    old = {file.name: file.read_bytes() for file in (path / "segments").iterdir()}
    store.compact(path)
    shutil.rmtree(path / "replaced")
    for name, data in old.items():
        (path / "segments" / name).write_bytes(data)
    return old


@pytest.mark.parametrize("how", ["compact", "upkeep"])
def test_what_a_killed_compaction_left_is_reclaimed(tmp_path, how):
    path = tmp_path / "store"
    old = interrupted(path)
    check(path, 4)
    stale = path / "tmp" / "old.part"
    stale.write_bytes(b"half")
    os.utime(stale, (time.time() - 3600,) * 2)
    (path / "replaced" / "1").mkdir(parents=True)
    (path / "replaced" / "1" / "a-00000001.safetensors").write_bytes(b"retired long ago")
    (path / "replaced" / "1" / "mine.txt").write_bytes(b"whose is this?")
    if how == "compact":
        assert store.compact(path).swept == 1
        assert not stale.exists()
    else:
        upkeep_of(path).merge()
    assert not set(old) & set(os.listdir(path / "segments"))
    assert os.listdir(path / "replaced" / "1") == ["mine.txt"]
    check(path, 4)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("number", range(1, 60, 3))
def test_killed_while_it_merges(tmp_path, number):
    """Before each change to the file system in turn, as a writer that dies in its upkeep."""
    path = tmp_path / "store"
    with store.create(path, interval=None, merge=False) as writer:
        for each in range(FAN):
            write_numbers(writer, [each])
            writer.flush()
    child = os.fork()
    if child == 0:
        from tests.store.crash_writer import die_before

        die_before(number)
        upkeep_of(path).merge()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL
    check(path, FAN)
    assert store.verify(path).ok
    upkeep_of(path).merge()
    assert check(path, FAN) == 1
    assert len(os.listdir(path / "segments")) == 1


def test_retired_segments_are_kept_for_the_time_promised(tmp_path):
    path = tmp_path / "store"
    with store.create(path, interval=None, merge=False) as writer:
        write_numbers(writer, [0])
    with store.open(path) as reader:
        before = time.time()
        retire(folder_of(path), reader.segments)
        (aside,) = (path / "replaced").iterdir()
        assert int(aside.name) >= before
        _replacements.remove_retired(folder_of(path), 3600.0)
        assert aside.exists()
        _replacements.remove_retired(folder_of(path), 0)
        assert not aside.exists()
