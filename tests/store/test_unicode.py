"""Strings of a fixed width that are not valid Unicode: kept exactly, or an error that says so."""

import numpy as np
import pytest

from sawlog import store
from sawlog.cli import main
from sawlog.errors import ArgumentError, DamagedStoreError, SchemaError
from sawlog.records import Entries
from sawlog.store._writing import _validate_write

STRUCT = np.dtype([("n", "<i4"), ("t", "<U2", (2,))])


def strings(point, dtype="<U2"):
    """Two strings; the second one has a code point of any number."""
    array = np.zeros(2, dtype)
    texts = array if array.dtype.names is None else array["t"]
    points = np.full((*texts.shape, 2), ord("a"), "<u4")
    points[-1] = point
    texts[...] = points.view("<U2")[..., 0]
    return array


SURROGATE, NO_POINT = 0xD800, 0x110000
CALLS = {
    "append": lambda writer, bad: writer.append([1, 2], {"x": bad}),
    "log": lambda writer, bad: writer.log({"x": bad}),
    "extend": lambda writer, bad: writer.extend({"x": bad}),
    "step": lambda writer, bad: writer.extend({"x": np.ones(2)}, at=bad),
    "write": lambda writer, bad: writer.write({"x": Entries(bad)}),
}


@pytest.mark.parametrize("point", [NO_POINT, 0xFFFFFFFF])
@pytest.mark.parametrize("dtype", ["<U2", ">U2", STRUCT], ids=["U", "big", "struct"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_writer_refuses_what_numpy_cannot_return(tmp_path, call, dtype, point):
    bad = np.zeros(2, dtype)
    bad[...] = strings(point, STRUCT if dtype is STRUCT else "<U2")
    with store.create(tmp_path / "s") as writer:
        with pytest.raises(SchemaError, match="beyond the last code point"):
            call(writer, bad)
        call(writer, strings(0x10FFFF))
    assert store.verify(tmp_path / "s").ok


@pytest.fixture
def anything(monkeypatch):
    """A writer that does not look, as that of a stranger."""
    monkeypatch.setattr(_validate_write, "is_returnable", lambda array: True)


@pytest.mark.parametrize("dtype", ["<U2", STRUCT], ids=["U", "struct"])
def test_what_numpy_cannot_return_is_damage(tmp_path, anything, dtype, capsys):
    """numpy raises SystemError for such a string."""
    path = tmp_path / "s"
    with store.create(path, interval=None) as writer:
        writer.append([1, 2], {"x": strings(ord("b"), dtype)})
        writer.extend({"y": np.arange(2)}, at=strings(ord("b")))
        writer.flush()
        writer.append([3, 4], {"x": strings(NO_POINT, dtype)})
        writer.extend({"y": np.arange(2)}, at=strings(NO_POINT))
    for read in (
        lambda reader: reader.gather([4]),
        lambda reader: reader.read("x"),
        lambda reader: list(reader.blocks()),
        lambda reader: reader.entries("y"),
    ):
        with store.open(path) as reader, pytest.raises(DamagedStoreError, match="not text"):
            read(reader)
    for command in (["show", str(path)], ["export", str(path), f"{path}.csv"]):
        main(command)  # refused or shown without it, not a SystemError
    assert not store.verify(path).ok
    store.repair(path)
    with store.open(path) as reader:
        assert reader.ids().tolist() == [1, 2]
        assert reader.entries("y").values.tolist() == [0, 1]


def test_surrogates_are_kept_and_no_text_file_has_them(tmp_path):
    with store.create(tmp_path / "s") as writer:
        writer.append([1, 2], {"x": strings(SURROGATE)})
    with store.open(tmp_path / "s") as reader:
        assert reader.read("x").tolist() == ["aa", "\ud800\ud800"]
        for refused in (
            reader.to_pandas,
            reader.to_arrow,
            lambda: reader.export(tmp_path / "x.csv"),
            lambda: reader.export(tmp_path / "x.jsonl"),
        ):
            with pytest.raises(ArgumentError, match=r"not valid Unicode|not text"):
                refused()
        reader.export(tmp_path / "x.safetensors")


@pytest.mark.parametrize("inner", [False, True])
def test_fields_have_names_that_are_text(tmp_path, inner):
    odd = np.dtype([("\ud800", "<i4")])
    odd = np.dtype([("a", odd)]) if inner else odd
    with store.create(tmp_path / "s") as writer:
        with pytest.raises(SchemaError, match="valid Unicode"):
            writer.log({"x": np.zeros((), odd)})
        writer.log({"x": np.zeros((), [("é", "<i4")])})
    assert store.verify(tmp_path / "s").ok
