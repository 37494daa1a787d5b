"""Exports are read back with the libraries they are for, and are the same to the last bit."""

import csv
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sawlog import store
from sawlog.errors import (
    ArgumentError,
    DamagedStoreError,
    MissingPackageError,
    StoreError,
    StoreExistsError,
    StoreFullError,
    StoreNotFoundError,
    StorePermissionError,
    UnknownNameError,
)
from sawlog.records import Entries
from sawlog.store._views._export import export
from sawlog.testing import assert_same, sample
from tests.thorough import often

SRC = Path(__file__).parents[2] / "src"
ARROW = ["parquet", "arrow", "feather"]
NUMBERS = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
]
NARROW = sorted(n for n in dir(ml_dtypes) if n == "bfloat16" or n.startswith(("float", "int4")))
OTHERS = ["complex64", "complex128", "M8[ns]", "m8[us]", "S4", "U3", "V5"]
NESTED = np.dtype([("a", "u1"), ("b", [("c", "<f4", (2,)), ("d", "S3")])])
DTYPES = {
    **{name: np.dtype(name) for name in [*NUMBERS, *OTHERS]},
    **{name: np.dtype(getattr(ml_dtypes, name)) for name in NARROW},
    "structured": NESTED,
}


def read_arrow(path):
    if path.suffix == ".parquet":
        return pq.read_table(path)
    with pa.ipc.open_file(path) as file:
        return file.read_all()


def said(field):
    return json.loads(field.metadata[b"sawlog"])


def decoded(table, name):
    """A column without nulls as numpy had it, by what its field says; not by our own code."""
    field = table.schema.field(name)
    noted = said(field)
    dtype = noted["dtype"]
    if dtype == "str":
        return table[name].to_pylist()
    dtype = np.dtype(getattr(ml_dtypes, dtype)) if hasattr(ml_dtypes, str(dtype)) else dtype
    if isinstance(dtype, list):
        dtype = NESTED
    shape = (table.num_rows, *noted["shape"])
    return leaves(table[name].combine_chunks(), np.dtype(dtype)).reshape(shape)


def leaves(array, dtype):
    while pa.types.is_fixed_size_list(array.type) or pa.types.is_list(array.type):
        array = array.flatten()
    if dtype.names:
        out = np.zeros(len(array), dtype)
        for name in dtype.names:
            out[name] = leaves(array.field(name), dtype[name].base).reshape(
                len(array), *dtype[name].shape
            )
        return out
    if dtype.kind == "c":
        out = np.empty(len(array), dtype)
        out.real, out.imag = (array.field(part).to_numpy() for part in ("real", "imag"))
        return out
    if dtype.kind in "SU":
        return np.array(array.to_pylist(), dtype)
    if dtype.kind == "V" and dtype.type.__module__ != "ml_dtypes":
        return np.frombuffer(b"".join(array.to_pylist()), dtype)
    found = array.to_numpy(zero_copy_only=False)
    if dtype.name == "bfloat16":
        assert found.dtype == np.float32
        assert not (found.view(np.uint32) & 0xFFFF).any()
        return (found.view(np.uint32) >> 16).astype(np.uint16).view(dtype)
    if dtype.type.__module__ == "ml_dtypes":
        assert found.dtype in (np.float32, np.int8)
        narrow = found.astype(dtype)
        both_nan = np.isnan(found) if found.dtype == np.float32 else np.zeros(len(found), bool)
        assert (narrow.astype(found.dtype) == found)[~both_nan].all(), "widening was not exact"
        return narrow
    return found.astype(dtype) if found.dtype.kind in "Mm" else found


def values_of(dtype, shape):
    values = sample(dtype, shape)
    if values.dtype.kind in "Mm":
        values = np.where(np.isnat(values), np.array(1, values.dtype), values)
    if dtype.type.__module__ == "ml_dtypes" and dtype.name != "bfloat16":
        values = values.astype(np.float32).astype(dtype)  # one kind of NaN
    return values


# -- Parquet and Arrow ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", list(DTYPES.values()), ids=list(DTYPES))
def test_every_dtype_comes_back(tmp_path, dtype):
    shapes = {"scalar": (), "vector": (3,), "cube": (2, 1, 3), "none": (2, 0), "nobody": (0, 3)}
    values = {name: values_of(dtype, (5, *shape)) for name, shape in shapes.items()}
    with store.create(tmp_path / "run", segment_bytes=200) as writer:
        for part in (slice(0, 2), slice(2, 5)):
            writer.append(np.arange(5)[part] * 7, {n: a[part] for n, a in values.items()})
    for kind in ("parquet", "arrow"):
        [path] = export(tmp_path / "run", tmp_path / f"out.{kind}")
        table = read_arrow(path)
        assert table.column_names == ["id", *shapes]
        assert table["id"].to_pylist() == [0, 7, 14, 21, 28]
        for name, array in values.items():
            assert_same(decoded(table, name), array, f"{kind} {name}")
            assert table[name].null_count == 0
            assert said(table.schema.field(name))["shape"] == list(shapes[name])


@pytest.mark.parametrize("dtype", NUMBERS)
def test_polars_and_pandas_read_the_files(tmp_path, dtype):
    flat, deep = sample(dtype, (4,)), sample(dtype, (4, 2, 3))
    with store.create(tmp_path / "run") as writer:
        writer.append(["a", "", "ü", "\n"], {"flat": flat, "deep": deep})
    files = {kind: tmp_path / f"out.{kind}" for kind in ARROW}
    for path in files.values():
        assert export(tmp_path / "run", path) == [path]
    frames = [pl.read_parquet(files["parquet"]), pl.read_ipc(files["arrow"])]
    for frame in [*frames, pl.read_ipc(files["feather"])]:
        assert frame.columns == ["id", "flat", "deep"]
        assert frame["id"].to_list() == ["a", "", "ü", "\n"]
        assert_same(frame["flat"].to_numpy(), flat)
        assert_same(frame["deep"].to_numpy(), deep)
    for frame in (pd.read_parquet(files["parquet"]), pd.read_feather(files["feather"])):
        assert list(frame.columns) == ["id", "flat", "deep"]
        assert frame["id"].tolist() == ["a", "", "ü", "\n"]
        assert_same(frame["flat"].to_numpy(), flat)
        assert_same(np.array([[list(y) for y in x] for x in frame["deep"]], dtype), deep)


finite_shapes = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4)
number_dtypes = st.sampled_from([*NUMBERS, "complex64", "bfloat16"]).map(DTYPES.get)


@settings(max_examples=often(12, 40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), dtype=number_dtypes, shape=finite_shapes, small=st.booleans())
def test_any_shape_comes_back(tmp_path_factory, data, dtype, shape, small):
    folder = tmp_path_factory.mktemp("any")
    values = sample(dtype, shape, data.draw(st.integers(0, 99)))
    ids = np.array(data.draw(st.permutations(range(len(values)))), np.int64)
    table = store.Table((store.Column("x", dtype, shape[1:]),))
    options = {"schema": [table], "segment_bytes": 64 if small else 1 << 20}
    with store.create(folder / "run", **options) as writer:
        writer.append(ids, {"x": values})
    budget = data.draw(st.sampled_from([1, 100, 1 << 20]))
    for kind in ("parquet", "arrow"):
        [path] = export(folder / "run", folder / f"out.{kind}", budget=budget)
        table = read_arrow(path)
        assert_same(table["id"].to_numpy(), ids)
        assert_same(decoded(table, "x"), values)
    [path] = export(folder / "run", folder / "out.safetensors", budget=budget)
    found = safetensors.numpy.load_file(path)
    assert_same(found["x"], values)
    assert_same(found["sawlog.ids/x"], ids)


def test_small_segments_make_large_row_groups(tmp_path):
    with store.create(tmp_path / "run", segment_bytes=1) as writer:
        for number in range(40):
            writer.append([number], {"x": np.array([number])})
    assert len(store.open(tmp_path / "run").segments) == 40
    [path] = export(tmp_path / "run", tmp_path / "x.parquet")
    assert pq.ParquetFile(path).num_row_groups == 1
    assert pq.read_table(path)["x"].to_pylist() == list(range(40))
    [path] = export(tmp_path / "run", tmp_path / "y.parquet", budget=30 * 16)
    assert pq.ParquetFile(path).num_row_groups == 4
    assert pq.read_table(path)["x"].to_pylist() == list(range(40))


def test_entries_side_by_side_and_one_below_the_other(tmp_path):
    act = np.arange(6, dtype=np.float32).reshape(3, 2)
    with store.create(tmp_path / "run", meta={"lr": 0.1}) as writer:
        writer.extend({"loss": np.array([3.0, 2.0, np.nan])}, step=np.arange(3, dtype=np.int32))
        mask = np.array([[True, False], [True, True], [False, False]])
        writer.write({"act": Entries(act, {"step": np.array([0, 2, 4])}, mask, {"site": "a.py:1"})})
        writer.log({"n": 7}, step=2)
    [path] = export(tmp_path / "run", tmp_path / "wide.parquet")
    table = pq.read_table(path)
    assert table.column_names == ["step", "loss", "act", "n"]
    assert table["step"].to_pylist() == [0, 1, 2, 4]
    assert str(table["loss"].to_pylist()) == "[3.0, 2.0, nan, None]"
    assert table["act"].to_pylist() == [[0, None], None, [2, 3], [None, None]]
    assert table["n"].to_pylist() == [None, None, 7, None]
    noted = json.loads(table.schema.metadata[b"sawlog"])
    assert noted["meta"] == {"lr": 0.1}
    assert noted["attrs"] == {"act": [[3, {"site": "a.py:1"}]]}
    assert [column["name"] for column in noted["names"]] == ["loss", "act", "n"]

    [path] = export(tmp_path / "run", tmp_path / "long.arrow", long=True)
    table = read_arrow(path)
    assert table.column_names == ["name", "step", "value", "shape"]
    assert table["name"].to_pylist() == ["loss"] * 3 + ["act"] * 3 + ["n"]
    assert table["step"].to_pylist() == [0, 1, 2, 0, 2, 4, 2]
    assert str(table["value"].to_pylist()) == (
        "[[3.0], [2.0], [nan], [0.0, None], [2.0, 3.0], [None, None], [7.0]]"
    )
    assert table["shape"].to_pylist() == [[]] * 3 + [[2]] * 3 + [[]]


def test_steps_of_lanes_that_did_not_log(tmp_path):
    steps, mask = {"step": np.array([[0, 7], [8, 8]])}, np.array([[False, True], [True, True]])
    with store.create(tmp_path / "run") as writer:
        writer.write({"x": Entries(np.ones((2, 2)), steps, mask)})
    text = {
        "csv": "step[0],step[1],x[0],x[1]\n,7,,1.0\n8,8,1.0,1.0\n",
        "jsonl": '{"step": [null, 7], "x": [null, 1.0]}\n{"step": [8, 8], "x": [1.0, 1.0]}\n',
    }
    for format, wide in text.items():
        [path] = export(tmp_path / "run", tmp_path / f"wide.{format}")
        assert path.read_text() == wide
    [path] = export(tmp_path / "run", tmp_path / "long.csv", long=True)
    assert path.read_text() == "name,step[0],step[1],value[0],value[1]\nx,,7,,1.0\nx,8,8,1.0,1.0\n"


def test_names_of_several_tables_need_a_folder(tmp_path):
    with store.create(tmp_path / "run") as writer:
        writer.append([1], {"grad/w": np.ones((1, 2)), "label": np.array([3])})
        writer.append(["x"], {"GRAD?w": np.ones(1)})
        writer.log({"loss": 1.0, "acc": 0.5}, step=0)
        writer.log({"val": 1.0}, epoch=0, step=0)
        writer.log({"lanes": np.ones(2)}, step=np.array([0, 1]))
        writer.extend({"free": np.ones(3)})
        writer.extend({"other": np.ones(2)})
    with pytest.raises(ArgumentError, match=r"do not make one table.*(?s:.)*Hint.*long=True.*fold"):
        export(tmp_path / "run", tmp_path / "out.parquet")
    files = export(tmp_path / "run", tmp_path / "out/", format="parquet")
    columns = {path.name: pq.read_schema(path).names for path in files}
    assert columns == {
        "grad-w.parquet": ["id", "grad/w", "label"],
        "GRAD-w-2.parquet": ["id", "GRAD?w"],
        "entries.step.parquet": ["step", "loss", "acc"],
        "entries.epoch.step.parquet": ["epoch", "step", "val"],
        "entries.step-2.parquet": ["step", "lanes"],
        "entries.parquet": ["free"],
        "entries-2.parquet": ["other"],
    }
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(columns)
    files = export(tmp_path / "run", tmp_path / "csv", format="csv", names=["label", "val"])
    assert [path.read_text() for path in files] == ["id,label\n1,3\n", "epoch,step,val\n0,0,1.0\n"]


def test_columns_of_ours_give_way(tmp_path):
    with store.create(tmp_path / "run") as writer:
        writer.append([5], {"id": np.array([1]), "sawlog_id": np.array([2])})
        writer.log({"step": 10, "name": 20}, step=0, value=1)
    [path] = export(tmp_path / "run", tmp_path / "a.csv", names=["id", "sawlog_id"])
    assert path.read_text() == "sawlog.id,id,sawlog_id\n5,1,2\n"
    [path] = export(tmp_path / "run", tmp_path / "b.csv", names=["step", "name"])
    assert path.read_text() == "sawlog.step,value,step,name\n0,1,10,20\n"
    [path] = export(tmp_path / "run", tmp_path / "c.csv", names=["step", "name"], long=True)
    assert path.read_text() == "name,step,value,sawlog.value\nstep,0,1,10\nname,0,1,20\n"


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        (np.zeros(2, np.longdouble), "Arrow does not have"),
        (np.zeros(2, np.clongdouble), "Arrow does not have"),
        (np.array([1, 2], "m8[M]"), "no fixed length"),
        (np.array([1, 2**62], "M8[s]"), "cannot hold exactly"),
        (np.array([1, 2**62], "M8[h]"), "cannot hold exactly"),
        (np.array([1, 1500], "M8[ps]"), "cannot hold exactly"),
        (np.array([1, 2**40], "M8[D]"), "cannot hold"),
        (np.array(["a", "\ud800"]), "not text"),
    ],
    ids=lambda x: str(getattr(x, "dtype", "")),
)
def test_what_arrow_cannot_hold_is_refused(tmp_path, values, hint):
    with store.create(tmp_path / "run") as writer:
        writer.append([1, 2], {"x": values})
    for kind in ("arrow", "parquet"):
        with pytest.raises(ArgumentError, match=rf"'x'.*{hint}.*Hint"):
            export(tmp_path / "run", tmp_path / "sub" / f"out.{kind}")
    assert list((tmp_path / "sub").iterdir()) == []
    export(tmp_path / "run", tmp_path / "out.safetensors")


@pytest.mark.parametrize(
    ("dtype", "as_seen"),
    [
        ("M8[s]", "M8[s]"),
        ("M8[D]", "M8[D]"),
        ("M8[h]", "M8[s]"),
        ("M8[25ms]", "M8[ms]"),
        ("M8[Y]", "M8[s]"),
        ("m8[D]", "m8[s]"),
        ("m8[10us]", "m8[us]"),
    ],
)
def test_dates_in_any_unit(tmp_path, dtype, as_seen):
    values = np.array([0, 1, -3, "NaT", 5], dtype)
    with store.create(tmp_path / "run") as writer:
        writer.append(np.arange(5), {"x": values})
    for kind in ("arrow", "parquet"):
        [path] = export(tmp_path / "run", tmp_path / f"out.{kind}")
        table = read_arrow(path)
        assert table["x"].null_count == 1
        items = [np.datetime64("NaT") if x is None else x for x in table["x"].to_pylist()]
        found = np.array(items, as_seen if kind == "arrow" else None).astype(values.dtype)
        assert_same(found, values)
        assert said(table.schema.field("x"))["dtype"] == values.dtype.str


# -- text -----------------------------------------------------------------------------------------


def read_jsonl(path):
    def strictly(word):
        raise AssertionError(f"{word} is not JSON")

    with open(path, encoding="utf-8") as file:
        return [json.loads(line, parse_constant=strictly) for line in file]


def read_csv(path):
    with open(path, encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return [dict(zip(header, row, strict=True)) for row in rows]


@pytest.mark.parametrize("dtype", [*NUMBERS, "bfloat16", "float8_e4m3fn", "longdouble"])
def test_numbers_come_back_from_text(tmp_path, dtype):
    dtype = DTYPES.get(dtype, np.dtype(dtype) if dtype == "longdouble" else None)
    values = sample(dtype, (50,))
    with np.errstate(invalid="ignore"):
        odd = np.array([0.0, 1.0, np.nan, np.inf, -np.inf, 0.1]).astype(dtype)
    values = np.concatenate([values, odd])
    with store.create(tmp_path / "run") as writer:
        writer.extend({"x": values}, step=np.arange(len(values)))
    export(tmp_path / "run", tmp_path / "x.csv")
    export(tmp_path / "run", tmp_path / "x.jsonl")
    kind = "f" if dtype.type.__module__ == "ml_dtypes" else dtype.kind
    parse = {"b": lambda x: str(x).lower() == "true", "i": int, "u": int}.get(kind)
    if parse is None:
        wide = np.longdouble if dtype == np.longdouble else np.float64
        parse = lambda x: wide(x)
    made_of = dtype if kind in "biu" else None  # numpy makes floats of large integers
    texts = [row["x"] for row in read_csv(tmp_path / "x.csv")]
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.array([parse(text) for text in texts], made_of).astype(dtype)
    assert str(found.tolist()) == str(values.tolist())
    rows = [row["x"] for row in read_jsonl(tmp_path / "x.jsonl")]
    if dtype != np.longdouble:  # Python reads its digits as a float64
        with np.errstate(over="ignore", invalid="ignore"):
            found = np.array([parse(item) for item in rows], made_of).astype(dtype)
        assert str(found.tolist()) == str(values.tolist())
    if kind == "f":
        assert {"NaN", "Infinity", "-Infinity"} & {row for row in rows if isinstance(row, str)}


def test_csv_is_read_by_polars_and_pandas(tmp_path):
    with store.create(tmp_path / "run") as writer:
        for step in range(4):
            writer.log({"loss": [1.5, np.nan, np.inf, -np.inf][step], "ok": step > 1}, step=step)
        writer.log({"val": 2}, step=3)
    [path] = export(tmp_path / "run", tmp_path / "x.csv")
    assert path.read_text() == (
        "step,loss,ok,val\n0,1.5,false,\n1,NaN,false,\n2,inf,true,\n3,-inf,true,2\n"
    )
    frame = pl.read_csv(path)
    assert frame.dtypes == [pl.Int64, pl.Float64, pl.Boolean, pl.Int64]
    assert str(frame["loss"].to_list()) == "[1.5, nan, inf, -inf]"
    assert frame["val"].to_list() == [None, None, None, 2]
    frame = pd.read_csv(path)
    assert str(frame["loss"].tolist()) == "[1.5, nan, inf, -inf]"
    assert frame["ok"].tolist() == [False, False, True, True]


def test_axes_structs_and_texts_as_text(tmp_path):
    act = np.arange(8, dtype=np.int8).reshape(2, 2, 2)
    row = np.zeros(2, NESTED)
    row["b"]["c"], row["b"]["d"] = [[1, 2], [3, 4]], [b"x", b"y"]
    with store.create(tmp_path / "run") as writer:
        mask = np.array([[True, False], [True, True]])
        writer.write({"act": Entries(act, {"step": np.arange(2)}, mask)})
        writer.extend({"z": np.array([1 + 2j, 3 - 1j])}, step=np.arange(2))
        writer.extend({"s": row}, step=np.arange(2))
        writer.extend({"t": np.array(["a,b", 'say "hi"'])}, step=np.arange(2))
        writer.extend({"u": np.array([" x", ""])}, step=np.arange(2))
        writer.extend({"d": np.array(["2020-01-01", "NaT"], "M8[D]")}, step=np.arange(2))
        writer.extend({"e": np.array([5, "NaT"], "m8[ms]")}, step=np.arange(2))
    [path] = export(tmp_path / "run", tmp_path / "x.csv")
    assert read_csv(path) == [
        {
            "step": "0",
            "act[0,0]": "0",
            "act[0,1]": "1",
            "act[1,0]": "",
            "act[1,1]": "",
            "z.real": "1.0",
            "z.imag": "2.0",
            "s.a": "0",
            "s.b.c[0]": "1.0",
            "s.b.c[1]": "2.0",
            "s.b.d": "x",
            "t": "a,b",
            "u": " x",
            "d": "2020-01-01",
            "e": "5 milliseconds",
        },
        {
            "step": "1",
            "act[0,0]": "4",
            "act[0,1]": "5",
            "act[1,0]": "6",
            "act[1,1]": "7",
            "z.real": "3.0",
            "z.imag": "-1.0",
            "s.a": "0",
            "s.b.c[0]": "3.0",
            "s.b.c[1]": "4.0",
            "s.b.d": "y",
            "t": 'say "hi"',
            "u": "",
            "d": "",
            "e": "",
        },
    ]
    assert path.read_text().endswith(',"say ""hi""","",,\n'), "an empty text is not a missing one"
    [path] = export(tmp_path / "run", tmp_path / "x.jsonl")
    first, second = read_jsonl(path)
    assert first["act"] == [[0, 1], None]
    assert second["act"] == [[4, 5], [6, 7]]
    assert first["z"] == {"real": 1.0, "imag": 2.0}
    assert first["s"] == {"a": 0, "b": {"c": [1.0, 2.0], "d": "x"}}
    assert (second["t"], second["u"], second["d"], second["e"]) == ('say "hi"', "", None, None)
    assert (first["d"], first["e"]) == ("2020-01-01", "5 milliseconds")


def test_what_text_cannot_hold_is_refused(tmp_path):
    with store.create(tmp_path / "run") as writer:
        writer.extend({"wide": np.zeros((2, 2000))}, step=np.arange(2))
        writer.extend({"bytes": np.array([b"\xff", b"a"])}, step=np.arange(2))
        writer.extend({"raw": np.zeros(2, "V3")}, step=np.arange(2))
        writer.extend({"x": np.zeros((2, 1)), "x[0]": np.zeros(2)}, step=np.arange(2))
    run, out = tmp_path / "run", tmp_path / "out"
    with pytest.raises(ArgumentError, match=r"'wide' would become 2000 columns.*parquet"):
        export(run, out / "a.csv", names="wide")
    with pytest.raises(ArgumentError, match=r"different shapes.*jsonl"):
        export(run, out / "a.csv", names=["wide", "x"], long=True)
    with pytest.raises(ArgumentError, match=r"Two columns would be called 'x\[0\]'"):
        export(run, out / "a.csv", names=["x", "x[0]"])
    for kind in ("csv", "jsonl"):
        with pytest.raises(ArgumentError, match=r"'bytes' has bytes that are not UTF-8"):
            export(run, out / f"a.{kind}", names="bytes")
        with pytest.raises(ArgumentError, match=r"'raw' has the dtype"):
            export(run, out / f"a.{kind}", names="raw")
    assert list(out.iterdir()) == []
    [path] = export(run, out / "a.jsonl", names=["wide", "x"], long=True)
    assert [len(row["value"]) for row in read_jsonl(path)] == [2000, 2000, 1, 1]


# -- safetensors ----------------------------------------------------------------------------------


def raw_tensors(path):
    """What the official library finds: type, shape and bytes, also for types numpy lacks."""
    found = safetensors.deserialize(path.read_bytes())
    return {name: (t["dtype"], tuple(t["shape"]), bytes(t["data"])) for name, t in found}


STORED = {
    "bool": "BOOL",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "complex64": "C64",
}
INSTEAD = {
    "complex128": ("F64", (2,)),
    "M8[ns]": ("I64", ()),
    "m8[us]": ("I64", ()),
    "S4": ("U8", (4,)),
    "U3": ("U32", (3,)),
}


@pytest.mark.parametrize("dtype", list(DTYPES.values()), ids=list(DTYPES))
def test_every_dtype_in_safetensors(tmp_path, dtype, request):
    name = request.node.callspec.id
    rows, entries = sample(dtype, (5, 2)), sample(dtype, (5,))
    with store.create(tmp_path / "run", segment_bytes=40) as writer:
        writer.append([3, 1, 4, 0, 5], {"rows": rows})
        writer.extend({"entries": entries}, step=np.arange(5, dtype=np.uint8))
    [path] = export(tmp_path / "run", tmp_path / "out.safetensors", budget=30)
    found = raw_tensors(path)
    tensors = {"rows", "sawlog.ids/rows", "entries", "sawlog.step/step/entries"}
    assert set(found) == tensors
    if name in STORED:
        kind, more = STORED[name], ()
    else:
        kind, more = INSTEAD.get(name, ("U8", (dtype.itemsize,)))
    assert found["rows"] == (kind, (5, 2, *more), rows.tobytes())
    assert found["entries"] == (kind, (5, *more), entries.tobytes())
    assert found["sawlog.ids/rows"][2] == np.array([3, 1, 4, 0, 5]).tobytes()
    assert found["sawlog.step/step/entries"] == ("U8", (5,), bytes(range(5)))
    with safetensors.safe_open(path, "np") as file:
        noted = json.loads(file.metadata()["sawlog"])
    types = {} if name in STORED else {"rows": [5, 2], "entries": [5]}
    assert {key: value["shape"] for key, value in noted["types"].items()} == types
    assert noted["tables"] == [{"names": ["rows"], "rows": 5, "ids": "sawlog.ids/rows"}]
    steps = {"step": "sawlog.step/step/entries"}
    assert noted["series"] == {"entries": {"entries": 5, "steps": steps, "attrs": []}}
    if name in [*NUMBERS, "bfloat16", "complex64"]:
        assert_same(safetensors.numpy.load_file(path)["rows"], rows)


def test_torch_reads_bfloat16_and_float8(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    with store.create(tmp_path / "run") as writer:
        for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            writer.extend({name: np.array([0.5, -2.0]).astype(getattr(ml_dtypes, name))})
    [path] = export(tmp_path / "run", tmp_path / "out.safetensors")
    found = load_file(path)
    assert {name: tensor.dtype for name, tensor in found.items()} == {
        name: getattr(torch, name) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")
    }
    assert all(tensor.float().tolist() == [0.5, -2.0] for tensor in found.values())


@pytest.mark.parametrize("policy", ["first", "replace"])
@pytest.mark.parametrize("as_text", [False, True])
def test_only_rows_that_count_are_exported(tmp_path, policy, as_text):
    make = (lambda ids: [f"ä{i}" * i for i in ids]) if as_text else list
    run = tmp_path / "run"
    store.create(run, duplicates=policy).close()
    writers = [store.open(run, "append", interval=None, segment_bytes=60) for _ in range(2)]
    for number, (writer, ids) in enumerate(zip(writers, ([1, 2, 3], [3, 4, 1]), strict=True)):
        writer.append(make(ids), {"x": np.array(ids) * 10 + number, "y": np.zeros((3, 2))})
    for writer in writers:
        writer.close()
    reader = store.open(run)
    expected = dict(zip(reader.ids(), reader.read("x").tolist(), strict=True))
    assert sorted(expected) == sorted(make([1, 2, 3, 4]))
    [path] = export(reader, tmp_path / "out.safetensors", names=["y", "x"])
    found = safetensors.numpy.load_file(path)
    assert found["y"].shape == (4, 2)
    if as_text:
        text, ends = found["sawlog.ids.text/y"].tobytes(), found["sawlog.ids.ends/y"].tolist()
        ids = [text[a:b].decode() for a, b in zip([0, *ends], ends, strict=False)]
    else:
        ids = found["sawlog.ids/y"].tolist()
    assert dict(zip(ids, found["x"].tolist(), strict=True)) == expected
    for kind in ("parquet", "arrow"):
        [path] = export(reader, tmp_path / f"out.{kind}", names="x")
        table = read_arrow(path)
        pairs = zip(table["id"].to_pylist(), table["x"].to_pylist(), strict=True)
        assert dict(pairs) == expected
        assert table.num_rows == 4


def test_masks_and_notes_in_safetensors(tmp_path):
    with store.create(tmp_path / "run", segment_bytes=1) as writer:
        values = np.arange(6, dtype=np.float32).reshape(3, 2)
        masks = [None, np.array([True]), np.array([[False, True]])]
        for number, mask in enumerate(masks):
            entries = Entries(values[number : number + 1], {}, mask, {"save": number})
            writer.write({"x": entries})
        writer.write({"empty": Entries(np.zeros((0, 3)), attrs={"why": "nothing ran"})})
    [path] = export(tmp_path / "run", tmp_path / "out.safetensors")
    found = safetensors.numpy.load_file(path)
    assert set(found) == {"x", "sawlog.mask/x", "empty"}
    assert_same(found["x"], values)
    assert found["sawlog.mask/x"].tolist() == [[True, True], [True, True], [False, True]]
    assert found["empty"].shape == (0, 3)
    with safetensors.safe_open(path, "np") as file:
        noted = json.loads(file.metadata()["sawlog"])
    assert noted["series"]["x"]["attrs"] == [[1, {"save": n}] for n in range(3)]
    assert noted["series"]["x"]["mask"] == "sawlog.mask/x"
    assert noted["series"]["empty"]["attrs"] == [[0, {"why": "nothing ran"}]]


# -- files ----------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    with store.create(tmp_path / "run", segment_bytes=1000) as writer:
        writer.append(np.arange(100), {"grad": np.arange(400.0).reshape(100, 4)})
        writer.extend({"loss": np.arange(100.0)}, step=np.arange(100))
    return tmp_path / "run"


KINDS = [*ARROW, "csv", "jsonl", "safetensors"]


@pytest.mark.parametrize("kind", KINDS)
def test_existing_files_are_kept(tmp_path, run, kind):
    target = tmp_path / f"out.{kind}"
    target.write_text("mine")
    with pytest.raises(StoreExistsError, match=r"exists already.*overwrite=True"):
        export(run, target, names="loss")
    assert target.read_text() == "mine"
    assert export(run, str(target), names="loss", overwrite=True) == [target]
    assert target.read_bytes()[:4] != b"mine"
    assert {path.name for path in tmp_path.iterdir()} == {"run", target.name}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_came_meanwhile_is_kept(tmp_path, run, kind):
    target = tmp_path / f"out.{kind}"
    with pytest.raises(StoreExistsError, match="exists already"):
        export(run, target, names="loss", progress=lambda *_: target.write_text("mine"))
    assert target.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"run", target.name}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_of_a_failure(tmp_path, run, kind, monkeypatch):
    target = tmp_path / f"out.{kind}"
    target.write_text("mine")

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(run, target, names="loss", progress=stop, overwrite=True)
    errors = {errno.ENOSPC: StoreFullError, errno.EACCES: StorePermissionError}
    for number, kind_of_error in errors.items():
        error = OSError(number, "no")

        def fail(_, error=error):
            raise error

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(kind_of_error, match=r"failed: no\. The store is untouched.*Hint"):
            export(run, target, names="loss", overwrite=True)
    assert target.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"run", target.name}


@pytest.mark.parametrize("kind", KINDS)
def test_progress(tmp_path, run, kind):
    told = []
    export(run, tmp_path / "out", format=kind, progress=lambda *x: told.append(x), budget=3000)
    done, totals = zip(*told, strict=True)
    assert len(set(totals)) == 1
    assert totals[0] >= 100 * (4 * 8 + 8 + 8 + 8)
    assert len(done) > 2
    assert list(done) == sorted(done)
    assert done[-1] == totals[0]


def test_a_full_disk_and_a_folder_that_cannot_be_made(tmp_path, run):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"Exporting to .* failed"):
        export(run, tmp_path / "file" / "out.csv", names="loss")
    code = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
from sawlog.errors import StoreFullError
from sawlog.store._views._export import export
for kind in {KINDS!r}:
    try:
        export({str(run)!r}, {str(tmp_path)!r} + f"/full/out.{{kind}}", names="loss")
    except StoreFullError as error:
        print(kind, "Hint" in str(error))
"""
    assert run_python(code).split() == [word for kind in KINDS for word in (kind, "True")]
    assert list((tmp_path / "full").iterdir()) == []


def run_python(code):
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SRC)}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["grad", "loss"])
def test_damage_is_never_exported(tmp_path, kind, name):
    values = np.arange(2000.0)
    with store.create(tmp_path / "run") as writer:
        writer.append(np.arange(2000), {"grad": values})
        writer.extend({"loss": values}, step=np.arange(2000))
        writer.extend({"rare": values[::7]}, step=np.arange(2000)[::7] + 3)
    [segment] = (tmp_path / "run" / "segments").iterdir()
    data = bytearray(segment.read_bytes())
    start = safetensors_start(data, name) + 8 * 1234
    data[start] ^= 1
    segment.write_bytes(data)
    names = [name] if name == "grad" else ["rare", "loss"]  # joined, so looked up row by row
    with pytest.raises(DamagedStoreError, match=rf"{segment.name}.*'{name}'"):
        export(tmp_path / "run", tmp_path / f"out.{kind}", names=names)
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


def safetensors_start(data, name):
    """Where a tensor begins in the bytes of a safetensors file."""
    length = int.from_bytes(data[:8], "little")
    return 8 + length + json.loads(data[8 : 8 + length])[name]["data_offsets"][0]


def test_arguments_are_checked(tmp_path, run):
    with pytest.raises(ArgumentError, match=r"does not say a format.*\.parquet"):
        export(run, tmp_path / "out.xlsx")
    with pytest.raises(ArgumentError, match=r"does not say a format"):
        export(run, tmp_path / "folder")
    with pytest.raises(ArgumentError, match=r"`format` must be one of 'parquet'"):
        export(run, tmp_path / "out", format="excel")
    with pytest.raises(UnknownNameError, match=r"'los'.*'loss'"):
        export(run, tmp_path / "out.csv", names=["los"])
    with pytest.raises(ArgumentError, match="names is empty"):
        export(run, tmp_path / "out.csv", names=[])
    with pytest.raises(ArgumentError, match="`budget` must be a positive number of bytes"):
        export(run, tmp_path / "out.csv", names="loss", budget=0)
    with pytest.raises(ArgumentError, match="inside the store"):
        export(run, run / "segments" / "out.csv", names="loss")
    with pytest.raises(ArgumentError, match="inside the store"):
        export(run, run, format="csv")
    with pytest.raises(ArgumentError, match="long=True is for tables"):
        export(run, tmp_path / "out.safetensors", long=True)
    with pytest.raises(StoreNotFoundError):
        export(tmp_path / "nothing", tmp_path / "out.csv")
    (tmp_path / "is.csv").mkdir()
    with pytest.raises(ArgumentError, match="does not say a format"):
        export(run, tmp_path / "is.csv", names="loss")
    store.create(tmp_path / "new").close()
    with pytest.raises(ArgumentError, match="it has no logs yet"):
        export(tmp_path / "new", tmp_path / "out.csv")
    assert {path.name for path in tmp_path.iterdir()} == {"run", "new", "is.csv"}
    assert export(run, tmp_path / "data.txt", names="loss", format="jsonl")[0].name == "data.txt"
    assert export(run, tmp_path / "x.NDJSON", names="loss")[0].read_text().startswith('{"step"')


def test_a_reader_stays_open(tmp_path, run):
    with store.open(run) as reader:
        export(reader, tmp_path / "out.csv", names="loss")
        assert reader.count("loss") == 100


def test_packages_are_asked_for_by_name(tmp_path, run, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match=r"Parquet needs.*'pyarrow'.*sawlog\[arrow\]"):
        export(run, tmp_path / "out.parquet", names="loss")
    with pytest.raises(MissingPackageError, match=r"Arrow needs"):
        export(run, tmp_path / "out.arrow", names="loss")
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


def test_text_and_safetensors_need_numpy_only(tmp_path, run):
    code = f"""
import sys
for name in ("pyarrow", "pandas", "polars", "torch", "jax"):
    sys.modules[name] = None
from sawlog.store._views import _frames
from sawlog.store._views._export import export
for kind in ("csv", "jsonl", "safetensors"):
    print(export({str(run)!r}, {str(tmp_path)!r} + f"/out.{{kind}}", names="loss")[0].name)
"""
    assert run_python(code).split() == ["out.csv", "out.jsonl", "out.safetensors"]


@pytest.mark.turns(3)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", ["arrow", "safetensors"])
@pytest.mark.parametrize("name", ["rows", "entries"])
def test_memory_is_bounded(tmp_path, kind, name):
    with store.create(tmp_path / "run", segment_bytes=16 << 20) as writer:
        for number in range(5):
            numbers = np.arange(number * 4000, (number + 1) * 4000)
            values = np.full((4000, 1024), number, np.float32)
            if name == "rows":
                writer.append(numbers, {"rows": values})
            else:
                writer.extend({"entries": values}, step=numbers)
                writer.log({"rare": number}, step=int(numbers[0]))
    code = f"""
import pyarrow
from sawlog.store._views._export import export
peak = 0
def now():
    with open("/proc/self/status") as file:
        lines = [line.split() for line in file if line.startswith(("RssAnon", "RssFile"))]
    return sum(int(line[1]) for line in lines) >> 10
def watch(*_):
    global peak
    peak = max(peak, now())
before = now()
export({str(tmp_path / "run")!r}, {str(tmp_path / f"out.{kind}")!r}, budget=6 << 20, progress=watch)
print(peak - before)
"""
    assert int(run_python(code)) < 40  # of 80 MiB


# -- any entries ----------------------------------------------------------------------------------

axis = st.lists(st.integers(0, 5), max_size=8)


@settings(max_examples=often(12, 40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.dictionaries(st.sampled_from("abc"), axis, min_size=1),
    seed=st.integers(0, 9),
    small=st.booleans(),
)
def test_every_entry_is_in_every_form_once(tmp_path_factory, steps, seed, small):
    folder = tmp_path_factory.mktemp("entries")
    expected = []
    with store.create(folder / "run", segment_bytes=50 if small else 1 << 20) as writer:
        for name, at in steps.items():
            values = sample("int32", (len(at),), seed)
            mask = sample("bool", (len(at),), seed)
            entries = Entries(values, {"step": np.array(at, np.int64)}, mask)
            writer.write({name: entries})
            for step, value, there in zip(at, values.tolist(), mask.tolist(), strict=True):
                expected.append((name, step, value if there else None))
    shown = sorted(map(str, (row for row in expected if row[2] is not None)))
    files = {}
    for long in (False, True):
        for kind in ("parquet", "arrow", "jsonl"):
            [path] = export(folder / "run", folder / f"{long}.{kind}", long=long, budget=100)
            rows = read_jsonl(path) if kind == "jsonl" else read_arrow(path).to_pylist()
            files[long, kind] = rows
    for (long, kind), rows in files.items():
        if long:
            found = [(row["name"], row["step"], row["value"]) for row in rows]
            assert found == expected, kind
        else:
            cells = [(n, row["step"], row[n]) for row in rows for n in steps if row[n] is not None]
            assert sorted(map(str, cells)) == shown, kind
            assert len(rows) == sum(
                max(at.count(step) for at in steps.values()) for step in range(6)
            )
