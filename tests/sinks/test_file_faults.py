"""CsvSink, JsonlSink and StoreSink after crashes, full disks and refusals."""

import csv
import errno
import json
import os
import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sawlog import store
from sawlog.errors import (
    SchemaError,
    StoreExistsError,
    StoreFullError,
    StorePermissionError,
    StoreWriteError,
)
from sawlog.records import Entries, Records
from sawlog.sinks import CsvSink, StoreSink, _lines
from tests.thorough import often

from .file_helpers import KINDS, lines_of, one
from .reading import from_csv, from_jsonl

WRITTEN = [
    one(0.25, step=0),
    one('a "text",\nwith\r\nbreaks ß', "t,\n", step=1),
    one(np.float32(0.1), 'the "name"', step=2),
    one(-1.5, step=3),
]


def write_one_by_one(path):
    """What is in the file, and where its lines end."""
    ends = [0, len("name,step,value\n")] if path.suffix == ".csv" else [0]
    with KINDS[path.suffix[1:]](path) as sink:
        for records in WRITTEN:
            sink.write(records)
            ends.append(path.stat().st_size)
    return path.read_bytes(), ends


@settings(
    max_examples=often(20, 60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.integers(0, 250))
@example(0)
@example(3)
@example(250)
def test_a_file_cut_anywhere_is_resumed(path, kind, cut):
    """What was whole stays, what was cut goes, and what comes then is as it should be."""
    path.unlink(missing_ok=True)
    whole, ends = write_one_by_one(path)
    assert len(whole) < 250
    cut = min(cut, len(whole))
    path.write_bytes(whole[:cut])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lines_of(path, one(7, "after", step=9))
    lacking = kind == "jsonl" and cut + 1 in ends  # JSON says itself where it ends
    kept = cut + 1 if lacking else max(end for end in ends if end <= cut)
    if kind == "csv":
        expected = (whole[:kept] or b"name,step,value\n") + b"after,9,7\n"
    else:
        expected = whole[:kept] + b'{"name": "after", "step": 9, "value": 7}\n'
    assert path.read_bytes() == expected
    assert ["was cut" in str(each.message) for each in caught] == [True] * (kept < cut)


def _csv_records(path):
    with open(path, encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    assert all(None not in record and None not in record.values() for record in found)
    return found


def test_a_line_that_only_lacks_its_end_is_kept(tmp_path):
    path = tmp_path / "a.jsonl"
    lines_of(path, one(1), one(2))
    path.write_bytes(path.read_bytes()[:-1])
    assert [json.loads(line)["value"] for line in lines_of(path, one(3))] == [1, 2, 3]


def test_a_torn_line_longer_than_a_block(tmp_path):
    path = tmp_path / "a.jsonl"
    lines_of(path, one(1), one(np.zeros(100_000)))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.warns(UserWarning, match="was cut"):
        found = lines_of(path, one(3))
    assert [json.loads(line)["value"] for line in found] == [1, 3]


def test_a_full_disk_leaves_no_half_line(path, kind, monkeypatch):
    sink = KINDS[kind](path)
    sink.write(one(1, step=0))
    before = path.read_bytes()

    def half(descriptor, data):
        os.write(descriptor, bytes(data)[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(_lines, "write_all", half)
        with pytest.raises(StoreFullError, match=r"No space left.*Hint"):
            sink.write(one(2, step=1))
    assert path.read_bytes() == before
    sink.write(one(2, step=1))
    sink.close()
    read = from_csv if kind == "csv" else from_jsonl
    assert read(path) == {"x": [({"step": 0}, 1), ({"step": 1}, 2)]}


def test_a_full_disk_while_columns_are_added(tmp_path, monkeypatch):
    sink = CsvSink(tmp_path / "a.csv")
    sink.write(one(1))
    before = sink.path.read_bytes()

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreFullError):
            sink.write(one(2, step=1))
        with pytest.raises(StoreFullError):
            sink.close()
    assert sink.path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.csv"]
    sink.write(one(2, step=1))
    sink.close()
    assert sink.path.read_text() == "name,step,value\nx,,1\nx,1,2\n"


def test_flush_syncs(path, kind, monkeypatch):
    synced = []
    real = os.fsync
    with KINDS[kind](path) as sink:
        sink.write(one(1))
        monkeypatch.setattr(os, "fsync", lambda d: (synced.append(d), real(d)))
        sink.flush()
    assert len(synced) >= 2


def test_a_folder_that_may_not_be_written_to(path, kind, monkeypatch):
    def denied(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", denied)  # root, who may run this, is never denied anything
    with pytest.raises(StorePermissionError, match=r"Not permitted while opening.*Hint"):
        KINDS[kind](path)


def test_a_path_that_cannot_exist(path, kind):
    """It is no failure of the disk, and waiting does not help."""
    path.write_text("")
    for bad in (path / "below" / "a.file", path.parent):
        with pytest.raises(StoreWriteError, match="Hint: choose another path"):
            KINDS[kind](bad)
    with pytest.raises(StoreWriteError, match="Hint: choose another path"):
        store.create(path / "below")


@settings(
    max_examples=often(15, 40),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b,", 'c"']),
            st.floats(width=32) | st.integers(-(2**53), 2**53),
            st.dictionaries(st.sampled_from(["s", "t"]), st.integers(0, 9)),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_any_sequence_is_read_back(path, kind, written):
    """Any names, values and step axes in any order, with the file closed in between or not."""
    path.unlink(missing_ok=True)
    sink = KINDS[kind](path)
    for name, value, steps, reopen in written:
        sink.write(one(value, name, **steps))
        if reopen:
            sink.close()
            sink = KINDS[kind](path)
    sink.close()
    if kind == "csv":
        rows = [(r.pop("name"), r.pop("value"), r) for r in _csv_records(path)]
        found = [(n, float(v), {a: int(s) for a, s in at.items() if s}) for n, v, at in rows]
    else:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        found = [(r.pop("name"), float(r.pop("value")), r) for r in rows]
    expected = [(name, float(value), steps) for name, value, steps, _ in written]
    assert len(found) == len(expected)
    for (name, value, steps), (own_name, own_value, own_steps) in zip(expected, found, strict=True):
        assert (own_name, own_steps, repr(own_value)) == (name, steps, repr(value))


# ---- the store


def test_store_keeps_everything(tmp_path):
    mask = np.array([[True, False]])
    entries = Entries(np.ones((1, 2), ml_dtypes.bfloat16), {"step": np.array([3])}, mask, {"a": 1})
    with StoreSink(tmp_path / "run", exists="error", meta={"seed": 1}, interval=None) as sink:
        sink.write(Records({"x": entries}))
    with store.open(sink.path) as reader:
        found = reader.entries("x")
        assert reader.meta == {"seed": 1}
    assert found.values.dtype == entries.values.dtype
    assert (found.mask.tolist(), dict(found.attrs)) == (mask.tolist(), {"a": 1})


def test_store_exists(tmp_path):
    with StoreSink(tmp_path / "run", meta={"seed": 1}) as sink:
        sink.write(one(1.0))
    with pytest.raises(StoreExistsError, match="exists='append'"):
        StoreSink(sink.path, exists="error")
    with pytest.raises(StoreExistsError, match=r"started with {'seed': 1}.*{'seed': 2}"):
        StoreSink(sink.path, meta={"seed": 2})
    with StoreSink(sink.path) as sink, pytest.raises(SchemaError, match="'x'"):
        sink.write(Records({**one(1.0, "y"), **one(1)}))
    with store.open(sink.path) as reader:
        assert reader.names == ("x",)
    with StoreSink(sink.path, exists="replace", meta={"seed": 2}) as sink:
        pass
    with store.open(sink.path) as reader:
        assert (reader.names, reader.meta) == ((), {"seed": 2})


@pytest.mark.parametrize("length", [10, (1 << 16) - 60, 1 << 16, 3 << 16])
@pytest.mark.parametrize("before", [1, 3000])
def test_a_torn_line_of_a_large_file(tmp_path, length, before):
    """The last line is searched from the end, block by block."""
    path = tmp_path / "run.jsonl"
    with KINDS["jsonl"](path) as sink:
        for step in range(before):
            sink.write(one(float(step), step=step))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"name": "x", "value": "' + b"a" * length)
    with pytest.warns(UserWarning, match="was cut, probably by a crash"):
        KINDS["jsonl"](path).close()
    assert path.read_bytes() == whole
    path.write_bytes(whole.removesuffix(b"\n"))  # only the line break is missing
    KINDS["jsonl"](path).close()
    assert path.read_bytes() == whole


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_file_is_free_once_it_is_closed(tmp_path, kind):
    """Also where a forked process holds it open, and the lock with it."""
    path = tmp_path / f"run.{kind}"
    sink = KINDS[kind](path)
    sink.write(one(1.0, step=0))
    held = os.dup(sink._file._descriptor)
    try:
        with pytest.raises(StoreExistsError, match="is being written to by another sink"):
            KINDS[kind](path)
        sink.close()
        with KINDS[kind](path) as again:
            again.write(one(2.0, step=1))
    finally:
        os.close(held)
