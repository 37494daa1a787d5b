"""Fanout, Every, Select and Prefix, each against what it should be in plain numpy."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog.errors import (
    ArgumentError,
    LogMismatchError,
)
from sawlog.records import Entries, Records
from sawlog.sinks import (
    Every,
    Fanout,
    FanoutError,
    MemorySink,
    Prefix,
    Reduce,
    Select,
)
from tests.thorough import examples

from .combinator_helpers import chunks, records, write_in_chunks
from .failing import Failing


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
