"""What is given to a writer comes back as it was, or is refused with nothing taken."""

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import ArgumentError, NanError, SawlogError, SchemaError
from sawlog.records import Entries, Records
from sawlog.sinks import StoreSink

masked = np.ma.array([1.0, 2.0], mask=[0, 1])
REFUSED_IDS = {
    "a lone surrogate": ["a", "\ud800"],
    "no UTF-8": np.array([b"ab", b"\xff"]),
    "floats": [1.0, 2.0],
    "truth values": [True, 2],
    "an array of truth values": np.array([True, False]),
    "beyond int64": [1, 2**63],
    "far beyond": [1, 2**70],
    "below int64": [1, -(2**63) - 1],
    "both kinds": ["a", 1],
    "nothing": [None, 1],
    "objects": np.array(["a", 1], object),
    "masked": np.ma.array([1, 2], mask=[0, 1]),
    "times": np.array(["2020", "2021"], "M8[Y]"),
    "two axes": [[1], [2]],
    "one": np.int64(1),
    "a string": "ab",
    "bytes": b"ab",
    "a set": {1, 2},
    "a dict": {1: 2, 3: 4},
}


@pytest.mark.parametrize("what", REFUSED_IDS)
def test_ids_that_are_refused(tmp_path, what):
    with store.create(tmp_path / "s") as writer:
        with pytest.raises(SchemaError):
            writer.append(REFUSED_IDS[what], {"x": np.arange(2.0)})
        assert writer.append([5, 6], {"x": np.array([5.0, 6.0])}) == 2
    with store.open(tmp_path / "s") as reader:
        assert reader.ids().tolist() == [5, 6]
        assert reader.gather([6, 5])["x"].tolist() == [6.0, 5.0]


class Text(str):
    def __str__(self):
        return "something else"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["", "a\0", "\0", "a\0b"], ["", "a\0", "\0", "a\0b"]),
        ([Text("q"), np.str_("r")], ["q", "r"]),
        (np.array(["é", "bb"]), ["é", "bb"]),
        (np.array([b"a", b"bb"]), ["a", "bb"]),
        (np.array([3, 4], ">u2"), [3, 4]),
        (np.ma.array([1, 2]), [1, 2]),
        (range(3, 0, -1), [3, 2, 1]),
        ((-(2**63), 2**63 - 1), [-(2**63), 2**63 - 1]),
    ],
)
def test_ids_that_are_kept(tmp_path, given, kept):
    with store.create(tmp_path / "s") as writer:
        writer.append(given, {"x": np.arange(len(kept))})
        assert list(writer.missing(given)) == []
    with store.open(tmp_path / "s") as reader:
        assert list(reader.ids()) == kept
        assert reader.gather(kept[::-1])["x"].tolist() == list(range(len(kept)))[::-1]


REFUSED = {
    "masked": masked,
    "masked, in a list": [np.ma.masked, 1.0],
    "masked, in lists": [[masked], [masked]],
    "a masked field": np.ma.array([(1, 2.0)] * 2, dtype="i4,f8", mask=[(0, 0), (1, 0)]),
    "a NUL at the end": ["ab", "a\0"],
    "a NUL at the end of bytes": [b"ab", b"a\0"],
    "objects": np.array([None, 1], object),
    "ragged": [[1], [1, 2]],
    "no rows": np.float64(1),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("how", ["append", "extend", "write", "log", "steps", "sink"])
def test_values_that_are_refused(tmp_path, what, how):
    if what == "no rows" and how == "log":
        return
    value, good = REFUSED[what], np.arange(2.0)
    sink = StoreSink(tmp_path / "s")
    writer = sink._writer
    calls = {
        "append": lambda: writer.append([1, 2], {"y": good, "x": value}),
        "extend": lambda: writer.extend({"y": good, "x": value}),
        "write": lambda: writer.write({"y": Entries(good), "x": Entries(value)}),
        "log": lambda: writer.log({"y": 1.0, "x": value}),
        "steps": lambda: writer.extend({"y": good}, step=value),
        "sink": lambda: sink.write(Records({"y": Entries(good), "x": Entries(value)})),
    }
    with pytest.raises((SawlogError, TypeError, ValueError, UserWarning)):
        calls[how]()
    sink.close()
    with store.open(tmp_path / "s") as reader:
        assert all(reader.count(name) == 0 for name in reader.names)


@pytest.mark.parametrize(
    "mask", [np.array([2, 0]), np.ones((2, 5), bool), np.ma.array([True, True], mask=[0, 1])]
)
def test_masks_that_are_none(tmp_path, mask):
    with store.create(tmp_path / "s") as writer:
        with pytest.raises(SchemaError, match="mask"):
            writer.write({"x": Entries(np.ones((2, 3)), {}, mask)})
        writer.write({"x": Entries([[1.0] * 3] * 2, {}, [True, False])})
    with store.open(tmp_path / "s") as reader:
        assert reader.entries("x").mask.tolist() == [True, False]


@pytest.mark.parametrize(
    "value",
    [
        np.array([1.0, -0.0]),
        np.arange(16.0).reshape(4, 4)[::2, ::-1],
        np.asfortranarray(np.arange(4.0).reshape(2, 2)),
        np.arange(4.0).reshape(2, 2).view(np.recarray),
        np.rec.array([(1, 2.0), (3, 4.0)]),
        np.broadcast_to(1.5, (2, 3)),
        np.array([1, 2], ">i4"),
        np.array([1 + 2j, 3], ">c16"),
        np.array([(1, 2.0)] * 2, dtype=">i4,>f8"),
        np.array(["ab", "c"], ">U2"),
        np.array([b"a\0b", b"c"]),
        np.array([b"\0\1", b"\2\0"], "V2"),
        np.ma.array([1.0, 2.0]),
        np.zeros((2, 0)),
        [True, False],
    ],
    ids=lambda value: str(np.asarray(value).dtype),
)
def test_values_that_are_kept(tmp_path, value):
    with store.create(tmp_path / "s", nan="error") as writer:
        writer.append([1, 2], {"x": value})
        writer.extend({"y": value}, step=[1, 2])
    with store.open(tmp_path / "s") as reader:
        plain = np.asarray(value)
        little = plain.astype(plain.dtype.newbyteorder("<"))
        for found in (reader.read("x"), reader.read("y")):
            assert found.dtype == little.dtype
            assert found.shape == plain.shape
            assert found.tobytes() == little.tobytes()


@pytest.mark.parametrize(
    "value",
    [
        np.array(["2020", "NaT"], "M8[s]"),
        np.array([1, "NaT"], "m8[s]"),
        np.array([(1, 1.0), (2, np.nan)], dtype="i4,f8"),
        np.array([([1, 2],), ([3, np.nan],)], dtype=[("a", "f4", 2)]),
        np.array([0, np.nan], np.clongdouble),
        np.array([0, np.nan], np.float16),
    ],
    ids=lambda value: str(value.dtype),
)
def test_no_number_and_no_time(tmp_path, value):
    with store.create(tmp_path / "s", nan="error") as writer:
        with pytest.raises(NanError, match="1 of 2 rows, the first in row 1"):
            writer.append([1, 2], {"x": value})
        writer.append([1], {"x": value[:1]})


@pytest.mark.parametrize("dtype", ["f8", "c16", "M8[ns]", "S3"])
def test_arrays_of_as_many_axes_as_numpy_has(tmp_path, dtype):
    """Some types are stored with one axis more."""
    value = np.zeros((1,) * 64, dtype)
    with store.create(tmp_path / "store") as writer:
        writer.append([1], {"row": value})
        writer.extend({"entry": value}, step=value)
        writer.log({"log": value[0]})
        with pytest.raises(SchemaError, match="64 axes"):
            writer.log({"more": value})
        with pytest.raises(SchemaError, match="64 axes"):
            writer.log({"more": 1.0}, step=value)
    store.compact(tmp_path / "store")
    reader = store.open(tmp_path / "store")
    assert reader.read("row").shape == reader.read("entry").shape == reader.read("log").shape
    assert reader.entries("entry").steps["step"].tobytes() == value.tobytes()


@pytest.mark.parametrize(
    "options",
    [
        {"segment_bytes": float("nan")},
        {"segment_bytes": "1"},
        {"queue": float("inf")},
        {"queue": None},
        {"interval": float("nan")},
        {"interval": "1"},
        {"interval": True},
    ],
)
def test_options_that_are_no_numbers(tmp_path, options):
    with pytest.raises(ArgumentError, match=next(iter(options))):
        store.create(tmp_path / "store", **options)


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
@pytest.mark.parametrize("call", ["create", "open", "verify", "compact", "repair"])
def test_paths_that_no_file_can_have(path, call):
    with pytest.raises(ArgumentError, match="path"):
        getattr(store, call)(path)
