"""Logs as tables of pyarrow, pandas and polars: rows, columns and refusals."""

import sys

import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest

from sawlog.errors import ArgumentError, MissingPackageError, StoreClosedError, UnknownNameError
from sawlog.records import Entries
from sawlog.store._views._frames import to_arrow, to_pandas, to_polars

from .frame_helpers import VIEWS, opened, rows_of

each_view = pytest.mark.parametrize("view", VIEWS)


def columns_of(table):
    return list(table.column_names if isinstance(table, pa.Table) else table.columns)


# -- rows and columns -----------------------------------------------------------------------------


@each_view
def test_one_row_for_equal_steps(tmp_path, view):
    def fill(writer):
        for step in range(5):
            writer.log({"loss": step / 2, "count": step}, step=step, epoch=step // 2)
            if step % 2:
                writer.log({"val": step * 10}, epoch=step // 2, step=step)

    table = view(opened(tmp_path / "run", fill))
    assert columns_of(table) == ["step", "epoch", "loss", "count", "val"]
    assert rows_of(table) == [
        (0, 0, 0.0, 0, None),
        (1, 0, 0.5, 1, 10),
        (2, 1, 1.0, 2, None),
        (3, 1, 1.5, 3, 30),
        (4, 2, 2.0, 4, None),
    ]


@each_view
def test_chosen_names_are_in_the_order_given(tmp_path, view):
    reader = opened(tmp_path / "run", lambda w: w.log({"a": 1, "b": 2, "c": 3}, step=0))
    assert columns_of(view(reader, ["c", "a"])) == ["step", "c", "a"]
    assert columns_of(view(reader, "b")) == ["step", "b"]
    assert columns_of(view(reader, (n for n in "ba"))) == ["step", "b", "a"]


@each_view
def test_equal_steps_again_are_matched_in_order(tmp_path, view):
    def fill(writer):
        writer.extend({"a": np.array([1, 2, 3])}, step=np.array([0, 0, 1]))
        writer.extend({"b": np.array([4, 5, 6])}, step=np.array([0, 1, 1]))

    table = view(opened(tmp_path / "run", fill))
    assert rows_of(table) == [(0, 1, 4), (0, 2, None), (1, 3, 5), (1, None, 6)]


@each_view
def test_rows_out_of_order_stay_in_the_order_of_logging(tmp_path, view):
    def fill(writer):
        writer.extend({"a": np.array([1, 2, 3])}, step=np.array([7, 3, 5]))
        writer.extend({"b": np.array([4, 5])}, step=np.array([9, 3]))

    table = view(opened(tmp_path / "run", fill))
    assert rows_of(table) == [(7, 1, None), (3, 2, 5), (5, 3, None), (9, None, 4)]


@each_view
def test_steps_of_several_dtypes_meet(tmp_path, view):
    def fill(writer):
        writer.extend({"a": np.array([1, 2])}, step=np.array([0, 1], np.int32))
        writer.extend({"b": np.array([3, 4])}, step=np.array([1, 2], np.int64))
        writer.extend({"c": np.array([5])}, step=np.array([2], np.uint8))

    table = view(opened(tmp_path / "run", fill))
    assert rows_of(table) == [(0, 1, None, None), (1, 2, 3, None), (2, None, 4, 5)]


@each_view
def test_steps_with_axes(tmp_path, view):
    def fill(writer):
        for name in "ab":
            lanes = np.array([[0, 10], [1, 11], [2, 12]])[:: 2 if name == "b" else 1]
            writer.extend({name: lanes * 2}, step=lanes)

    table = view(opened(tmp_path / "run", fill))
    found = [[None if x is None else list(x) for x in row] for row in rows_of(table)]
    assert found == [
        [[0, 10], [0, 20], [0, 20]],
        [[1, 11], [2, 22], None],
        [[2, 12], [4, 24], [4, 24]],
    ]


def test_steps_with_many_axes_and_odd_floats(tmp_path):
    def fill(writer):
        lanes = np.arange(60).reshape(3, 20)
        writer.extend({"a": np.arange(3)}, step=lanes)
        writer.extend({"b": np.arange(2)}, step=lanes[1:])

    table = to_arrow(opened(tmp_path / "run", fill))
    assert table["b"].to_pylist() == [None, 0, 1]

    def odd(writer):
        writer.extend({"a": np.arange(3)}, t=np.array([-0.0, 1.0, np.nan], np.float32))
        writer.extend({"b": np.arange(2)}, t=np.array([0.0, np.nan], ml_dtypes.bfloat16))

    table = to_arrow(opened(tmp_path / "odd", odd))
    assert table["a"].to_pylist() == [0, 1, 2]
    assert table["b"].to_pylist() == [0, None, 1]
    assert table.schema.field("t").type == pa.float32()


@each_view
def test_masked_entries_are_null(tmp_path, view):
    def fill(writer):
        mask = np.array([True, False, True])
        steps = {"step": np.arange(3)}
        writer.write({"whole": Entries(np.array([1, 2, 3]), steps, mask)})
        parts = np.array([[True, False], [False, False], [True, True]])
        writer.write({"parts": Entries(np.arange(6).reshape(3, 2), steps, parts)})

    table = view(opened(tmp_path / "run", fill))
    assert [row[:2] for row in rows_of(table)] == [(0, 1), (1, None), (2, 3)]
    if view is to_pandas:
        assert table["whole"].dtype == "Int64"
        assert [cell.tolist() for cell in table["parts"]] == [[0, None], [None, None], [4, 5]]
    else:
        cells = [list(row[2]) for row in rows_of(table)]
        assert cells == [[0, None], [None, None], [4, 5]]


LANES = np.array([[False, True], [True, True], [False, False]])
LANE_STEPS = {"step": np.array([[0, 7], [8, 8], [0, 0]])}  # zeros where a lane did not log


@each_view
@pytest.mark.parametrize("long", [False, True])
def test_steps_of_lanes_that_did_not_log_are_null(tmp_path, view, long):
    """Also where another name shares the row: a lane that it has logged has a step."""

    def fill(writer):
        deep = np.stack([LANES, LANES], axis=2)  # a mask may have more axes than the steps
        writer.write({"a": Entries(np.ones((3, 2)), LANE_STEPS, LANES)})
        writer.write({"b": Entries(np.ones((3, 2, 2)), LANE_STEPS, deep)})
        later = {"step": np.array([[0, 0]])}
        writer.write({"c": Entries(np.ones((1, 2)), later, np.array([[True, False]]))})
        writer.log({"plain": 1.0}, step=np.array([5, 5]))

    table = view(
        opened(tmp_path / "run", fill), names=["a", "b", "c"][: 2 if long else 3], long=long
    )
    steps = [[None, 7], [8, 8], [None, None]]
    cells = [row[1 if long else 0] for row in rows_of(table)]
    cells = [cell.tolist() if isinstance(cell, np.ndarray) else list(cell) for cell in cells]
    assert cells == (steps * 2 if long else [*steps[:2], [0, None]])
    plain = view(opened(tmp_path / "other", fill), names="plain", long=long)
    assert [list(row[1 if long else 0]) for row in rows_of(plain)] == [[5, 5]]


@each_view
def test_rows_of_a_table(tmp_path, view):
    def fill(writer):
        writer.append(["x", "", "ß"], {"grad": np.arange(6.0).reshape(3, 2), "label": [1, 2, 3]})
        writer.log({"loss": 1.0}, step=0)

    reader = opened(tmp_path / "run", fill)
    table = view(reader, ["label", "grad"])
    assert columns_of(table) == ["id", "label", "grad"]
    assert [(a, b, list(c)) for a, b, c in rows_of(table)] == [
        ("x", 1, [0.0, 1.0]),
        ("", 2, [2.0, 3.0]),
        ("ß", 3, [4.0, 5.0]),
    ]


@each_view
def test_the_long_form(tmp_path, view):
    def fill(writer):
        writer.log({"loss": 0.5, "epoch": 3}, step=0)
        writer.log({"free": True})
        writer.write({"val": Entries(np.ones(2), {"t": np.arange(2)}, np.array([True, False]))})

    table = view(opened(tmp_path / "run", fill), long=True)
    assert columns_of(table) == ["name", "step", "t", "value"]
    assert rows_of(table) == [
        ("loss", 0, None, 0.5),
        ("epoch", 0, None, 3.0),
        ("free", None, None, 1.0),
        ("val", None, 0, 1.0),
        ("val", None, 1, None),
    ]


@each_view
def test_names_without_entries(tmp_path, view):
    def fill(writer):
        writer.log({"loss": 1.0}, step=0)
        none = np.zeros(0, np.int64)
        writer.extend({"later": np.zeros((0, 2), np.int8)}, step=none)
        writer.write({"@unlogged": Entries(np.zeros(0, bool), attrs={"types": "some"})})

    reader = opened(tmp_path / "run", fill)
    assert set(reader.names) == {"loss", "later", "@unlogged"}
    assert rows_of(view(reader)) == [(0, 1.0, None)]
    assert rows_of(view(reader, "@unlogged")) == []
    assert columns_of(view(reader, "later")) == ["step", "later"]
    with pytest.raises(ArgumentError, match="'@unlogged'"):
        view(reader, ["loss", "@unlogged"])


@each_view
def test_names_without_steps(tmp_path, view):
    def fill(writer):
        writer.extend({"a": np.arange(3), "b": np.arange(3) * 2})
        writer.extend({"c": np.arange(2)})

    reader = opened(tmp_path / "run", fill)
    assert rows_of(view(reader, ["a", "b"])) == [(0, 0), (1, 2), (2, 4)]
    with pytest.raises(ArgumentError, match=r"without steps, 3 each: 'a', 'b'\n.*2 each: 'c'"):
        view(reader)


# -- refusals -------------------------------------------------------------------------------------


@each_view
def test_names_that_make_no_one_table(tmp_path, view):
    def fill(writer):
        writer.log({"loss": 1.0}, step=0)
        writer.log({"val": 1.0}, epoch=0)
        writer.log({"lane": 1.0}, step=np.arange(2))
        writer.append([1], {"grad": np.ones(1)})

    reader = opened(tmp_path / "run", fill)
    with pytest.raises(ArgumentError) as caught:
        view(reader)
    assert str(caught.value) == (
        "These names do not make one table, because their rows differ:\n"
        "  rows by id: 'grad'\n"
        "  entries by step: 'loss'\n"
        "  entries by epoch: 'val'\n"
        "  entries by step[2]: 'lane'\n"
        "Hint: choose some of them with names=[...]; long=True puts all entries into one table of "
        "name, steps and value."
    )
    with pytest.raises(ArgumentError, match=r"'step' has several types.*\[2\] for 'lane'"):
        view(reader, ["loss", "lane"], long=True)
    with pytest.raises(UnknownNameError, match=r"'grads'.*'grad'"):
        view(reader, "grads")
    reader.close()
    with pytest.raises(StoreClosedError):
        view(reader, "loss")


@each_view
def test_values_that_no_one_column_holds(tmp_path, view):
    def fill(writer):
        writer.log({"loss": 0.5, "big": 2**53 + 1, "fits": 2**53, "text": np.array("a")}, step=0)

    reader = opened(tmp_path / "run", fill)
    assert rows_of(view(reader, ["loss", "fits"], long=True))[1] == ("fits", 0, 2.0**53)
    with pytest.raises(ArgumentError, match=r"'big' has the integer 9007199254740993.*Hint"):
        view(reader, ["loss", "big"], long=True)
    with pytest.raises(ArgumentError, match=r"One column cannot hold.*'text'.*Hint"):
        view(reader, ["loss", "text"], long=True)


@pytest.mark.parametrize(
    ("view", "package"), [(to_arrow, "pyarrow"), (to_pandas, "pandas"), (to_polars, "polars")]
)
def test_packages_are_asked_for_by_name(tmp_path, monkeypatch, view, package):
    reader = opened(tmp_path / "run", lambda writer: writer.log({"x": 1}, step=0))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        MissingPackageError, match=rf"{view.__name__}\(\) needs.*'{package}'.*\[arr"
    ):
        view(reader)


def test_pandas_does_without_pyarrow(tmp_path, monkeypatch):
    reader = opened(tmp_path / "run", lambda writer: writer.log({"x": 1}, step=0))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert rows_of(to_pandas(reader)) == [(0, 1)]
