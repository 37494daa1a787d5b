"""Exports to text and to safetensors."""

import csv
import json

import ml_dtypes
import numpy as np
import pandas as pd
import polars as pl
import pytest
import safetensors
import safetensors.numpy

from sawlog import store
from sawlog.errors import (
    ArgumentError,
)
from sawlog.records import Entries
from sawlog.store._views._export import export
from sawlog.testing import assert_same, sample

from .export_stores import DTYPES, NESTED, NUMBERS, read_arrow, read_jsonl

# -- text -----------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("kind", [int, "é{}".format])
@pytest.mark.parametrize("budget", [1, 200, 1 << 20])
def test_rows_that_were_replaced_are_in_no_part_of_an_export(tmp_path, budget, kind):
    """Three segments, which are read in many parts; ids of one and of two digits."""
    with store.create(tmp_path / "run", duplicates="replace", merge=False) as writer:
        for start, factor in ((0, 1.0), (13, 10.0), (26, 100.0)):
            numbers = np.arange(start, start + 20)
            writer.append([kind(n) for n in numbers], {"x": factor * numbers})
            writer.flush()
    numbers = np.arange(46)
    wanted = (numbers * np.repeat([1.0, 10.0, 100.0], [13, 13, 20])).tolist()
    [path] = export(tmp_path / "run", tmp_path / "out.safetensors", budget=budget)
    found = safetensors.numpy.load_file(path)
    assert found["x"].tolist() == wanted
    if kind is int:
        assert found["sawlog.ids/x"].tolist() == numbers.tolist()
    else:
        ends = found["sawlog.ids.ends/x"].tolist()
        text = found["sawlog.ids.text/x"].tobytes()
        ids = [text[a:b].decode() for a, b in zip([0, *ends], ends, strict=False)]
        assert ids == [kind(n) for n in numbers]
    [path] = export(tmp_path / "run", tmp_path / "out.csv", budget=budget)
    rows = [line.split(",") for line in path.read_text().splitlines()]
    assert rows == [["id", "x"], *([str(kind(n)), str(x)] for n, x in enumerate(wanted))]
