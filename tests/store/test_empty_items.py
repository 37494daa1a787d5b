"""Items without bytes: however many a file claims, a reader has no more work than bytes."""

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import ArgumentError, DamagedStoreError, SchemaError
from sawlog.store._format import _empty_items
from sawlog.store._maintenance import _compact, _merge_small
from sawlog.store._views import _join
from sawlog.store._writing import _stage_entries, _stage_rows
from tests.store.forge import Forged
from tests.store.hostile_stores import ask_everything, fill, segment_of

MODULES = (_empty_items, _stage_entries, _stage_rows)


def add_series(forged, name, shape, dtype="F32", types=None):
    """Add a series without bytes to a segment."""
    end = max(entry["data_offsets"][1] for entry in forged.document.values())
    forged.said["chunks"].append({"series": name, "rows": shape[0], "steps": []})
    forged.document[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end]}
    forged.said["checksums"][name] = [1, 1]
    if types:
        forged.said["types"][name] = types


def many_rows(forged):
    add_series(forged, "void", [1 << 20, 0])


def long_lists(forged):
    add_series(forged, "void", [1, 1 << 20, 0, 7])


def empty_strings(forged):
    shape = [2, 1 << 20]
    add_series(forged, "void", [*shape, 0], "U8", {"dtype": "|S0", "shape": shape})


def many_names(forged):
    for number in range(40):
        add_series(forged, f"void{number}", [1000, 0])


def within_bytes(forged):
    add_series(forged, "void", [20, 3, 0])


@pytest.mark.parametrize(
    "change", [many_rows, long_lists, empty_strings, many_names], ids=lambda c: c.__name__
)
def test_more_items_than_bytes_are_damage(tmp_path, change, capsys):
    path = fill(tmp_path / "store")
    forged = Forged.of(segment_of(path))
    change(forged)
    segment_of(path).write_bytes(forged.bytes())
    refused = ask_everything(path)
    assert isinstance(refused["open"], DamagedStoreError), refused
    assert "items without bytes, more than" in str(refused["open"])
    assert refused["open again"] is None  # after repair


def test_fewer_items_than_bytes_are_read(tmp_path):
    path = fill(tmp_path / "store")
    forged = Forged.of(segment_of(path))
    within_bytes(forged)
    segment_of(path).write_bytes(forged.bytes())
    assert store.open(path, damaged="skip").read("void").shape == (20, 3, 0)


def files_are_long_enough(path):
    for segment in store.open(path).segments:
        assert segment.nbytes >= segment.empty_items


@pytest.mark.parametrize(
    "values",
    [
        np.empty((5000, 0)),
        np.empty((50, 100, 0, 9), np.int8),
        np.full((5000,), b"", "S0").astype("S0"),
        np.empty((0, 0)),
    ],
    ids=lambda v: f"{v.dtype}{list(v.shape)}",
)
def test_what_is_written_is_read(tmp_path, values):
    path, rows = tmp_path / "store", len(values)
    with store.create(path, interval=None, merge=False) as writer:
        for start in (0, 1):
            writer.extend({"x": values})
            writer.extend({"y": values}, step=np.arange(rows))
            if rows:
                ids = np.arange(rows) + start * rows
                writer.append(ids, {"a": values, "b": values, "c": values})
            writer.flush()
    for _ in range(2):
        assert store.verify(path).ok
        files_are_long_enough(path)
        reader = store.open(path)
        for name in reader.names:
            found = reader.read(name)
            assert (found.dtype, found.shape) == (values.dtype, (2 * rows, *values.shape[1:]))
        store.compact(path, grace=0)
    assert len(reader.segments) <= 2


def test_a_call_with_more_than_a_segment_may_have(tmp_path, monkeypatch):
    for module in MODULES:
        monkeypatch.setattr(module, "MOST", 100)
    with store.create(tmp_path / "s", interval=None, merge=False) as writer:
        with pytest.raises(SchemaError, match=r"'x' would get values float64\[101, 0\], which are"):
            writer.extend({"y": np.zeros(101), "x": np.empty((101, 0))})
        with pytest.raises(SchemaError, match="A row of 'q' has 101 empty items"):
            writer.append([1], {"q": np.empty((1, 101, 0))})
        for _ in range(5):
            writer.extend({"x": np.empty((60, 0))})
        writer.append(np.arange(250), {"r": np.empty((250, 1, 0))})
    reader = store.open(tmp_path / "s")
    assert (reader.count("x"), reader.count("r")) == (300, 250)
    assert max(segment.empty_items for segment in reader.segments) <= 100


def test_merging_keeps_within_what_a_segment_may_have(tmp_path, monkeypatch):
    for module in (_compact, _merge_small):
        monkeypatch.setattr(module, "MOST_EMPTY_ITEMS", 100)
    for merge in (True, False):
        path = tmp_path / str(merge)
        with store.create(path, interval=None, merge=merge) as writer:
            for _ in range(40):
                writer.extend({"x": np.empty((30, 0))})
                writer.flush()
        store.compact(path, grace=0)
        reader = store.open(path)
        assert reader.count("x") == 1200
        assert {segment.empty_items for segment in reader.segments} == {90, 30}


def test_fields_without_bytes_are_refused(tmp_path):
    kinds = [[("a", "i1"), ("b", "S0")], [("a", "i1"), ("b", [("c", "i4", (1 << 20, 0))])]]
    with store.create(tmp_path / "s") as writer:
        for kind in kinds:
            with pytest.raises(SchemaError, match="have no bytes"):
                writer.append([1], {"x": np.zeros(1, kind)})


def test_long_names_are_refused(tmp_path):
    with store.create(tmp_path / "s") as writer:
        writer.log({"n" * 4096: 1.0}, **{"s" * 4096: 1})
        for call in (
            lambda: writer.log({"n" * 4097: 1.0}),
            lambda: writer.log({"m": 1.0}, **{"s" * 4097: 1}),
            lambda: writer.append([1], {"é" * 4097: np.zeros(1)}),
        ):
            with pytest.raises(SchemaError, match="4097 characters, more than 4096"):
                call()


def test_a_wide_table_that_is_nearly_empty_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_join, "_FEW_CELLS", 100)
    with store.create(tmp_path / "s", interval=None) as writer:
        writer.extend({"often": np.zeros(50)}, step=np.arange(50))
        for number in range(120):
            writer.log({f"n{number}": 1.0}, step=100 + number)
    reader = store.open(tmp_path / "s")
    with pytest.raises(ArgumentError, match="121 names with 170 different steps are a table of"):
        reader.to_arrow()
    assert reader.to_arrow(long=True).num_rows == 170
    assert reader.to_arrow([f"n{number}" for number in range(50)]).num_rows == 50


def test_names_without_entries_count_as_well():
    steps = [{"step": np.arange(300_000)}, *[{"step": np.zeros(0, int)}] * 200]
    with pytest.raises(ArgumentError, match="of which 300000 have a value"):
        _join.join(steps, [300_000, *[0] * 200])
