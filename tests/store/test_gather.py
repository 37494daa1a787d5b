"""Rows are copied some at a time; each is checked."""

import ml_dtypes
import numpy as np
import pytest

from sawlog import store
from sawlog.errors import DamagedStoreError
from sawlog.store._format import _segment, _segment_writer

WIDTH = 1024


@pytest.fixture
def rows_at_once(monkeypatch):
    def few(rows):
        monkeypatch.setattr(_segment, "_COPIED_AT_ONCE", rows * WIDTH * 4)

    return few


@pytest.mark.parametrize("at_once", [0, 1, 3, 7, 100])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, "S3", np.bool_])
def test_rows_in_any_order(tmp_path, rows_at_once, at_once, dtype):
    rows_at_once(at_once)
    random = np.random.default_rng(0)
    values = random.integers(0, 2, (21, WIDTH)).astype(dtype)
    empty = np.zeros((21, 0), np.float32)
    with store.create(tmp_path / "s", interval=None) as writer:
        for part in np.split(np.arange(21), [4, 11]):
            writer.append(part, {"x": values[part], "empty": empty[part]})
            writer.flush()
    wanted = random.integers(0, 21, 50)
    with store.open(tmp_path / "s") as reader:
        found = reader.gather(wanted)
        assert found["x"].tobytes() == values[wanted].tobytes()
        assert found["empty"].shape == (50, 0)
        assert reader.gather([])["x"].shape == (0, WIDTH)


@pytest.mark.parametrize("width", [0, 3, 1 << 18])
@pytest.mark.parametrize("rows", [[-1], [0, 2], [1 << 40]])
def test_a_row_that_is_not_there_is_never_another_one(tmp_path, rows, width):
    with store.create(tmp_path / "s") as writer:
        writer.append([1, 2], {"x": np.ones((2, width), np.float32)})
    with store.open(tmp_path / "s") as reader:
        reader.read("x")
        (segment,) = reader.segments
        out = np.empty((len(rows), width), np.float32)
        with pytest.raises(IndexError, match="2 rows of 'x'"):
            segment.take_into("x", np.array(rows), out, np.arange(len(rows)))


@pytest.mark.parametrize("at_once", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("broken", range(5))
def test_a_changed_row_is_found_wherever_it_is(tmp_path, rows_at_once, at_once, broken):
    rows_at_once(at_once)
    values = np.arange(5 * WIDTH, dtype=np.float32).reshape(5, WIDTH) + np.float32(0.5)
    with store.create(tmp_path / "s", interval=None) as writer:
        writer.append(np.arange(5), {"x": values})
    (file,) = (tmp_path / "s" / "segments").iterdir()
    data = bytearray(file.read_bytes())
    data[data.index(values[broken].tobytes()) + 17] ^= 1
    file.write_bytes(data)
    with store.open(tmp_path / "s") as reader:
        whole = [row for row in (4, 2, 0, 3, 1) if row != broken]
        assert (reader.gather(whole)["x"] == values[whole]).all()
        with pytest.raises(DamagedStoreError, match="changed after"):
            reader.gather([4, 2, 0, 3, 1])


def test_rows_at_odd_places_are_not_copied_all_for_some(tmp_path, monkeypatch):
    """Such files are valid, though this writer makes none. numpy's take copies them whole."""
    monkeypatch.setattr(_segment_writer, "_alignment", lambda dtype: 0)
    values = {"odd": np.array([b"a", b"b", b"c"]), "x": np.array([1, 2, 3], "M8[s]")}
    with store.create(tmp_path / "s", interval=None) as writer:
        writer.append([5, 6, 7], values)

    def aligned(array, *args, take=np.take, **options):
        assert array.flags.aligned
        return take(array, *args, **options)

    monkeypatch.setattr(np, "take", aligned)
    with store.open(tmp_path / "s") as reader:
        (segment,) = reader.segments
        assert not segment.unchecked("x").flags.aligned
        found = reader.gather([7, 5, 7])
        assert found["x"].tolist() == values["x"][[2, 0, 2]].tolist()
        assert found["odd"].tolist() == [b"c", b"a", b"c"]
