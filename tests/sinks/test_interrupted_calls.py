"""Ctrl-C at any line of a call, and calls while no thread can be started.

Entries are written or not, never twice, and no later call hangs.
"""

import gc
import io
import re
import threading

import numpy as np
import pytest

from sawlog.records import Entries, Records
from sawlog.sinks import Async, AsyncError, ConsoleSink, MemorySink, Timeout

from ..store.interrupts import interrupted
from .failing import Failing, within


def one(i):
    return Records({"x": Entries(np.array([i]), {"step": np.array([i])})})


@pytest.mark.parametrize("calls", ["write flush", "close"])
def test_timeout(calls):
    at, where = 0, "first"
    while where:
        at, memory, made = at + 1, MemorySink(), []
        sink = Timeout(memory, 60)

        def write_and_flush(sink=sink, made=made):
            sink.write(one(0))
            made.append(0)
            sink.flush()

        if calls == "close":
            write_and_flush()
        call = sink.close if calls == "close" else write_and_flush
        outcome = interrupted(call, at, KeyboardInterrupt, only="sawlog")
        where = outcome.where
        assert isinstance(outcome.error, KeyboardInterrupt) == bool(where)
        if calls != "close":
            within(lambda sink=sink: sink.write(one(9)))
        within(sink.close)
        assert memory.closed
        kept = [i for i in memory.logs["x"].tolist() if i != 9]
        assert kept in (made, [0]), where
    assert at > 20


def test_opening_with_a_timeout():
    at, where = 0, "first"
    while where:
        at, opened = at + 1, []

        def opens(opened=opened):
            opened.append(MemorySink())
            return opened[-1]

        outcome = interrupted(
            lambda opens=opens: Timeout(opens, 60), at, KeyboardInterrupt, "sawlog"
        )
        where = outcome.where
        assert len(opened) <= 1, where
    within(outcome.value.close)


@pytest.mark.parametrize("calls", ["write flush", "close"])
def test_console(calls):
    at, where = 0, "first"
    while where:
        at, file = at + 1, io.StringIO()
        sink = ConsoleSink("run", file=file)

        def write_and_flush(sink=sink):
            sink.write(one(1))
            sink.flush()

        if calls == "close":
            write_and_flush()
        call = sink.close if calls == "close" else write_and_flush
        outcome = interrupted(call, at, KeyboardInterrupt, only="sawlog")
        where = outcome.where
        if calls != "close":
            within(lambda sink=sink: sink.write(one(7)))
        within(sink.close)
        lines = re.findall("run finished.*", file.getvalue())
        assert 1 <= len(lines) <= 2, (where, file.getvalue())  # again if interrupted after printing
        assert lines[-1].endswith(f"x={1 if calls == 'close' else 7}"), where
    assert at > 20


# -- no threads: Python 3.12 starts none while the interpreter ends --------------------------------


@pytest.fixture
def no_threads(monkeypatch):
    def refused(*_, **__):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refused)


@pytest.mark.usefixtures("no_threads")
@pytest.mark.parametrize("make", [Async, lambda sink: Timeout(sink, 60)], ids=["Async", "Timeout"])
def test_without_new_threads_the_caller_writes(make):
    memory = MemorySink()
    with make(memory) as sink:
        sink.write(one(0))
        sink.flush()
        sink.write(one(1))
    assert memory.closed
    assert memory.logs["x"].tolist() == [0, 1]


@pytest.mark.usefixtures("no_threads")
def test_without_new_threads_errors_still_reach_the_caller():
    failing = Failing("write")
    sink = Async(failing)
    sink.write(one(0))
    with pytest.raises(AsyncError) as raised:
        sink.flush()
    assert len(raised.value.refused) == 1
    failing.methods.clear()
    sink.close()
    with pytest.raises(OSError, match="the network is gone"):
        Timeout(Failing("write"), 60).write(one(0))


@pytest.mark.usefixtures("no_threads")
def test_without_new_threads_a_forgotten_sink_is_closed():
    memory = MemorySink()
    Async(memory).write(one(0))
    gc.collect()
    assert memory.closed
    assert memory.logs["x"].tolist() == [0]
