"""Fanout, Every, Select, Prefix and Reduce, each against what it should be in plain numpy."""

import itertools
import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog._reductions import KINDS
from sawlog.errors import (
    ArgumentError,
    LogMismatchError,
    LogValueError,
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
from sawlog.testing import assert_same
from tests.thorough import examples

from .failing import Failing


def records(**arrays):
    return Records({name: Entries(np.asarray(array)) for name, array in arrays.items()})


@st.composite
def chunks(draw, masked=True):
    """The number of entries of each write, and for each entry whether it was logged."""
    sizes = draw(st.lists(st.integers(0, 7), min_size=1, max_size=6))
    total = sum(sizes)
    mask = draw(st.none() | st.lists(st.booleans(), min_size=total, max_size=total))
    return np.cumsum([0, *sizes]), None if mask is None else np.array(mask, bool)


def write_in_chunks(sink, ends, values, steps, mask):
    for start, stop in itertools.pairwise(ends):
        part = slice(start, stop)
        own = None if mask is None else mask[part]
        sink.write(Records({"x": Entries(values[part], {"step": steps[part]}, own)}))


# ---- Fanout


def test_fanout_gives_everything_to_all_that_work():
    one, bad, two = MemorySink(), Failing("write", "flush", "close"), MemorySink()
    sink = Fanout(one, bad, two)
    with pytest.raises(FanoutError, match=r"1 of 3 sinks failed to write.*network is gone") as e:
        sink.write(records(x=[1]))
    assert e.value.exceptions == (bad.error,)
    assert one.logs["x"].tolist() == two.logs["x"].tolist() == [1]
    with pytest.raises(FanoutError, match="failed to flush"):
        sink.flush()
    with pytest.raises(FanoutError, match="failed to close"):
        sink.close()
    assert [one.closed, two.closed, sink.closed] == [True, True, False]
    bad.methods.clear()
    sink.close()
    assert [bad.closed, sink.closed] == [True, True]


def test_fanout_collects_errors_of_different_kinds():
    sink = Fanout(Failing("write"), Failing("write", error=ValueError("no")))
    caught = []
    try:
        sink.write(records(x=[1]))
    except* OSError as group:
        caught.append(group)
    except* ValueError as group:
        caught.append(group)
    assert [type(group.exceptions[0]) for group in caught] == [OSError, ValueError]
    assert all(isinstance(group, FanoutError) for group in caught)


def test_fanout_needs_sinks():
    with pytest.raises(ArgumentError, match="at least one"):
        Fanout()
    for wrong in (None, "run.csv", MemorySink):
        with pytest.raises(ArgumentError, match="write, flush and close"):
            Fanout(wrong)


# ---- Every


@examples(25, 60)
@given(chunks(), st.integers(1, 5))
def test_every_counts_what_was_logged(cut, n):
    ends, mask = cut
    values = np.arange(ends[-1])
    memory = MemorySink()
    write_in_chunks(Every(memory, n), ends, values, values * 10, mask)
    expected = (values if mask is None else values[mask])[::n]
    if ends[-1]:
        assert memory.logs.get("x", np.array([])).tolist() == expected.tolist()
        steps = memory.records["x"].steps["step"] if len(expected) else expected
        assert steps.tolist() == (expected * 10).tolist()


def test_every_counts_each_name_by_itself_and_not_what_was_refused():
    inner = Failing("write")
    sink = Every(inner, 2)
    with pytest.raises(OSError, match="network"):
        sink.write(records(x=[0], y=[0]))
    inner.methods.clear()
    sink.write(records(x=[0], y=[0]))
    sink.write(records(x=[1]))
    sink.write(records(x=[2], y=[1]))
    assert {name: array.tolist() for name, array in inner.logs.items()} == {"x": [0, 2], "y": [0]}


def test_every_by_step():
    memory = MemorySink()
    steps = np.array([3, 4, 5, 10, 15])
    Every(memory, 5, axis="step").write(Records({"x": Entries(steps * 1.0, {"step": steps})}))
    assert memory.logs["x"].tolist() == [5.0, 10.0, 15.0]


def test_every_by_step_of_each_seed():
    memory = MemorySink()
    steps = np.array([[0, 1], [1, 2], [3, 3], [4, 5]])
    mask = np.array([[True, True], [True, True], [True, True], [False, True]])
    Every(memory, 2, axis="step").write(Records({"x": Entries(steps + 0.5, {"step": steps}, mask)}))
    assert memory.records["x"].values.tolist() == [[0.5, 1.5], [1.5, 2.5]]
    assert memory.records["x"].mask.tolist() == [[True, False], [False, True]]


@pytest.mark.parametrize("steps", [{}, {"epoch": np.zeros(1, int)}, {"step": np.zeros(1)}])
def test_every_by_a_step_that_is_not_there(steps):
    memory = MemorySink()
    with pytest.raises(LogMismatchError, match=r"'x' has no step axis 'step'.*Hint"):
        Every(memory, 5, axis="step").write(Records({"x": Entries(np.ones(1), steps)}))
    assert memory.logs == {}


@pytest.mark.parametrize("n", [0, -1, 1.5, "2", True, None])
def test_a_count_is_a_whole_number(n):
    for make in (Every, Reduce):
        with pytest.raises(ArgumentError, match=re.escape(repr(n))):
            make(MemorySink(), n)


# ---- Select and Prefix


@pytest.mark.parametrize(
    ("names", "exclude", "left"),
    [
        ("loss", None, ["loss"]),
        (["train/*"], None, ["train/loss", "train/x[0]"]),
        ("train/*", "*loss", ["train/x[0]"]),
        (None, ["train/*", "loss"], ["x0"]),
        ("train/x[0]", None, ["train/x[0]"]),
        ("x[0-9]", None, ["x0"]),
        ("LOSS", None, []),
        ([], None, []),
    ],
)
def test_select(names, exclude, left):
    memory = MemorySink()
    given = {name: Entries(np.ones(1)) for name in ("loss", "train/loss", "train/x[0]", "x0")}
    Select(memory, names, exclude=exclude).write(Records(given))
    assert list(memory.logs) == left


def test_a_pytree_is_meant_by_its_key():
    leaf = Entries(np.ones(1), attrs={"logdict": {"key": "params", "leaf": 1}})
    memory = MemorySink()
    Prefix(Select(memory, "run/params"), "run/").write(Records({"params['w']": leaf}))
    assert memory.records["run/params['w']"].attrs == {"logdict": {"key": "run/params", "leaf": 1}}


@pytest.mark.parametrize("wrong", [1, [1], ["a", None]])
def test_patterns_are_strings(wrong):
    with pytest.raises(ArgumentError, match=r"must be a pattern.*Hint"):
        Select(MemorySink(), wrong)
    with pytest.raises(ArgumentError, match="exclude"):
        Select(MemorySink(), exclude=wrong)
    with pytest.raises(ArgumentError, match="needs `names`"):
        Select(MemorySink())
    with pytest.raises(ArgumentError, match="prefix"):
        Prefix(MemorySink(), wrong)


# ---- Reduce

NUMPY = {
    "mean": np.mean,
    "last": lambda block, axis: block[-1],
    "replace": lambda block, axis: block[-1],
    "first": lambda block, axis: block[0],
    "max": np.max,
    "min": np.min,
    "sum": np.sum,
    "std": np.std,
    "var": np.var,
    "count": lambda block, axis: np.full(block.shape[1:], len(block), np.int32),
}
KEPT = {"first": 0}  # whose step a reduced entry has; the last one's unless named here


def test_every_reduction_is_checked():
    assert set(NUMPY) == set(KINDS)


@examples(30, 80)
@given(chunks(), st.integers(1, 5), st.sampled_from(sorted(NUMPY)), st.sampled_from("fi"))
def test_reduce_is_numpy_on_blocks(cut, n, how, kind):
    ends, mask = cut
    values = np.random.default_rng(ends[-1]).integers(-9, 9, (ends[-1], 2)).astype(f"{kind}8")
    steps = np.arange(ends[-1])
    memory = MemorySink()
    with Reduce(memory, n, how) as sink:
        write_in_chunks(sink, ends, values, steps, mask)
    there = np.ones(ends[-1], bool) if mask is None else mask
    left, at = values[there], steps[there]
    blocks = [slice(start, start + n) for start in range(0, len(left), n)]
    if not blocks:
        assert all(not len(array) for array in memory.logs.values())
        return
    expected = np.stack([NUMPY[how](left[block], axis=0) for block in blocks])
    np.testing.assert_allclose(memory.logs["x"], expected, rtol=1e-12)
    assert memory.logs["x"].dtype == expected.dtype
    assert memory.records["x"].steps["step"].tolist() == [
        at[block][KEPT.get(how, -1)] for block in blocks
    ]


@examples(25, 60)
@given(st.integers(0, 2**16 - 1), st.sampled_from(sorted(NUMPY)))
def test_reduce_with_a_mask_of_parts(bits, how):
    """Each item is reduced over the entries that have it; items that none has are masked."""
    mask = np.array([bits >> i & 1 for i in range(16)], bool).reshape(4, 4)
    values = np.random.default_rng(bits).normal(size=(4, 4, 2))
    steps = np.arange(16).reshape(4, 4)
    memory = MemorySink()
    with Reduce(memory, 4, how) as sink:
        sink.write(Records({"x": Entries(values, {"step": steps}, mask)}))
    if not mask.any():
        assert "x" not in memory.logs
        return
    [found], [at] = memory.records["x"].values, memory.records["x"].steps["step"]
    has = mask.any(axis=0)
    left = memory.records["x"].mask
    assert (np.ones(4, bool) if left is None else left[0]).tolist() == has.tolist()
    for item in np.flatnonzero(has):
        own = values[mask[:, item], item]
        np.testing.assert_allclose(found[item], NUMPY[how](own, axis=0), rtol=1e-12, atol=1e-12)
        assert at[item] == steps[mask[:, item], item][KEPT.get(how, -1)]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16, np.complex64])
@pytest.mark.parametrize("how", ["mean", "sum", "last", "first"])
def test_reduce_keeps_the_dtype_of_floats(dtype, how):
    memory = MemorySink()
    Reduce(memory, 2, how).write(records(x=np.array([1, 3], dtype)))
    expected = {"mean": 2, "sum": 4, "last": 3, "first": 1}[how]
    assert_same(memory.records["x"].values, np.array([expected], dtype))


def test_reduce_adds_up_in_double_precision():
    memory = MemorySink()
    values = np.full(10_000, 0.1, np.float32)
    Reduce(memory, 10_000, "mean").write(records(x=values))
    assert memory.logs["x"] == np.float32(0.1)


@pytest.mark.parametrize(("how", "spread"), [("std", np.std), ("var", np.var)])
@pytest.mark.parametrize("masked", [False, True])
def test_the_spread_of_complex_numbers_is_real(masked, how, spread):
    memory, values = MemorySink(), np.array([1 + 2j, 3 - 1j, -2j, 9], np.complex64)
    mask = np.array([True, True, True, False]) if masked else None
    Reduce(memory, 3, how).write(Records({"x": Entries(values, mask=mask)}))
    assert memory.logs["x"].dtype == np.float32
    np.testing.assert_allclose(memory.logs["x"], [spread(values[:3])], rtol=1e-6)


def test_steps_are_joined_by_their_names_and_dtypes_are_not_mixed():
    memory = MemorySink()
    sink = Reduce(memory, 2, "last")
    for turn, axes in enumerate((("step", "epoch"), ("epoch", "step"))):
        steps = {axis: np.array([turn + 10 * (axis == "epoch")]) for axis in axes}
        sink.write(Records({"x": Entries(np.ones(1), steps)}))
    assert {a: s.tolist() for a, s in memory.records["x"].steps.items()} == {
        "step": [1],
        "epoch": [11],
    }
    sink.write(records(y=np.ones(1, np.float32)))
    with pytest.raises(LogMismatchError, match="float32"):
        sink.write(records(y=np.ones(1, np.float64)))


def test_reduce_by_name():
    memory = MemorySink()
    sink = Reduce(memory, 2, {"*": "last", "loss": "mean", "max_*": "max"})
    sink.write(records(loss=[1.0, 2.0], max_a=[5, 4], other=["a", "b"]))
    assert {n: a.tolist() for n, a in memory.logs.items()} == {
        "loss": [1.5],
        "max_a": [4],  # "*" comes first
        "other": ["b"],
    }


def test_reduce_flush_lets_the_rest_go():
    memory = MemorySink()
    sink = Reduce(memory, 3, "sum")
    sink.write(records(x=[1, 2, 3, 4]))
    assert memory.logs["x"].tolist() == [6]
    sink.flush()
    assert memory.logs["x"].tolist() == [6, 4]
    sink.flush()
    sink.write(records(x=[5, 6, 7]))
    assert memory.logs["x"].tolist() == [6, 4, 18]


def test_reduce_loses_nothing_where_the_sink_fails():
    inner = Failing("write")
    sink = Reduce(inner, 2, "sum")
    sink.write(records(x=[1]))
    with pytest.raises(OSError, match="network"):
        sink.write(records(x=[2]))
    with pytest.raises(OSError, match="network"):
        sink.close()
    inner.methods.clear()
    sink.write(records(x=[2, 3]))
    sink.close()
    assert inner.logs["x"].tolist() == [3, 3]


@pytest.mark.parametrize(
    ("how", "values", "error", "text"),
    [
        ("mean", ["a"], LogValueError, "'x' has the dtype <U1, which has no 'mean'"),
        ("max", [1j], LogValueError, "no 'max'"),
        ("sum", np.array(["2020"], "M8[D]"), LogValueError, "no 'sum'"),
        ({"y": "sum"}, [1], ArgumentError, "'x' is not among"),
    ],
)
def test_reduce_refuses_at_once(how, values, error, text):
    memory = MemorySink()
    sink = Reduce(memory, 2, how)
    with pytest.raises(error, match=f"{re.escape(text)}.*Nothing of the call.*Hint"):
        sink.write(records(x=values))
    sink.close()
    assert memory.logs == {}


def test_reduce_refuses_what_does_not_go_with_its_block():
    sink = Reduce(MemorySink(), 3, "sum")
    sink.write(records(x=[1.0]))
    for wrong in (records(x=[1]), records(x=[[1.0]])):
        with pytest.raises(LogMismatchError, match=r"'x' was first written with values.*float64"):
            sink.write(wrong)
    with pytest.raises(LogMismatchError, match="step axes"):
        sink.write(Records({"x": Entries(np.ones(1), {"step": np.ones(1)})}))


@pytest.mark.parametrize("how", ["median", None, {}, {"x": "median"}, {1: "mean"}])
def test_unknown_reductions(how):
    with pytest.raises(ArgumentError, match=r"`how` must be one of 'mean', 'sum'.*Hint"):
        Reduce(MemorySink(), 2, how)


def test_counts_beside_the_values_are_let_through():
    """How many entries did not fit is no value, and a series may have nothing but notes."""
    dropped = Entries(np.array([3]), attrs={"logdict": {"role": "dropped", "key": "x"}})
    notes = Entries(np.zeros(0, bool), attrs={"logdict": {"role": "unlogged"}})
    for make in (lambda m: Every(m, 100), lambda m: Reduce(m, 100, "mean")):
        memory = MemorySink()
        sink = make(memory)
        sink.write(records(x=[0.0]))
        for _ in range(2):
            sink.write(Records({"x@dropped": dropped, "@unlogged": notes}))
        assert memory.logs["x@dropped"].tolist() == [3, 3]
        assert memory.records["@unlogged"].attrs == notes.attrs


# ---- all of them


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
