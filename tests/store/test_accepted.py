"""The chain of states of a writer: what a call adds, and what it leaves to the next."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from sawlog.records import Entries
from sawlog.store._format._schema import Column, Series
from sawlog.store._writing import _accepted
from sawlog.store._writing._accepted import WriterCall, WriterState
from sawlog.store._writing._id_set import IdSet

SERIES = Series(Column("x", np.dtype("f8")))


def staged(base: WriterState, number: float, nested: bool = False) -> WriterCall:
    call = WriterCall(base, nested, largest=100)
    call.chunk(SERIES).add_entries(call.key, Entries(np.array([number])), 100)
    call.count(8)
    return call


def accepted(call: WriterCall) -> WriterState:
    assert call.commit()
    return call._base.after[0]


def values(state_or_parts: Any) -> list[float]:
    parts = getattr(state_or_parts, "parts", None)
    if parts is None:
        parts = state_or_parts.pending.filled(None)
    return [x for chunk, extent in parts for x in chunk.tensors(extent)["x"].tolist()]


def test_the_interval_begins_with_the_first_of_the_pending_data(monkeypatch: Any) -> None:
    """A program that writes all the time must not put its publication off for ever."""
    now = [10.0]
    monkeypatch.setattr(_accepted.time, "monotonic", lambda: now[0])
    state = accepted(staged(WriterState(), 1.0))
    now[0] = 99.0
    state = accepted(staged(state, 2.0))
    assert (state.since, state.nbytes) == (10.0, 16)
    call = WriterCall(state, False, 100)
    call.seal()
    state = accepted(call)
    assert (state.since, state.nbytes) == (None, 0)
    assert accepted(staged(state, 3.0)).since == 99.0


def test_only_the_first_of_two_calls_is_accepted() -> None:
    base = WriterState()
    one, two = staged(base, 1.0), staged(base, 2.0)
    assert two.commit()
    assert not one.commit()
    assert base.after[0].added is two.key


def test_a_nested_call_has_buffers_of_its_own() -> None:
    """The call that it interrupted still writes behind the data of the sealed segment."""
    state = accepted(staged(WriterState(), 1.0))
    interrupted = staged(state, 2.0)
    call = staged(state, 3.0, nested=True)
    (sealed,) = call._queue
    assert sealed.memory is None
    assert values(sealed) == [1.0]
    after = accepted(call)
    after.added.settle()
    assert values(after) == [3.0]
    assert not interrupted.commit()
    assert values(after) == [3.0]


def test_a_nested_call_where_nothing_is_pending() -> None:
    base = WriterState()
    interrupted = staged(base, 2.0)
    after = accepted(staged(base, 3.0, nested=True))
    after.added.settle()
    assert after.pending is not base.pending
    assert values(after) == [3.0]
    assert not interrupted.commit()


def test_segments_stay_in_order_and_leave_some_of_their_memory() -> None:
    state = WriterState()
    for number in range(8):
        call = staged(state, float(number))
        call.seal()
        state = accepted(call)
        state.added.settle()
    assert [values(sealed) for sealed in state.queue] == [[float(n)] for n in range(8)]
    assert [sealed.sequence for sealed in state.queue] == list(range(1, 9))
    for sealed in (state.queue[0], state.queue[2], *state.queue[3:7]):
        sealed.finish()
    state = accepted(WriterCall(state, False, 100))
    assert [sealed.sequence for sealed in state.queue] == [2, 8]
    assert len(state.spare) == 3
    assert WriterCall(state, False, 100).idle is False


@pytest.mark.parametrize(("largest", "kept"), [(8, True), (7, False)])
def test_the_memory_of_large_segments_is_let_go(largest: int, kept: bool) -> None:
    call = WriterCall(WriterState(), False, largest)
    call.chunk(SERIES).add_entries(call.key, Entries(np.array([1.0])), 100)
    call.count(8)
    call.seal()
    assert (call._queue[0].memory is not None) is kept


def test_a_set_of_ids_has_few_runs() -> None:
    """Lookups go through every run, so there must be few however many calls added ids."""
    known = IdSet("int")
    for number in np.random.default_rng(0).permutation(500).tolist():
        known.add(np.array([number], np.int64))
        sizes = [len(run) for run in known._runs]
        assert all(2 * small <= large for large, small in itertools.pairwise(sizes))
        assert len(sizes) <= 1 + math.log2(sum(sizes))
    assert known.has(np.arange(500)).all()
