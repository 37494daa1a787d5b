"""Logs as tables of pyarrow, pandas and polars: dtypes, shared memory, the join by hand."""

import json

import ml_dtypes
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sawlog import store
from sawlog.records import Entries
from sawlog.store._views._frames import to_arrow, to_pandas, to_polars
from sawlog.store._views._join import join
from sawlog.store._views._stored import windows
from sawlog.store._views._widen import widened
from sawlog.testing import assert_same, sample
from tests.thorough import often

from .frame_helpers import VIEWS, opened, rows_of

NUMBERS = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
]


# -- dtypes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", NUMBERS)
def test_numbers_to_the_last_bit(tmp_path, dtype, shape):
    values = sample(dtype, (6, *shape))

    def fill(writer):
        writer.extend({"x": values[:4]}, step=np.arange(4))
        writer.flush()
        writer.extend({"x": values[4:]}, step=np.arange(4, 6))

    reader = opened(tmp_path / "run", fill)
    frame, array = to_pandas(reader), to_polars(reader)["x"].to_numpy()
    assert_same(array, values)
    assert_same(np.stack(frame["x"].to_list()) if shape else frame["x"].to_numpy(), values)
    assert frame.attrs["sawlog"]["dtypes"] == ({"x": dtype} if shape else {})
    column = to_arrow(reader)["x"].combine_chunks()
    for _ in shape:
        column = column.flatten()
    assert_same(column.to_numpy(zero_copy_only=False).reshape(values.shape), values)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_missing_numbers_keep_their_type(tmp_path, dtype):
    values = sample(dtype, (3,))

    def fill(writer):
        writer.extend({"x": values}, step=np.array([0, 2, 4]))
        writer.extend({"all": np.arange(5)}, step=np.arange(5))

    reader = opened(tmp_path / "run", fill)
    arrow, frame = to_arrow(reader)["x"], to_pandas(reader)["x"]
    assert arrow.is_null().to_pylist() == [False, True, False, True, False]
    assert_same(arrow.drop_null().to_numpy(), values) if dtype != "bool" else None
    assert frame.isna().tolist() == [False, True, False, True, False]
    there = frame[[0, 2, 4]].to_numpy(dtype)
    assert str(there.tolist()) == str(values.tolist())
    name = str(frame.dtype).lower().replace("boolean", "bool")
    assert name == {"float16": "float32"}.get(dtype, dtype)


def test_types_that_pandas_and_arrow_do_not_have(tmp_path):
    numbers = np.array([1.5, np.nan, -2.0])
    values = {
        "bf": numbers.astype(ml_dtypes.bfloat16),
        "f8": numbers.astype(ml_dtypes.float8_e4m3fn),
        "i4": np.array([1, -8, 7]).astype(ml_dtypes.int4),
        "z": numbers + 1j,
        "day": np.array(["2020-01-01", "NaT", "1969-12-31"], "M8[D]"),
        "text": np.array(["a", "", "日本"]),
        "raw": np.array([b"a", b"\0b", b""]),
        "pair": np.array([(1, 2.0), (3, 4.0), (5, 6.0)], [("a", "i4"), ("b", "f8")]),
    }
    reader = opened(tmp_path / "run", lambda w: w.extend(values, step=np.arange(3)))
    frame = to_pandas(reader)
    assert_same(frame["bf"].to_numpy(), numbers.astype(np.float32))
    assert_same(frame["f8"].to_numpy(), numbers.astype(np.float32))
    assert_same(frame["i4"].to_numpy(), np.array([1, -8, 7], np.int8))
    assert_same(frame["z"].to_numpy(), values["z"])
    assert frame["day"].dtype == "datetime64[s]"
    assert_same(frame["day"].to_numpy().astype("M8[D]"), values["day"])
    assert frame["text"].tolist() == ["a", "", "日本"]
    assert frame["raw"].tolist() == [b"a", b"\0b", b""]
    assert [tuple(cell) for cell in frame["pair"]] == [(1, 2.0), (3, 4.0), (5, 6.0)]
    noted = frame.attrs["sawlog"]["dtypes"]
    assert {name: noted[name] for name in ("bf", "f8", "i4", "day")} == {
        "bf": "bfloat16",
        "f8": "float8_e4m3fn",
        "i4": "int4",
        "day": "<M8[D]",
    }
    assert not {"z", "step"} & set(noted)
    table = to_arrow(reader)
    said = json.loads(table.schema.field("bf").metadata[b"sawlog"])
    assert said == {"role": "value", "dtype": "bfloat16", "shape": []}
    polars = to_polars(reader)
    assert polars["day"].dtype == pl.Date
    assert polars["pair"].to_list() == [{"a": a, "b": b} for a, b in values["pair"].tolist()]
    assert polars["z"].struct.field("imag").to_list() == [1.0, 1.0, 1.0]


def test_missing_values_of_other_types_in_pandas(tmp_path):
    values = {
        "z": np.array([1j, 2j]),
        "day": np.array([0, 1], "M8[D]"),
        "text": np.array(["a", "b"]),
        "raw": np.array([b"a", b"b"]),
        "wide": np.array([0.5, 1.5], np.longdouble),
        "bf": np.array([0.5, 1.5], ml_dtypes.bfloat16),
    }

    def fill(writer):
        writer.extend({"all": np.arange(3)}, step=np.arange(3))
        writer.extend(values, step=np.array([0, 2]))

    frame = to_pandas(opened(tmp_path / "run", fill))
    for name, array in values.items():
        assert frame[name].isna().tolist() == [False, True, False], name
        there = frame[name][[0, 2]].tolist()
        expected = array.tolist() if name != "day" else [pd.Timestamp(x) for x in array]
        assert there == expected, name
    assert frame["bf"].dtype == "Float32"


def test_every_bfloat16_widens_to_itself():
    every = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    wide = widened(every)
    assert_same((wide.view(np.uint32) >> 16).astype(np.uint16), every.view(np.uint16))
    there = ~np.isnan(wide)
    assert_same(wide[there], every[there].astype(np.float32))


# -- memory ---------------------------------------------------------------------------------------


def memory_of(column):
    [chunk] = column.chunks
    while pa.types.is_fixed_size_list(chunk.type):
        chunk = chunk.flatten()
    return chunk.to_numpy()


def test_memory_is_shared_with_the_file(tmp_path):
    def fill(writer):
        writer.append(np.arange(100), {"grad": np.ones((100, 8, 2), np.float32)})
        writer.extend({"loss": np.ones(100), "acc": np.ones(100, np.float16)}, step=np.arange(100))

    reader = opened(tmp_path / "run", fill)
    table = to_arrow(reader, "grad")
    assert np.shares_memory(memory_of(table["grad"]), reader.read("grad"))
    table = to_arrow(reader, ["loss", "acc"])
    frame, polars = to_pandas(reader, ["loss", "acc"]), to_polars(reader, ["loss", "acc"])
    for name in ("loss", "acc"):
        assert np.shares_memory(memory_of(table[name]), reader.read(name))
        assert np.shares_memory(frame[name].to_numpy(), reader.read(name))
        assert np.shares_memory(polars[name].to_numpy(), reader.read(name))
    assert np.shares_memory(memory_of(table["step"]), reader.entries("loss").steps["step"])
    with pytest.raises(ValueError, match="read-only"):
        frame.loc[0, "loss"] = 5.0
    own = frame.copy()
    own.loc[0, "loss"] = 5.0
    assert (own["loss"][0], reader.read("loss")[0]) == (5.0, 1.0)


def test_a_chunk_for_each_large_segment(tmp_path):
    def fill(writer):
        for _ in range(3):
            writer.extend({"x": np.ones(200_000), "y": np.zeros(200_000)})
            writer.flush()

    reader = opened(tmp_path / "run", fill)
    assert len(reader.segments) == 3
    table = to_arrow(reader)
    for name in "xy":
        parts = [segment.values(name) for segment in reader.segments]
        assert table[name].num_chunks == 3
        for chunk, part in zip(table[name].chunks, parts, strict=True):
            assert np.shares_memory(chunk.to_numpy(), part)


def test_many_small_segments_make_few_chunks(tmp_path):
    def fill(writer):
        for step in range(30):
            writer.log({"x": step}, step=step)
            writer.append([step], {"row": np.array([step])})

    reader = opened(tmp_path / "run", fill, segment_bytes=1)
    assert len(reader.segments) > 30
    for name in ("x", "row"):
        table = to_arrow(reader, name)
        assert table[name].num_chunks == 1
        assert table[name].to_pylist() == list(range(30))


def test_tables_outlive_their_reader(tmp_path):
    reader = opened(tmp_path / "run", lambda w: w.extend({"x": np.arange(9)}, step=np.arange(9)))
    tables = [view(reader) for view in VIEWS]
    reader.close()
    del reader
    assert [rows_of(table) for table in tables] == [[(i, i) for i in range(9)]] * 3


# -- the join against a plain one -----------------------------------------------------------------


def plainly_joined(steps):
    """The rows as a dict of dicts would have them: (steps, how often before) -> entries."""
    rows = {}
    for number, own in enumerate(steps):
        seen = {}
        for entry, step in enumerate(own):
            key = (step, seen.setdefault(step, 0))
            seen[step] += 1
            rows.setdefault(key, [-1] * len(steps))[number] = entry
    if all(list(own) == sorted(own) for own in steps):
        rows = dict(sorted(rows.items()))
    return rows


pairs = st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 1)), max_size=8)


@settings(max_examples=often(60, 200), deadline=None)
@given(steps=st.lists(st.one_of(pairs, pairs.map(sorted)), min_size=1, max_size=4))
def test_the_join_is_that_of_a_dict(steps):
    arrays = [np.array(own, np.int64).reshape(-1, 2) for own in steps]
    together = join([{"a": x[:, 0], "b": x[:, 1]} for x in arrays], list(map(len, steps)))
    rows = plainly_joined(steps)
    assert together.rows == len(rows)
    numbers = [
        np.arange(together.rows) if entries is None else entries for entries in together.entries
    ]
    assert np.stack(numbers, 1).tolist() == list(rows.values())
    if together.first is not None:
        found = [steps[of][at] for of, at in zip(*together.first, strict=True)]
        assert found == [step for step, _ in rows]
    elif together.rows:
        assert any(entries is None for entries in together.entries)


@settings(max_examples=often(12, 40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.dictionaries(st.sampled_from("abc"), pairs, min_size=1),
    depth=st.integers(0, 2),
    small=st.booleans(),
)
def test_any_entries_in_any_frame(tmp_path_factory, steps, depth, small):
    folder = tmp_path_factory.mktemp("frames")
    shape, entries = (2,) * depth, {}
    with store.create(folder / "run", segment_bytes=60 if small else 1 << 20) as writer:
        for name, own in steps.items():
            array = np.array(own, np.int64).reshape(-1, 2)
            values = sample("int16", (len(own), *shape), len(entries))
            mask = sample("bool", (len(own), *shape[:1]), len(entries))
            entries[name] = Entries(values, {"a": array[:, 0], "b": array[:, 1]}, mask)
            writer.write({name: entries[name]})
    rows = plainly_joined(list(steps.values()))
    expected = []
    for ((a, b), _), numbers in rows.items():
        cells = [_cell(e, i) for e, i in zip(entries.values(), numbers, strict=True)]
        expected.append([a, b, *cells])
    reader = store.open(folder / "run")
    for view in VIEWS:
        found = [[_plain(x) for x in row] for row in rows_of(view(reader, list(steps)))]
        assert found == expected, view.__name__


def _cell(entries, number):
    """What a reader of the frame is to see of an entry: None, a number, or lists with None."""
    if number < 0:
        return None
    value, mask = entries.values[number].tolist(), entries.mask[number]
    if mask.ndim == 0:
        return value if mask else None
    return [item if there else None for item, there in zip(value, mask.tolist(), strict=True)]


def _plain(cell):
    if isinstance(cell, np.ma.MaskedArray):
        rows = cell.tolist()
        return [None if _all_none(row) else row for row in rows]
    if isinstance(cell, np.ndarray):
        return cell.tolist()
    return [_plain(item) for item in cell] if isinstance(cell, list) else cell


def _all_none(row):
    return isinstance(row, list) and all(item is None for item in row)


@settings(max_examples=often(30, 100), deadline=None)
@given(
    rows=st.integers(0, 50),
    row_bytes=st.integers(0, 9),
    budget=st.integers(1, 99),
    cuts=st.lists(st.integers(0, 50), max_size=6),
    least=st.integers(0, 30),
)
def test_windows_cover_every_row_once(rows, row_bytes, budget, cuts, least):
    found = list(windows(rows, row_bytes, budget, cuts, least))
    assert [row for start, stop in found for row in range(start, stop)] == list(range(rows))
    assert all((b - a) * row_bytes <= budget / 3 or b - a == 1 for a, b in found)
