"""What a merged segment is made of, and ranges against sets."""

import itertools
import time
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog import store
from sawlog.errors import StoreWriteError
from sawlog.records import Entries
from sawlog.store._format._layout import Folder, identity_of
from sawlog.store._format._sequence_ranges import Ranges, joined
from sawlog.store._maintenance import _merge_small, _replacements
from sawlog.store._maintenance._merge_small import FAN, SmallSegmentMerger, due
from tests.thorough import seeded_examples

from .numbers import write_numbers


def folder_of(path):
    return Folder(path)


def upkeep_of(path, **options):
    folder = Folder(path)
    return SmallSegmentMerger(folder, identity_of(folder), **options)


# ---- ranges, against sets


ranges = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 6)), max_size=8).map(
    lambda pairs: [(first, first + more) for first, more in pairs]
)


@seeded_examples(25, 500)
@given(one=ranges, two=ranges, end=st.integers(0, 40))
def test_ranges_are_sets(one, two, end):
    def numbers(pairs):
        return {n for first, last in pairs for n in range(first, last + 1)}

    both = Ranges.union([Ranges({"a": one}), Ranges({"a": two}), Ranges({"b": one})])
    truth = numbers(one) | numbers(two)
    assert {n for n in range(50) if both.has("a", n)} == truth
    assert {n for n in range(50) if both.has("b", n)} == numbers(one)
    assert not both.has("c", 1)
    assert both.last() == {
        **({"a": max(truth)} if truth else {}),
        **({"b": max(numbers(one))} if one else {}),
    }
    missing = [(f, t) for writer, f, t in both.gaps({"a": end}) if writer == "a"]
    assert numbers(missing) == set(range(1, end + 1)) - truth
    kept = joined([*one, *two])
    assert all(later[0] > earlier[1] + 1 for earlier, later in itertools.pairwise(kept))
    assert Ranges.from_json(both.to_json()).to_json() == both.to_json()


def test_what_is_due():
    class Fake:
        def __init__(self, nbytes):
            self.nbytes, self.empty_items = nbytes, 0

    small, large = Fake(1000), Fake(100 << 20)
    assert list(due([small] * (FAN - 1))) == []
    assert next(map(len, due([small] * FAN))) == FAN
    assert list(due([large] * 100)) == []
    broken_up = [*[small] * (FAN - 1), large, *[small] * (FAN - 1)]
    assert list(due(broken_up)) == []
    middle = Fake(200_000)  # of the next size: a few small ones among many of those go along
    mixed = [*[middle] * 10, *[small] * 3, *[middle] * 3]
    assert next(due(mixed)) == mixed


def test_how_often_a_writer_merges(tmp_path, monkeypatch):
    store.create(tmp_path / "store").close()
    upkeep, calls = upkeep_of(tmp_path / "store"), []
    monkeypatch.setattr(upkeep, "merge", lambda: calls.append(1) or 5)
    told = [upkeep.published(1000) for _ in range(2 * FAN)]
    assert told == [*[0] * (FAN - 1), 5] * 2
    assert [upkeep.published(16 << 20) for _ in range(2 * FAN)] == [0] * 2 * FAN
    assert len(calls) == 2


def test_a_lease_that_may_be_of_two_is_not_enough(tmp_path, monkeypatch):
    path = tmp_path / "store"
    with store.create(path, interval=None, merge=False) as writer:
        for number in range(FAN):
            write_numbers(writer, [number])
            writer.flush()
    lease = _merge_small.try_lease

    def unsure(folder):
        return types.SimpleNamespace(certain=False, release=lease(folder).release)

    monkeypatch.setattr(_merge_small, "try_lease", unsure)
    assert upkeep_of(path).merge() == 0
    monkeypatch.undo()
    upkeep = upkeep_of(path)
    with monkeypatch.context() as patch:
        patch.setattr(_merge_small.ReplacementWriter, "merge", Failing)
        assert upkeep.merge() == 0
        assert upkeep._catalog is None  # what it knew may not be true any more
    assert upkeep.merge() == FAN


class Failing:
    def __init__(self, *args):
        raise StoreWriteError("no")


# ---- what a merged segment is made of


def test_masks_of_any_depth_stay_where_they_are(tmp_path):
    path, random = tmp_path / "store", np.random.default_rng(0)
    masks = [None, (3,), None, (1, 2), (2, 2, 4), (1,), None]
    with store.create(path, interval=None, merge=False) as writer:
        for shape in masks:
            mask = None if shape is None else random.random(shape) < 0.5
            count = 2 if shape is None else shape[0]
            values = random.random((count, 2, 4))
            writer.write({"x": Entries(values, {"step": np.arange(count)}, mask)})
            writer.flush()
    before = store.open(path).entries("x")
    store.compact(path)
    with store.open(path) as reader:
        assert len(reader.segments) == 1
        after = reader.entries("x")
    assert after.values.tolist() == before.values.tolist()
    assert after.steps["step"].tolist() == before.steps["step"].tolist()
    assert after.mask.tolist() == before.mask.tolist()


@pytest.mark.parametrize("texts", [False, True])
def test_rows_that_do_not_count_are_dropped(tmp_path, texts):
    """Also of a segment that has no neighbours to be merged with, or is large by itself."""
    path = tmp_path / "store"
    with store.create(path, interval=None, merge=False, duplicates="replace") as writer:
        for start in (0, 3, 2):
            ids = np.arange(start, start + 4)
            writer.append([f"id-{i}" for i in ids] if texts else ids, {"x": ids + 10.0 * start})
            writer.flush()
    with store.open(path) as reader:
        ids, rows = list(reader.ids()), reader.read("x")
        before = reader.nbytes
    store.compact(path, segment_bytes=1, grace=0)
    with store.open(path) as reader:
        assert (list(reader.ids()), reader.read("x").tolist()) == (ids, rows.tolist())
        assert sum(chunk.rows for each in reader.segments for chunk in each.chunks) == len(ids)
        assert reader.nbytes < before


def test_segments_do_not_become_larger_than_asked(tmp_path):
    path = tmp_path / "store"
    with store.create(path, interval=None, merge=False) as writer:
        for number in range(7):
            writer.append([number], {"x": np.full((1, 1000), number, np.float64)})
            writer.flush()
    one = store.open(path).segments[0].nbytes
    store.compact(path, segment_bytes=3 * one)
    with store.open(path) as reader:
        assert [each.chunks[0].rows for each in reader.segments] == [3, 3, 1]
        assert reader.ids().tolist() == list(range(7))


def test_what_was_set_aside_by_a_clock_that_was_wrong_is_removed(tmp_path):
    path = tmp_path / "store"
    with store.create(path) as writer:
        write_numbers(writer, [0])
    now = int(time.time())
    for seconds in (-4000, -100, 3600, 2 * 86400):
        (path / "replaced" / str(now + seconds)).mkdir(parents=True)
    _replacements.remove_retired(folder_of(path), 3600.0)
    left = sorted(int(each.name) - now for each in (path / "replaced").iterdir())
    assert left == [-100, 3600]
