"""Rows that are made in the memory of the writer."""

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import NanError, SchemaError


class Powers(store.DeferredRows):
    dtype = np.dtype(np.float32)

    def __init__(self, numbers, size=5):
        self.numbers = np.asarray(numbers, np.float32)
        self.shape = (len(self.numbers), size)

    def into(self, out):
        assert out.shape == self.shape
        np.power(self.numbers[:, None], np.arange(self.shape[1], dtype=np.float32), out=out)

    def __getitem__(self, rows):
        return Powers(self.numbers[rows], self.shape[1])


@pytest.mark.parametrize("segment_bytes", [1, 60, 1 << 20])
def test_they_are_as_arrays_are(tmp_path, segment_bytes):
    with store.create(tmp_path / "s", duplicates="first", segment_bytes=segment_bytes) as writer:
        assert writer.append([3, 1, 2], {"x": Powers([3, 1, 2]), "y": np.arange(3)}) == 3
        assert writer.append([4, 1, 5], {"x": Powers([4, 9, 5]), "y": np.arange(3)}) == 2
        assert writer.append([6], {"x": np.asarray(Powers([6])), "y": np.arange(1)}) == 1
    with store.open(tmp_path / "s") as reader:
        rows = reader.gather([1, 2, 3, 4, 5, 6])
    assert np.array_equal(rows["x"], np.arange(1, 7)[:, None] ** np.arange(5))
    assert rows["y"].tolist() == [1, 2, 0, 0, 2, 0]


def test_they_are_checked_as_arrays_are(tmp_path):
    with store.create(tmp_path / "s", nan="error") as writer:
        writer.append([1], {"x": Powers([1])})
        with pytest.raises(SchemaError, match=r"\[5\].*\[4\]"):
            writer.append([2], {"x": Powers([2], size=4)})
        with pytest.raises(SchemaError, match="2 ids"):
            writer.append([2, 3], {"x": Powers([2])})
        with pytest.raises(NanError):
            writer.append([2], {"x": Powers([np.nan])})


@pytest.mark.parametrize(
    ("old", "new"), [("Unmade", "DeferredRows"), ("Block", "RowBlock"), ("Report", "VerifyReport")]
)
def test_old_names_are_deprecated(old, new):
    with pytest.warns(DeprecationWarning, match=f"is called sawlog.store.{new}"):
        assert getattr(store, old) is getattr(store, new)
    with pytest.raises(AttributeError, match="Unread"):
        _ = store.Unread
