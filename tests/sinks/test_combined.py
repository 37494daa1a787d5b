"""Combinators together: alignments that are not the natural ones, one validation, one copy."""

import numpy as np
import pytest

from sawlog.errors import (
    LogMismatchError,
    StoreClosedError,
)
from sawlog.records import Entries, Records
from sawlog.sinks import (
    Async,
    Every,
    Fallback,
    Fanout,
    FanoutError,
    MemorySink,
    Prefix,
    Reduce,
    Select,
    Timeout,
    _base,
    _fallback,
)
from sawlog.sinks._entries import joined, logged
from sawlog.sinks._values import Kind, groups

from .combinator_helpers import records
from .failing import Failing

AROUND = [
    lambda sink: Fanout(sink),
    lambda sink: Every(sink, 1),
    lambda sink: Select(sink, "*"),
    lambda sink: Prefix(sink, ""),
    lambda sink: Reduce(sink, 1),
]


@pytest.mark.parametrize("around", AROUND)
def test_closing_reaches_the_inside(around):
    inner = MemorySink()
    sink = around(inner)
    sink.close()
    assert inner.closed
    for call in (sink.flush, lambda: sink.write(records(x=[1]))):
        with pytest.raises(StoreClosedError, match=r"closed.*Hint"):
            call()


@pytest.mark.parametrize("around", AROUND)
def test_a_program_that_fails_and_a_sink_that_does(around):
    sink = around(Failing("close"))

    def program():
        with sink:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        program()
    assert "could not be closed" in caught.value.__notes__[0]
    with pytest.raises((OSError, FanoutError)), sink:
        pass


def test_masks_have_to_fit():
    for mask in (np.ones(2), np.ones((2, 2), bool)):
        with pytest.raises(LogMismatchError, match="mask of 'x'"):
            MemorySink().write(Records({"x": Entries(np.ones((2, 3)), mask=mask)}))


def test_memory_refuses_what_does_not_go_together_as_a_whole():
    sink = MemorySink()
    sink.write(records(x=[1.0], y=[1]))
    with pytest.raises(LogMismatchError, match="'y'"):
        sink.write(records(x=[2.0], y=[1.5]))
    assert sink.logs["x"].tolist() == [1.0]
    sink.write(Records({"x": Entries(np.ones(1), mask=np.zeros(1, bool))}))
    assert sink.logs["x"].tolist() == [1.0]
    assert sink.records["x"].mask.tolist() == [True, False]
    sink.clear()
    assert sink.logs == {}


# ---- alignments that are not the natural ones


def test_reduce_joins_masks_of_different_depth():
    """A shallow mask first, then one for each item, then none."""
    sink = MemorySink()
    with Reduce(sink, 6, "sum") as around:
        around.write(Records({"x": Entries(np.full((2, 2), 5.0), mask=np.array([True, True]))}))
        deep = np.array([[True, False], [False, True]])
        around.write(Records({"x": Entries(np.array([[1.0, 99.0], [99.0, 2.0]]), mask=deep)}))
        around.write(Records({"x": Entries(np.full((2, 2), 100.0))}))
    assert sink.records["x"].values.tolist() == [[211.0, 212.0]]
    shallow, deep_first = (
        Entries(np.ones((2, 2)), mask=np.array([True, True])),
        Entries(np.ones((2, 2)), mask=deep),
    )
    assert joined([shallow, deep_first]).mask.tolist() == [[True, True]] * 2 + deep.tolist()
    assert joined([deep_first, shallow]).mask.tolist() == deep.tolist() + [[True, True]] * 2


def test_reduce_keeps_what_waits_of_names_that_are_not_written():
    sink = MemorySink()
    around = Reduce(sink, 2, "sum")
    around.write(Records({"a": Entries(np.array([1.0]))}))
    around.write(Records({"b": Entries(np.array([10.0, 20.0]))}))
    around.write(Records({"a": Entries(np.array([2.0]))}))
    assert {name: found.tolist() for name, found in sink.logs.items()} == {"b": [30], "a": [3]}


def test_reduce_keeps_no_memory_of_the_caller():
    """What is left over of a call is there as it was, though the caller uses its arrays again."""
    sink = MemorySink()
    around = Reduce(sink, 2, "sum")
    values, steps, mask = np.array([1.0, 2.0, 4.0]), np.arange(3), np.array([True, True, True])
    around.write(Records({"x": Entries(values, {"step": steps}, mask)}))
    values[:], steps[:], mask[:] = 99, 99, False
    around.close()
    assert sink.records["x"].values.tolist() == [3, 4]
    assert sink.records["x"].steps["step"].tolist() == [1, 2]
    sink = MemorySink()
    few, value = Reduce(sink, 3, "sum"), np.array([1.0])
    for number in (1.0, 2.0):  # not even one block
        value[:] = number
        few.write(Records({"y": Entries(value)}))
    few.close()
    assert sink.records["y"].values.tolist() == [3]


@pytest.mark.parametrize("method", ["flush", "close"])
def test_what_reduce_holds_back_is_as_safe_as_the_rest(method):
    seen = []

    class Noting(MemorySink):
        def _write(self, records):
            seen.append("write")

        def _flush(self):
            seen.append("flush")

        def _close(self):
            seen.append("close")

    sink = Reduce(Noting(), 3, "sum")
    sink.write(records(x=[1.0]))
    getattr(sink, method)()
    assert seen == ["write", method]


def test_a_mask_without_items_leaves_nothing_out():
    sink = MemorySink()
    empty = Entries(np.zeros((3, 0)), {"step": np.arange(3)}, np.zeros((3, 0), bool))
    Every(sink, 2).write(Records({"x": empty}))
    assert sink.records["x"].steps["step"].tolist() == [0, 2]


def test_a_mask_that_says_nothing_is_no_mask():
    full = Entries(np.zeros((2, 3, 4)), mask=np.array([[True] * 3, [True] * 3]))
    half = Entries(np.zeros((2, 3, 4)), mask=np.array([[True] * 3, [False] * 3]))
    for entries in (full, half):
        assert logged(entries).mask is None
        (group,) = groups(Records({"x": entries}), {}, images=True, histograms=True)
        assert group.columns["x"].kind is Kind.IMAGE


def test_prefix_of_names_that_were_never_logged():
    unlogged = {"logdict": {"role": "unlogged", "types": {"loss": {"shapes": [[]]}}}}
    sink = MemorySink()
    Prefix(sink, "p/").write(Records({"@unlogged": Entries(np.zeros(0, bool), attrs=unlogged)}))
    found = sink.records["p/@unlogged"].attrs["logdict"]
    assert found == {"role": "unlogged", "types": {"p/loss": {"shapes": [[]]}}}


def test_fanout_fails_all_of_its_sinks():
    sinks = MemorySink(), MemorySink(), MemorySink()
    Fanout(*sinks).fail()
    assert [sink.failed for sink in sinks] == [True] * 3


# ---- one validation, one copy


@pytest.mark.parametrize("outermost", [Async, lambda sink: sink])
def test_nested_sinks_validate_and_copy_once(tmp_path, monkeypatch, outermost):
    calls = []
    for module, name in (
        (_base, "normal"),
        (_base, "copied_records"),
        (_fallback, "copied_records"),
    ):
        function = getattr(module, name)
        seen = lambda r, name=name, function=function: calls.append(name) or function(r)
        monkeypatch.setattr(module, name, seen)
    memory, values = MemorySink(), np.arange(3)
    nested = Fallback(Fanout(Timeout(Prefix(memory, "a/"), 60.0)), tmp_path / "spare")
    with outermost(nested) as sink:
        sink.write(records(x=values))
        values[:] = 7  # the caller may
    assert memory.logs["a/x"].tolist() == [0, 1, 2]
    copies = 1 if outermost is Async else 2  # Fallback and Timeout keep what they did not get
    assert sorted(calls) == ["copied_records"] * copies + ["normal"]


def test_sinks_with_a_write_of_their_own_are_called_by_it():
    class Doubling(MemorySink):
        def write(self, records):
            super().write({n: Entries(2 * each.values) for n, each in records.items()})

    doubling, patched, got = Doubling(), MemorySink(), []
    patched.write = got.append
    Fanout(doubling, patched).write(records(x=[1]))
    assert doubling.logs["x"].tolist() == [2]
    assert list(got[0]) == ["x"]
    assert not patched.logs
