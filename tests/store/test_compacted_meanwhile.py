"""Segments that a compaction removes between two steps of another process are no damage."""

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import DamagedStoreError, DuplicateIdError
from sawlog.store._format._segment import Segment


def rows(ids):
    return {"x": np.asarray(ids, np.int32)}


@pytest.fixture
def path(tmp_path):
    """A store of three small segments."""
    path = tmp_path / "store"
    with store.create(path, interval=None, merge=False) as writer:
        for number in range(3):
            writer.append([number], rows([number]))
            writer.flush()
    return path


def test_a_writer_that_did_not_read_ids_yet(path):
    with store.open(path, "append", interval=None) as writer:
        store.compact(path, grace=0)
        with pytest.raises(DuplicateIdError):
            writer.append([1, 7], rows([1, 7]))
        assert writer.append([7], rows([7])) == 1
    assert store.open(path).ids().tolist() == [0, 1, 2, 7]


def test_a_writer_that_is_asked_what_is_missing(path, monkeypatch):
    """The compaction comes after ``missing`` has listed the folder."""
    values, turns = Segment.values, iter([True])

    def compacted_first(self, *args):
        if next(turns, False):
            store.compact(path, grace=0)
        return values(self, *args)

    with store.open(path, "append", interval=None) as writer:
        monkeypatch.setattr(Segment, "values", compacted_first)
        assert writer.missing([9, 2, 0], "x").tolist() == [9]


def test_a_segment_that_was_removed_by_hand_stays_an_error(path):
    with store.open(path, "append", interval=None) as writer:
        sorted((path / "segments").iterdir())[1].unlink()
        with pytest.raises(DamagedStoreError, match="missing"):
            writer.append([7], rows([7]))


@pytest.mark.parametrize("ask", ["skip", "verify"])
def test_a_reader_that_checks_every_byte(path, monkeypatch, ask):
    faults, turns = Segment.faults, iter([False, False, True])  # before the last of the three

    def compacted_first(self):
        if next(turns, False):
            store.compact(path, grace=0)
        return faults(self)

    monkeypatch.setattr(Segment, "faults", compacted_first)
    if ask == "verify":
        report = store.verify(path)
        assert report.ok
        assert report.readable["x"] == 3
        return
    reader = store.open(path, damaged="skip")
    assert not reader.problems
    assert reader.ids().tolist() == [0, 1, 2]
