"""Exports to Parquet and Arrow."""

import json

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
)
from sawlog.records import Entries
from sawlog.store._views._export import export
from sawlog.testing import assert_same, sample
from tests.thorough import often

from .export_stores import ARROW, DTYPES, NESTED, NUMBERS, read_arrow


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
