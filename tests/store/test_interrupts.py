"""A call of a writer is taken whole or not at all, at whatever line an exception comes.

Every scenario makes the same kind of call again and again in one store, the n-th time with an
exception at the n-th line that it runs, until a call ends before that; calls in between are left
alone. What the reader returns at the end is compared with what the calls were given.
"""

import contextlib
import functools
import itertools
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import sawlog.sinks
from sawlog import store
from sawlog.errors import DuplicateIdError, StoreClosedError
from sawlog.records import Entries
from tests.store.interrupts import interrupted
from tests.thorough import THOROUGH

KINDS = [KeyboardInterrupt, MemoryError]


class Read:
    """A reader that is asked for everything once."""

    def __init__(self, reader):
        self.gather = reader.gather
        self.entries = functools.cache(reader.entries)
        self.attrs = functools.cache(reader.attrs)
        self.ids = functools.cache(lambda: list(reader.ids()))
        self.known = functools.cache(lambda: set(self.ids()))


class Deferred(store.DeferredRows):
    dtype = np.dtype(np.float64)

    def __init__(self, numbers):
        self.numbers = np.asarray(numbers, np.float64)
        self.shape = (len(self.numbers), 3)

    def into(self, out):
        for column in range(3):
            out[:, column] = self.numbers * (column + 1)

    def __getitem__(self, rows):
        return Deferred(self.numbers[rows])


class Rows:
    """Rows of two columns that follow from the id, with ids of either kind."""

    def __init__(self, kind: str, rows: int, deferred: bool = False):
        self.kind, self.rows, self.deferred = kind, rows, deferred

    def ids(self, number: int) -> list:
        numbers = range(number * self.rows, (number + 1) * self.rows)
        return [f"é{n}" for n in numbers] if self.kind == "str" else list(numbers)

    def __call__(self, writer, number: int):
        numbers = np.arange(number * self.rows, (number + 1) * self.rows)
        wide = Deferred(numbers) if self.deferred else numbers[:, None] * np.array([1.0, 2, 3])
        return writer.append(self.ids(number), {"x": wide, "y": numbers.astype(np.int32)})

    def there(self, reader, number: int) -> bool:
        """Whether a call is there, whole and right; it must not be there in part."""
        ids = self.ids(number)
        found = np.array([x in reader.known() for x in ids])
        assert found.all() or not found.any(), f"{found.sum()} of {len(ids)} rows of call {number}"
        if not found.any():
            return False
        rows, numbers = reader.gather(ids), np.arange(number * self.rows, (number + 1) * self.rows)
        assert np.array_equal(rows["x"], numbers[:, None] * [1.0, 2, 3]), f"rows of call {number}"
        assert np.array_equal(rows["y"], numbers), f"rows of call {number}"
        return True

    def missing(self, writer, number: int) -> bool:
        left = len(writer.missing(self.ids(number)))
        assert left in (0, self.rows)
        return left > 0


class Records:
    """Entries of three names; some calls have a mask, of either shape, and notes."""

    def __init__(self, count: int):
        self.count = count

    def records(self, number: int) -> dict[str, Entries]:
        steps = np.full(self.count, number)
        mask = [None, np.arange(self.count) % 2 == 0, np.ones((self.count, 2), bool)][number % 3]
        attrs = [{}, {"n": number}, {"same": True}, {"same": 1}][number % 4]
        wide = np.stack([steps, np.arange(self.count)], axis=1).astype(np.float32)
        at = {"step": steps, "epoch/x": steps // 10}
        return {
            "wide": Entries(wide, at, mask, attrs),
            "plain": Entries(np.arange(self.count) + 0.5 * number, {"step": steps}),
            "bare": Entries(np.full(self.count, number, np.int16)),
        }

    def __call__(self, writer, number: int):
        writer.write(self.records(number))

    def there(self, reader, number: int) -> bool:
        given = self.records(number)
        found = {}
        for name, entries in given.items():
            all_of = reader.entries(name)
            own = all_of.values if name == "bare" else all_of.steps["step"]
            at = np.flatnonzero(own == number)
            found[name] = len(at)
            if len(at):
                assert np.array_equal(all_of.values[at], entries.values), (name, number)
                assert {a: s[at].tolist() for a, s in all_of.steps.items()} == {
                    a: s.tolist() for a, s in entries.steps.items()
                }
                wanted = np.ones(1, bool) if entries.mask is None else entries.mask
                mask = np.ones(1, bool) if all_of.mask is None else all_of.mask[at]
                axes = max(mask.ndim, wanted.ndim)
                shaped = [m.reshape(m.shape + (1,) * (axes - m.ndim)) for m in (mask, wanted)]
                assert (shaped[0] == shaped[1]).all(), (name, number)
        assert set(found.values()) in ({0}, {self.count}), (number, found)
        if found["wide"]:
            notes = [note for rows, note in reader.attrs("wide") for _ in range(rows)]
            own = np.flatnonzero(reader.entries("wide").steps["step"] == number)
            wanted = [dict(given["wide"].attrs)] * self.count
            assert repr([(notes or [{}] * (own[-1] + 1))[n] for n in own]) == repr(wanted)
        return found["wide"] > 0


class Logs:
    """One entry at a time."""

    def __call__(self, writer, number: int):
        writer.log({"a": float(number), "b": np.arange(3) + number}, step=number)

    def there(self, reader, number: int) -> bool:
        a, b = reader.entries("a"), reader.entries("b")
        counts = [int((s.steps["step"] == number).sum()) for s in (a, b)]
        assert counts in ([0, 0], [1, 1]), (number, counts)
        if counts[0]:
            assert a.values[a.steps["step"] == number].tolist() == [number]
            assert b.values[b.steps["step"] == number].tolist() == [
                [number, number + 1, number + 2]
            ]
        return counts[0] > 0


CALLS = {
    "int": Rows("int", 3),
    "str": Rows("str", 3),
    "many segments": Rows("int", 40),
    "deferred": Rows("str", 12, deferred=True),
    "records": Records(4),
    "log": Logs(),
}


def storm(call, path: Path, kind, only: str, segment_bytes: int, step: int) -> int:
    """Interrupt one call after the other, each some lines later; returns how many were."""
    taken, number = {}, 0
    writer = store.create(path, segment_bytes=segment_bytes, interval=0.05)
    for at in itertools.count(1 + KINDS.index(kind), step):
        result = interrupted(lambda n=number: call(writer, n), at, kind, only)
        if result.error is None:
            taken[number] = True
            if result.lines < at:
                number += 1
                break
        elif type(result.error) is not kind:
            raise AssertionError(result.where) from result.error
        elif isinstance(call, Rows):
            taken[number] = not call.missing(writer, number)
        number += 1
        if number % 4 == 0:
            call(writer, number)
            taken[number] = True
            number += 1
        if number % 50 == 0:
            writer.flush()
    writer.close()
    check(call, path, taken, number)
    return number


def check(call, path: Path, taken: dict, number: int) -> None:
    assert store.verify(path).ok
    with store.open(path) as opened:
        reader = Read(opened)
        found = {n: call.there(reader, n) for n in range(number)}
        if isinstance(call, Rows):
            assert len(reader.ids()) == sum(found.values()) * call.rows
    assert {n: found[n] for n in taken} == taken
    assert any(found.values())


@pytest.mark.turns
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CALLS)
def test_every_line_of_a_call(tmp_path, name, kind):
    step = 1 if THOROUGH else 2 if name == "int" else 5 if name == "many segments" else 3
    count = storm(CALLS[name], tmp_path / "s", kind, "sawlog", 1000, step)
    assert count > 50


@pytest.mark.parametrize("name", CALLS)
def test_every_line_of_python_s_own_library_too(tmp_path, name):
    storm(CALLS[name], tmp_path / "s", KeyboardInterrupt, "", 700, step=1 if THOROUGH else 13)


@pytest.mark.parametrize("kind", KINDS)
def test_every_line_of_the_first_call(tmp_path, kind):
    """Names are declared, ids of other writers looked up, threads started."""
    call = Rows("int", 3)
    for at in itertools.count(1, 1 if THOROUGH else 17):
        path = tmp_path / f"{at}"
        with store.create(path) as other:
            call(other, 0)
        writer = store.open(path, "append", segment_bytes=100, interval=0.01)
        result = interrupted(lambda w=writer: call(w, 1), at, kind, "sawlog")
        there = {0: True, 1: not call.missing(writer, 1), 2: True}
        with pytest.raises(DuplicateIdError):
            call(writer, 0)
        call(writer, 2)
        writer.close()
        check(call, path, there, 3)
        if result.error is None:
            break
    assert at > 50


@pytest.mark.turns
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["flush", "missing", "close", "exit"])
def test_every_line_of_the_other_calls(tmp_path, what, kind):
    call, path = Rows("str", 3), tmp_path / "s"
    ends = what in ("close", "exit")
    store.create(path).close()
    number, taken = 0, {}
    writer = None
    for at in range(1, 2000, 1 if THOROUGH else 23 if ends else 7):
        if writer is None:  # few segments: those that are new make `missing` run more lines
            size = 100_000 if what == "missing" else 500
            writer = store.open(path, "append", segment_bytes=size, interval=None)
        taken[number] = True
        call(writer, number)
        number += 1
        calls = {
            "flush": writer.flush,
            "missing": lambda w=writer, n=number: w.missing(call.ids(n)),
            "close": writer.close,
            "exit": lambda w=writer: w.__exit__(None, None, None),
        }
        result = interrupted(calls[what], at, kind, "sawlog")
        assert result.error is None or type(result.error) is kind
        if not ends:
            call(writer, number)
            taken[number] = True
            number += 1
            while len(writer._pipeline.state.waiting) > 4:  # more lines for each
                time.sleep(0.001)
        else:
            with contextlib.suppress(StoreClosedError):
                call(writer, number)  # it may be open still
                taken[number] = True
            number += 1
            writer.close()
            writer = None
        if result.error is None and result.lines < at:
            break
    if writer is not None:
        writer.close()
    check(call, path, taken, number)
    assert at > 20
    assert result.error is None


def test_a_signal_handler_that_writes(tmp_path):
    """It comes in the middle of a call, and its own calls go before."""
    call, path = Rows("int", 30), tmp_path / "s"
    writer = store.create(path, segment_bytes=2000, interval=0.05)
    numbers = itertools.count()
    taken, nested = {}, []

    def handler(_signal, _frame):
        number = next(numbers)
        nested.append(number)
        call(writer, number)
        if number % 3 == 0:
            writer.flush()
        taken[number] = True
        nested.remove(number)
        if len(nested) < 5:  # on a busy machine they come faster than they go
            signal.setitimer(signal.ITIMER_REAL, 0.003)

    old = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.003)
        while (number := next(numbers)) < (2000 if THOROUGH else 300):
            call(writer, number)
            taken[number] = True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    writer.close()
    check(call, path, taken, max(taken) + 1)


def test_a_signal_handler_that_closes(tmp_path):
    call, path = Rows("int", 30), tmp_path / "s"
    for at in range(1, 200, 1 if THOROUGH else 13):
        writer = store.create(path / f"{at}", segment_bytes=2000)
        call(writer, 0)

        class Closing(BaseException):
            def __init__(self, _text, writer=writer):
                writer.close()

        result = interrupted(lambda w=writer: call(w, 1), at, Closing, "sawlog")
        assert type(result.error) is Closing or result.error is None
        with pytest.raises(Exception, match="closed"):
            call(writer, 2)
        check(call, path / f"{at}", {0: True, 1: result.error is None}, 2)


def test_threads_go_on_after_an_interrupt_in_one_of_them(tmp_path):
    call, path = Rows("int", 5), tmp_path / "s"
    writer = store.create(path, segment_bytes=1000, interval=0.02)
    numbers, taken, stop = itertools.count(1000), {}, threading.Event()

    def work():
        while not stop.is_set():
            number = next(numbers)
            call(writer, number)
            taken[number] = True

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for at in range(1, 400, 1 if THOROUGH else 7):
        interrupted(lambda n=at: call(writer, n), at, KeyboardInterrupt, "sawlog")
    stop.set()
    for thread in threads:
        thread.join()
    writer.close()
    check(call, path, taken, max(taken) + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sink_of_a_store(tmp_path, kind):
    call, taken, number = Records(2), {}, 0
    sink = sawlog.sinks.StoreSink(tmp_path / "s", segment_bytes=1000)
    for at in itertools.count(1, 1 if THOROUGH else 3):
        result = interrupted(lambda n=number: call(sink, n), at, kind, "sawlog")
        assert result.error is None or type(result.error) is kind, result.error
        if result.error is None:
            taken[number] = True
        number += 1
        if result.lines < at:
            break
        call(sink, number)  # does what interrupted calls left, which would add lines to the next
        taken[number] = True
        number += 1
        if at % 10 == 0:
            sink.flush()  # so does what waits for the disk
    sink.close()
    check(call, tmp_path / "s", taken, number)
