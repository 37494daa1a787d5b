"""Buffers of what is not published yet, and their second use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sawlog.records import Entries
from sawlog.store._format._schema import Column, Series, Table
from sawlog.store._writing._pending import ChunkBuffer, Extent
from sawlog.store._writing._stage_entries import one_entry
from sawlog.store._writing._validate_write import entry_values, shared_step

SERIES = Series(Column("x", np.dtype("f8")), (Column("step", np.dtype("i8")),))


def entries(values: list[float], mask: list[bool] | None = None, **attrs: Any) -> Entries:
    steps = {"step": np.arange(len(values))}
    own = None if mask is None else np.array(mask)
    return Entries(np.array(values), steps, own, attrs)


def filled(chunk: ChunkBuffer, *parts: Entries) -> Extent:
    for part in parts:
        call = object()
        chunk.add_entries(call, part, 100)
        chunk.settle(call)
    return chunk.extent(None)


@pytest.mark.parametrize("again", [False, True])
def test_a_mask_never_comes_from_what_was_there_before(again: bool) -> None:
    chunk = ChunkBuffer(SERIES)
    if again:
        filled(chunk, entries([1.0] * 4, [False] * 4), entries([1.0] * 8, [False] * 8))
        chunk = chunk.recycled()
        plain = filled(chunk.recycled(), entries([1.0]))
        assert not plain.masked
        assert "mask" not in chunk.describe(plain)
        assert set(chunk.tensors(Extent())) == {"x", "sawlog.step/step/x"}
    extent = filled(chunk, entries([2.0, 3.0]), entries([4.0], [False]), entries([5.0]))
    assert extent == Extent(4, 0, True)
    tensors = chunk.tensors(extent)
    assert tensors["sawlog.mask/x"].tolist() == [True, True, False, True]
    assert tensors["x"].tolist() == [2.0, 3.0, 4.0, 5.0]
    assert tensors["sawlog.step/step/x"].tolist() == [0, 1, 0, 0]


def test_what_a_caller_changes_afterwards() -> None:
    """Small and large, first and later, nothing is a view of the caller's memory."""
    for size in (1, 1000):
        for times in (1, 2):
            values, chunk = np.ones(size), ChunkBuffer(Series(Column("x", np.dtype("f8"))))
            extent = filled(chunk, *[Entries(values)] * times)
            values[:] = 0
            assert chunk.tensors(extent)["x"].tolist() == [1.0] * times * size


@pytest.mark.parametrize("reuse", ["an interrupted call", "recycled"])
def test_arrays_that_buffers_share_are_never_written_to(reuse: str) -> None:
    """The steps of one `log` are one array for all names, and an interrupted call has them too."""
    one = one_entry(entry_values({}, {"x": 1.0})["x"], {"step": shared_step("step", 7)})
    first, second = ChunkBuffer(SERIES), ChunkBuffer(SERIES)
    first.add_entries(object(), one, 100)  # not settled
    extent = filled(second, one)
    if reuse == "recycled":
        first = first.recycled()
    later = one_entry(entry_values({}, {"x": 2.0})["x"], {"step": shared_step("step", 8)})
    found = filled(first, later)
    assert [a.tolist() for a in first.tensors(found).values()] == [[2.0], [8]]
    assert [a.tolist() for a in second.tensors(extent).values()] == [[1.0], [7]]


def test_a_call_that_did_not_end_is_written_over() -> None:
    chunk = ChunkBuffer(SERIES)
    extent = filled(chunk, entries([1.0], note=1))
    chunk.add_entries(object(), entries([7.0, 8.0], [False, False], note=2), 100)
    assert chunk.extent(None) == extent
    extent = filled(chunk, entries([2.0], note=1), entries([3.0], note=3))
    assert chunk.tensors(extent)["x"].tolist() == [1.0, 2.0, 3.0]
    assert chunk.describe(extent) == {
        "series": "x",
        "rows": 3,
        "steps": ["step"],
        "attrs": [[2, {"note": 1}], [1, {"note": 3}]],
    }


def test_rows_are_stored_in_the_type_of_their_column() -> None:
    table = Table((Column("a", np.dtype("<f4"), (2,)), Column("s", np.dtype("<U4"))))
    chunk, call = ChunkBuffer(table), object()
    values = np.arange(8, dtype=">f4").reshape(4, 2)
    for part in (slice(0, 1), slice(1, 4)):
        ids, texts = np.arange(4)[part], np.array(["a", "bcd", "", "e"])[part]
        chunk.add_rows(call, ids, {"a": values[part], "s": texts}, 4)
    tensors = chunk.tensors(chunk.extent(call))
    assert tensors["a"].dtype == "<f4"
    assert np.array_equal(tensors["a"], values)
    assert tensors["s"].dtype == "<U4"
    assert tensors["s"].tolist() == ["a", "bcd", "", "e"]
    assert tensors["sawlog.ids/a"].tolist() == [0, 1, 2, 3]


def test_ids_of_a_call_that_did_not_end_are_written_over() -> None:
    chunk = ChunkBuffer(Table((Column("a", np.dtype("<f4")),), "str"))
    for ids in (["one"], ["two", "three"], ["four"]):
        call = object()
        chunk.add_rows(call, ids, {"a": np.zeros(len(ids))}, 4)
        if "two" not in ids:
            chunk.settle(call)
    tensors = chunk.tensors(chunk.extent(None))
    assert tensors["sawlog.ids.text/a"].tobytes() == b"onefour"
    assert tensors["sawlog.ids.ends/a"].tolist() == [3, 7]


def test_notes_of_an_interrupted_call_are_not_described() -> None:
    """What a call staged and did not settle is behind what counts."""
    chunk = ChunkBuffer(SERIES)
    extent = filled(chunk, entries([1.0, 2.0], note=1), entries([3.0], note=2))
    interrupted = object()
    chunk.add_entries(interrupted, entries([4.0, 5.0], note=3), 100)
    assert chunk.extent(None) == extent == chunk.extent(object())
    wanted = [[2, {"note": 1}], [1, {"note": 2}]]
    assert chunk.describe(extent)["attrs"] == wanted
    assert chunk.tensors(extent)["x"].tolist() == [1.0, 2.0, 3.0]
    staged = chunk.extent(interrupted)
    assert chunk.describe(staged)["attrs"] == [*wanted, [2, {"note": 3}]]
    again = filled(chunk, entries([6.0], note=4))
    assert chunk.describe(again)["attrs"] == [*wanted, [1, {"note": 4}]]
    assert chunk.tensors(again)["x"].tolist() == [1.0, 2.0, 3.0, 6.0]


def test_rows_that_a_caller_changes_afterwards() -> None:
    """Values and ids of the first call are copies, whatever their dtype."""
    table = Table((Column("x", np.dtype("f8")),), "int")
    for dtype in ("f8", "f4"):
        chunk, call = ChunkBuffer(table), object()
        values, ids = np.arange(3, dtype=dtype), np.arange(3)
        chunk.add_rows(call, ids, {"x": values}, 100)
        values[:], ids[:] = -1, -1
        chunk.settle(call)
        tensors = chunk.tensors(chunk.extent(None))
        assert tensors["x"].tolist() == [0, 1, 2]
        assert [each.tolist() for name, each in tensors.items() if name != "x"] == [[0, 1, 2]]


def test_masks_of_one_buffer_have_the_same_axes() -> None:
    series = Series(Column("x", np.dtype("f8"), (3, 2)), (Column("step", np.dtype("i8")),))
    chunk, call = ChunkBuffer(series), object()
    own = np.array([[True, False, True]] * 2)
    assert chunk.takes(call, own)
    chunk.add_entries(call, Entries(np.zeros((2, 3, 2)), {"step": np.arange(2)}, own, {}), 100)
    assert chunk.takes(call, None)
    assert chunk.takes(call, own[:1])
    assert not chunk.takes(call, own[:, 0])
    assert not chunk.takes(call, own[:, :2])
    assert not chunk.takes(call, np.ones((2, 3, 2), bool))
    assert chunk.takes(object(), own[:, 0])  # the other call did not end
