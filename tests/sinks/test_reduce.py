"""The sink Reduce against plain numpy."""

import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog._reductions import REDUCTION_KINDS
from sawlog.errors import (
    ArgumentError,
    LogMismatchError,
    LogValueError,
)
from sawlog.records import Entries, Records
from sawlog.sinks import (
    Every,
    MemorySink,
    Reduce,
)
from sawlog.testing import assert_same
from tests.thorough import examples

from .combinator_helpers import chunks, records, write_in_chunks
from .failing import Failing

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
    assert set(NUMPY) == set(REDUCTION_KINDS)


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


@pytest.mark.parametrize("how", ["mean", "sum"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.complex64])
def test_sums_of_any_floats_are_in_double_precision(dtype, how):
    """Small numbers behind a large one would be rounded away one by one."""
    memory, count = MemorySink(), 4001
    values = np.full(count, 0.25, dtype)
    values[0] = 2**12 if dtype == np.float16 else 2**24
    Reduce(memory, count, how).write(records(x=values))
    wanted = getattr(np, how)(values.astype(np.result_type(dtype, np.float64)))
    np.testing.assert_array_equal(memory.logs["x"], [np.asarray(wanted).astype(dtype)])


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
