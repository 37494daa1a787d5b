"""Ctrl-C at any line of a call, and calls while no thread can be started.

Entries are written or not, never twice, and no later call hangs.
"""

import gc
import io
import re
import threading

import numpy as np
import pytest
from rich.console import Console

from sawlog.records import Entries, Records
from sawlog.sinks import Async, AsyncError, ConsoleSink, MemorySink, Timeout
from sawlog.sinks._console._proxy import Proxy

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


def test_what_is_printed_above_a_dashboard():
    """Another thread can print afterwards; lines are shown or not, never twice."""
    at, where = 0, "first"
    while where:
        at, shown, proxy = at + 1, [], Proxy(io.StringIO())
        proxy.start(shown.append)
        outcome = interrupted(lambda: proxy.write("one\n"), at, KeyboardInterrupt, "sawlog")  # noqa: B023
        where = outcome.where
        within(lambda: proxy.write("two\n"))  # noqa: B023
        within(proxy.end)
        assert "".join(shown) in ("one\ntwo\n", "two\n"), where
    assert at > 8


@pytest.mark.parametrize("calls", ["open", "print", "tick", "close"])
def test_dashboards_on_a_terminal(calls):
    """Whatever is interrupted, other threads can print and draw, and the terminal is free again."""
    before = threading.active_count()
    at, where = 0, "first"
    while where:
        at, console = at + 1, Console(file=io.StringIO(), force_terminal=True, width=80)
        first = ConsoleSink("first", console=console, live=True)
        first.write(one(1))
        screen, opened = first.dashboard._display, []
        call = {
            "open": lambda: opened.append(two(console)),  # noqa: B023
            "print": lambda: screen._print("a line\n"),  # noqa: B023
            "tick": screen._tick,
            "close": first.close,
        }[calls]
        outcome = interrupted(call, at, KeyboardInterrupt, only="_live_screen")
        where = outcome.where
        if calls != "close":
            within(lambda: screen._print("after\n"))  # noqa: B023
            within(screen._tick)
        within(first.close)
        for sink in opened:
            within(sink.close)
        other = two(console)
        within(other.close)
        assert not console._live_stack, where
    assert at > 4
    assert threading.active_count() <= before  # none is left that draws


def test_the_first_dashboard_of_a_terminal():
    """Where opening it is interrupted, nothing of it stays."""
    before = threading.active_count()
    at, where = 0, "first"
    while where:
        at, console, opened = at + 1, Console(file=io.StringIO(), force_terminal=True), []
        outcome = interrupted(
            lambda: opened.append(two(console)),  # noqa: B023
            at,
            KeyboardInterrupt,
            only="_live_screen",
        )
        where = outcome.where
        for sink in opened:
            within(sink.close)
        other = two(console)
        within(other.close)
        assert "second" in console.file.getvalue()
        assert opened or not console._live_stack, where
    assert at > 10
    assert threading.active_count() <= before


def two(console):
    sink = ConsoleSink("second", console=console, live=True)
    sink.write(one(2))
    return sink


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
