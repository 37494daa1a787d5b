"""Async and Timeout at moments that threads seldom reach: each step is made by hand."""

import os

import numpy as np
import pytest

import sawlog.store
from sawlog.errors import (
    LogMismatchError,
    SinkTimeoutError,
    StoreClosedError,
    StoreExistsError,
)
from sawlog.records import Entries, Records
from sawlog.sinks import AsyncError, MemorySink, StoreSink, Timeout
from sawlog.sinks import _async as own

from .failing import Failing, Slow, within


def one(i):
    return Records({"x": Entries(np.array([i]))})


def numbers(several):
    return [int(records["x"].values[0]) for records in several]


class LateWorker:
    """A thread that gets the processor only while somebody waits for it."""

    def __init__(self):
        self.tasks = []

    def submit(self, function):
        self.tasks.append(function)
        return self

    def wait(self, seconds=-1):
        while self.tasks:
            self.tasks.pop(0)()
        return True


def test_what_waits_behind_a_failure_is_refused_before_what_comes_after():
    sink = Failing("write")
    queue = own._Queue(sink, most=4)
    queue.stop()
    queue._worker = LateWorker()
    for i in range(3):
        queue.put(one(i))
    queue._worker.tasks.pop(0)()  # fails, and the other two were not looked at
    queue._waiting.extend([one(3)])
    with pytest.raises(AsyncError) as caught:
        queue.put(one(4))
    assert numbers(caught.value.refused) == [0, 1, 2, 3, 4]
    sink.methods.clear()
    queue.put(one(5))
    queue._worker.wait()
    assert sink.logs["x"].tolist() == [5]


def test_a_copy_in_a_forked_process_leaves_the_queue_alone():
    """The thread is that of the process that made it; a child that forgets the sink has none."""

    class Queue:
        finished = 0

        def finish(self):
            self.finished += 1

    queue = Queue()
    own._finish_forgotten(queue, os.getpid() + 1)
    assert queue.finished == 0
    own._finish_forgotten(queue, os.getpid())
    assert queue.finished == 1


@pytest.mark.parametrize("method", ["write", "flush", "close"])
def test_a_sink_that_hung_once_is_not_called_again(method):
    slow = Slow()
    sink = Timeout(slow, 0.05)
    with pytest.raises(SinkTimeoutError, match="did not return from write within"):
        sink.write(one(1))
    slow.go.release(5)
    arguments = [one(2)] if method == "write" else []
    with pytest.raises(SinkTimeoutError, match=r"from write within.*nothing of this call"):
        getattr(sink, method)(*arguments)
    assert 2 not in slow.logs.get("x", [])


def test_a_sink_in_time_is_called_as_it_is():
    memory = MemorySink()
    with Timeout(memory, 60.0) as sink:
        sink.write(one(1))
        sink.flush()
    assert memory.logs["x"].tolist() == [1]


def test_a_copy_in_another_process_is_neither_written_nor_closed():
    sink = Failing("close")
    sink.write(one(1))
    sink._process += 1  # as in a fork
    for call in (lambda: sink.write(one(2)), sink.flush):
        with pytest.raises(StoreClosedError, match="belongs to process"):
            call()
    sink.close()  # does nothing, so it raises nothing
    assert not sink.closed
    sink._process -= 1
    with pytest.raises(OSError, match="the network is gone"):
        sink.close()
    assert not sink.closed  # a second call tries again
    sink.methods.clear()
    sink.close()
    assert sink.closed
    assert sink.logs["x"].tolist() == [1]


@pytest.mark.parametrize(
    "more",
    [
        Entries(np.array([1.5])),
        Entries(np.array([[1]])),
        Entries(np.array([1]), {"step": np.array([0])}),
    ],
)
def test_a_name_in_memory_keeps_its_type(more):
    """Nothing of a call is taken if one of its names does not fit."""
    sink = MemorySink()
    sink.write(one(1))
    with pytest.raises(LogMismatchError, match="'x' was first written with"):
        sink.write(Records({"y": Entries(np.array([0])), "x": more}))
    assert {name: values.tolist() for name, values in sink.logs.items()} == {"x": [1]}


def test_memory_does_not_change_with_the_arrays_of_the_program():
    sink, values, steps = MemorySink(), np.ones(2), np.arange(2)
    mask = np.array([True, True])
    sink.write(Records({"x": Entries(values, {"step": steps}, mask)}))
    values[:], steps[:], mask[:] = 7, 8, False
    found = sink.records["x"]
    assert (found.values.tolist(), found.steps["step"].tolist()) == ([1.0, 1.0], [0, 1])
    assert found.mask.tolist() == [True, True]


def test_a_full_queue_behind_a_failure_does_not_wait_for_room():
    """The thread may be late: whoever writes then hears of the failure all the same."""
    sink = Failing("write")
    queue = own._Queue(sink, most=2)
    queue.stop()
    queue._worker = LateWorker()
    queue.put(one(0))
    queue._worker.tasks.pop(0)()  # fails
    queue._waiting.extend([one(1), one(2)])
    caught = []

    def put():
        with pytest.raises(AsyncError) as error:
            queue.put(one(3))
        caught.append(numbers(error.value.refused))

    within(put, 20)
    assert caught == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("meta", "fits"),
    [
        (None, True),
        ({}, True),
        ({"a": 1, "b": [2, 3]}, True),
        ({"b": (2, 3), "a": 1}, True),  # as it is on disk
        ({"a": 1}, False),
        ({"a": 1, "b": [2, 3], "c": 4}, False),
        ({"a": 1, "b": [3, 2]}, False),
    ],
)
def test_a_store_is_continued_with_its_metadata(tmp_path, meta, fits):
    StoreSink(tmp_path / "s", meta={"a": 1, "b": (2, 3)}).close()
    if fits:
        StoreSink(tmp_path / "s", meta=meta).close()
        return
    with pytest.raises(StoreExistsError, match="cannot continue with"):
        StoreSink(tmp_path / "s", meta=meta)
    with sawlog.store.open(tmp_path / "s", "append"):  # it is not left open
        pass


def test_a_store_that_was_empty_does_not_append(tmp_path):
    for appends in (False, True, True):
        sink = StoreSink(tmp_path / "s")
        assert sink.appends is appends
        sink.write(one(1))
        sink.close()
