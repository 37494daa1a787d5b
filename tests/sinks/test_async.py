"""Async: in order, bounded, and nothing is lost without a word."""

import contextlib
import gc
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from sawlog import _lifecycle
from sawlog.errors import ArgumentError, SawlogError
from sawlog.records import Entries, Records
from sawlog.sinks import Async, AsyncError, MemorySink
from sawlog.sinks._tracker import TrackerSink

from ..store.interrupts import interrupted
from .failing import PATIENCE, Failing, Slow, wait_until, within

SOURCE = str(Path(__file__).parents[2] / "src")


def one(i, name="x"):
    return Records({name: Entries(np.array([i]), {"step": np.array([i])})})


def threads_of_sinks():
    return [thread for thread in threading.enumerate() if thread.name == "sawlog-sink"]


def test_order_and_one_thread():
    slow = Slow()
    slow.go.release(200)
    with Async(slow, queue=3) as sink:
        for i in range(200):
            sink.write(one(i))
    assert slow.logs["x"].tolist() == list(range(200))
    assert len(slow.callers) == 1
    assert threading.current_thread() not in slow.callers
    assert slow.callers.isdisjoint(threads_of_sinks())


def test_a_full_queue_makes_the_program_wait():
    slow = Slow()
    sink = Async(slow, queue=2)
    sink.write(one(0))
    wait_until(lambda: sink.waiting == 0)  # the thread has it
    for i in (1, 2):
        sink.write(one(i))
    assert sink.waiting == 2
    late = threading.Thread(target=lambda: sink.write(one(3)))
    late.start()
    late.join(0.05)
    assert late.is_alive()
    slow.go.release()
    late.join(PATIENCE)
    assert not late.is_alive()
    slow.go.release(3)
    sink.close()
    assert slow.logs["x"].tolist() == [0, 1, 2, 3]


def test_flush_waits_for_all_and_flushes_inside():
    inner = Failing("flush")
    sink = Async(inner)
    sink.write(one(0))
    with pytest.raises(OSError, match="network is gone"):
        sink.flush()
    inner.methods.clear()
    sink.write(one(1))
    sink.flush()
    assert inner.logs["x"].tolist() == [0, 1]
    sink.close()


def refused(error):
    return [int(records["x"].values[0]) for records in error.refused]


@pytest.mark.parametrize("call", ["write", "flush", "close"])
def test_failures_are_raised_at_the_next_call(call):
    inner = Failing("write")
    sink = Async(inner)
    sink.write(one(0))
    wait_until(lambda: sink._queue._failure is not None)
    with pytest.raises(AsyncError, match=r"the network is gone.*\d of 'x'.*Hint") as caught:
        sink.write(one(1)) if call == "write" else getattr(sink, call)()
    assert refused(caught.value) == ([0, 1] if call == "write" else [0])
    assert caught.value.__cause__ is inner.error
    assert isinstance(caught.value, SawlogError)
    assert sink.closed == inner.closed == (call == "close")
    inner.methods.clear()
    if call != "close":
        for records in caught.value.refused:
            sink.write(records)
        sink.close()
        assert inner.logs["x"].tolist() == ([0, 1] if call == "write" else [0])


def test_what_waits_behind_a_failure_is_handed_back_in_order():
    class Gated(Failing):
        go = threading.Event()

        def _write(self, records):
            assert self.go.wait(PATIENCE)
            super()._write(records)

    inner = Gated("write")
    sink = Async(inner)
    for i in range(4):
        sink.write(one(i))
    inner.go.set()
    with pytest.raises(AsyncError, match=r"4 writes with the entries 4 of 'x'") as caught:
        sink.flush()
    assert refused(caught.value) == [0, 1, 2, 3]
    sink.close()
    assert inner.logs == {}


def test_a_failure_frees_those_who_wait_for_room():
    slow = Slow()
    slow._write = lambda records: slow.go.acquire(timeout=PATIENCE) and 1 / 0
    sink = Async(slow, queue=1)
    sink.write(one(0))
    wait_until(lambda: sink.waiting == 0)
    sink.write(one(1))
    caught = []

    def late():
        try:
            sink.write(one(2))
        except AsyncError as error:
            caught.append(error)

    thread = threading.Thread(target=late)
    thread.start()
    thread.join(0.02)
    assert thread.is_alive()
    slow.go.release()
    thread.join(PATIENCE)
    assert [refused(error) for error in caught] == [[0, 1, 2]]
    sink.close()


def test_after_a_failure_with_writes_waiting_there_is_room_again():
    slow = Slow()
    slow._write = lambda records: slow.go.acquire(timeout=PATIENCE) and 1 / 0
    sink = Async(slow, queue=2)
    sink.write(one(0))
    wait_until(lambda: sink.waiting == 0)
    for number in (1, 2):
        sink.write(one(number))
    slow.go.release()
    with pytest.raises(AsyncError) as caught:
        sink.flush()
    assert refused(caught.value) == [0, 1, 2]
    assert sink.waiting == 0  # else the next writes would wait for ever
    del slow._write
    for number in range(3, 8):
        slow.go.release()
        sink.write(one(number))
    sink.close()
    assert slow.logs["x"].tolist() == [3, 4, 5, 6, 7]


def test_closing_that_fails_can_be_tried_again():
    inner = Failing("write", "close")
    sink = Async(inner)
    sink.write(one(0))
    with pytest.raises(AsyncError) as caught:
        sink.close()
    assert "It fails now as well: OSError" in caught.value.__notes__[0]
    assert not sink.closed
    with pytest.raises(OSError, match="network"):
        sink.close()
    inner.methods.clear()
    sink.close()
    assert inner.closed
    assert sink.closed


def test_even_an_exit_inside_of_the_sink_is_told():
    sink = Async(Failing("write", error=SystemExit(1)))
    sink.write(one(0))
    with pytest.raises(AsyncError, match="SystemExit"):
        sink.close()


def test_a_forgotten_sink_is_written_and_closed():
    memory = MemorySink()
    sink = Async(memory)
    for i in range(10):
        sink.write(one(i))
    del sink
    gc.collect()
    wait_until(lambda: memory.closed)
    assert memory.logs["x"].tolist() == list(range(10))
    wait_until(lambda: not threads_of_sinks())


def test_a_forgotten_sink_that_fails_warns():
    def program():
        Async(Failing("write")).write(one(0))
        wait_until(lambda: not threads_of_sinks())

    with pytest.warns(UserWarning, match=r"was not closed.*network is gone"):
        program()


@pytest.mark.parametrize("queue", [0, -1, 1.5, None])
def test_queue_is_a_whole_number(queue):
    with pytest.raises(ArgumentError, match=re.escape("`queue` must be a positive integer")):
        Async(MemorySink(), queue=queue)


def run(code, *args):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *args],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={"PYTHONPATH": SOURCE},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_being_forgotten_waits_for_nothing():
    """The garbage collector may run in a thread that holds a lock which the sink needs."""
    memory = MemorySink()
    sink = Async(memory)
    with memory._turn.taken():
        sink.write(one(0))
        del sink
        gc.collect()
        assert memory.logs == {}
    wait_until(lambda: memory.closed)
    assert memory.logs["x"].tolist() == [0]


AT_EXIT = """
import sys, time, numpy as np
from sawlog.records import Entries, Records
from sawlog.sinks import Async, JsonlSink

class Slow(JsonlSink):
    def _write(self, records):
        time.sleep(0.002)
        super()._write(records)

sink = Async(Slow(sys.argv[1]), queue=100)
for i in range(50):
    sink.write(Records({"x": Entries(np.array([i]))}))
if sys.argv[2] == "forgotten":
    del sink
"""


@pytest.mark.parametrize("how", ["open", "forgotten"])
def test_the_end_of_the_program_closes(tmp_path, how):
    path = tmp_path / "run.jsonl"
    run(AT_EXIT, str(path), how)
    assert path.read_text().splitlines() == [f'{{"name": "x", "value": {i}}}' for i in range(50)]


FORK = """
import os, sys, numpy as np
from sawlog.errors import StoreClosedError
from sawlog.records import Entries, Records
from sawlog.sinks import Async, CsvSink, JsonlSink, MemorySink, StoreSink

folder = sys.argv[1]
sinks = [MemorySink(), Async(MemorySink()), CsvSink(f"{folder}/a.csv"), StoreSink(f"{folder}/s"),
         Async(JsonlSink(f"{folder}/a.jsonl"))]
records = Records({"x": Entries(np.array([1]))})
for sink in sinks:
    sink.write(records)
child = os.fork()
if child == 0:
    told = 0
    for sink in sinks:
        for call in (sink.flush, lambda: sink.write(records)):
            try:
                call()
            except StoreClosedError as error:
                told += "belongs to process" in str(error) and "Hint" in str(error)
        sink.close()
    os._exit(0 if told == 2 * len(sinks) else 1)
assert os.waitpid(child, 0)[1] == 0
for sink in sinks:
    sink.write(records)
    sink.close()
print(open(f"{folder}/a.csv").read().split(), len(open(f"{folder}/a.jsonl").readlines()))
"""


def test_a_forked_process_is_told(tmp_path):
    assert run(FORK, str(tmp_path)) == "['name,value', 'x,1', 'x,1'] 2\n"


class Tracker(TrackerSink):
    def __init__(self):
        super().__init__(images=False, histograms=False)
        self.events = []

    def _write_group(self, group):
        self.events += group.columns["x"].items

    def _finish(self, failed):
        self.events.append(threading.current_thread().name)


def test_at_the_end_of_the_program_the_queue_is_written_before_the_tracker_ends(monkeypatch):
    monkeypatch.setattr(_lifecycle, "_registered", {})
    tracker = Tracker()
    sink = Async(tracker)
    sink.write(one(0))
    sink.flush()  # the tracker has registered after the Async
    sink.write(one(1))
    _lifecycle._run_all()
    assert tracker.events == [0, 1, "sawlog-sink"]  # ended by the thread of the queue, not directly
    assert sink.closed
    assert not _lifecycle._registered


@pytest.mark.parametrize("calls", ["write flush", "close"])
def test_an_exception_at_any_line_of_a_call_loses_and_doubles_nothing(calls):
    """Writes are made or not, in order, and no later call hangs."""
    at, where = 0, {"first"}
    while where:
        at, memory, made = at + 1, MemorySink(), []
        sink = Async(memory, queue=2)

        def write_and_flush(sink=sink, made=made):
            sink.write(one(0))
            made.append(0)
            sink.flush()

        if calls == "close":
            write_and_flush()
            outcome = interrupted(sink.close, at, KeyboardInterrupt, only="sawlog")
        else:
            outcome = interrupted(write_and_flush, at, KeyboardInterrupt, only="sawlog")
            within(lambda sink=sink: sink.write(one(9)))
        where = {outcome.where} - {""}
        assert isinstance(outcome.error, KeyboardInterrupt) == bool(where)
        within(sink.close)
        kept = [i for i in memory.logs["x"].tolist() if i != 9]
        assert memory.closed
        assert kept in (made, [0]), where
    assert at > 20


def test_a_failure_is_told_although_the_call_that_tells_it_is_interrupted():
    at, where = 0, {"first"}
    while where:
        at, failing = at + 1, Failing("write")
        sink = Async(failing)
        sink.write(one(0))
        wait_until(lambda sink=sink: sink._queue._failure is not None)
        outcome = interrupted(lambda sink=sink: sink.write(one(1)), at, MemoryError, only="_async")
        where = {outcome.where} - {""}
        error = outcome.error
        if not isinstance(error, AsyncError) and not isinstance(error.__context__, AsyncError):
            with pytest.raises(AsyncError) as raised:
                sink.flush()
            error = raised.value
        error = error if isinstance(error, AsyncError) else error.__context__
        assert error.refused[0]["x"].values.tolist() == [0], where
        failing.methods.clear()
        with contextlib.suppress(AsyncError):  # told again: the interrupt hid that it was told
            sink.close()
    assert at > 5
