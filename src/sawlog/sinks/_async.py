"""``Async``: write to a slow sink in a thread.

``_Queue`` holds the pending writes and the thread. It outlives an ``Async`` that the program
forgets, so that everything taken is still written. Only the thread calls the sink, in order. After
a failure the queue is emptied, and the next caller gets what was not written.
"""

from __future__ import annotations

import collections
import os
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from sawlog._lifecycle import at_exit, close_at_exit
from sawlog._turn import Signal
from sawlog._validate import positive_integer
from sawlog._worker import Worker
from sawlog.records import Records
from sawlog.sinks._base import CopyingSink, Sink, checked_sink, fail, write_validated
from sawlog.sinks._errors import AsyncError


class Async(CopyingSink):
    """Write in the background, in order; a full queue makes the program wait.

    Only one thread calls the sink inside. It is closed together with this one, or at the end of the
    program.

    If the sink raises, the next ``write``, ``flush`` or ``close`` raises :class:`AsyncError`. Its
    ``refused`` has the records that the sink did not take, those that waited behind them, and those
    of the ``write`` that raised, in order: write them again, or elsewhere, and nothing is lost.
    Writing then continues.

    Args:
        sink: the sink to write to.
        queue: the largest number of writes that may wait.

    Raises:
        ArgumentError: ``sink`` is not a sink, or ``queue`` is not a positive integer.
        AsyncError: from ``write``, ``flush`` and ``close``: the sink failed in the background. A
            ``close`` that raises it did close the sink, unless the error says otherwise.

    >>> import numpy as np
    >>> from sawlog.records import Entries, Records
    >>> from sawlog.sinks import MemorySink
    >>> memory = MemorySink()
    >>> with Async(memory, queue=4) as sink:
    ...     for i in range(10):
    ...         sink.write(Records({"x": Entries(np.array([i]))}))
    >>> memory.logs
    {'x': array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])}
    """

    def __init__(self, sink: Sink, queue: int = 64) -> None:
        super().__init__()
        most = positive_integer("queue", queue)
        self._queue = _Queue(checked_sink(sink, "Async"), most)
        # An Async that the program forgets, or leaves open at its end, still writes.
        self._finalizer = weakref.finalize(self, _finish_forgotten, self._queue, self._process)
        self._finalizer.atexit = False
        self._cancel_exit = close_at_exit(self)

    def __repr__(self) -> str:
        return f"Async({self._queue.sink!r}, queue={self._queue.most})"

    def fail(self) -> None:
        """Mark the run as failed, also in the sink inside."""
        super().fail()
        fail(self._queue.sink)

    @property
    def waiting(self) -> int:
        """The number of writes that wait for the sink."""
        return self._queue.writes

    def _write_owned(self, records: Records) -> None:
        self._queue.put(records)

    def _flush(self) -> None:
        self._queue.raise_all(self._queue.call("flush"))

    def _close(self) -> None:
        error = self._queue.call("close")
        if error is None:
            self._closed = True
            self._finalizer.detach()
            self._cancel_exit()
            self._queue.stop()
        self._queue.raise_all(error)


class _Queue:
    """The writes that wait for the sink, and the thread that makes them.

    Callers only append writes and submit calls, one caller at a time (see ``BaseSink``). Everything
    else is done by the thread, so an exception at any line of a caller leaves nothing half done.
    """

    def __init__(self, sink: Sink, most: int) -> None:
        self.sink, self.most = sink, most
        self._waiting: collections.deque[Records] = collections.deque()
        self._taken = Signal()  # rung when the thread has taken a write from the queue
        self._failure: _Failure | None = None
        self._forgotten = False
        self._cancel_join: Callable[[], None] = lambda: None
        self._worker = Worker("sawlog-sink")

    @property
    def writes(self) -> int:
        """The number of writes that wait."""
        return len(self._waiting)

    # -- the callers' side ------------------------------------------------------------------------

    def put(self, records: Records) -> None:
        """Add records once there is room for them."""
        while not self._taken.wait(self._has_room):
            pass
        if self._failure is not None:
            self._worker.submit(self._write_all).wait()  # those that wait were not written, either
            self._raise_failure(None, records)
        self._waiting.append(records)
        self._worker.submit(self._write_all)

    def _has_room(self) -> bool:
        return len(self._waiting) < self.most or self._failure is not None

    def call(self, method: str) -> BaseException | None:
        """Let the thread call a method after all earlier writes; return the exception, if any."""
        return self._worker.submit(partial(self._call, method)).result()

    def raise_all(self, error: BaseException | None) -> None:
        """Raise the failure of the background thread, or else the given error."""
        self._raise_failure(error)
        if error is not None:
            raise error

    def _raise_failure(self, besides: BaseException | None, *now: Records) -> None:
        failure = self._failure
        if failure is None:
            return
        refused = [*failure.refused, *now]
        error = AsyncError(_described(self.sink, failure.cause, refused), refused)
        if besides is not None:
            error.add_note(f"It fails now as well: {type(besides).__name__}: {besides}")
        try:
            raise error from failure.cause
        except AsyncError:  # no interrupt can come between raising and forgetting
            self._failure = None
            raise

    def finish(self) -> None:
        """Let the thread close the sink after all earlier writes, and end, without waiting."""
        self._cancel_join = at_exit(self.join)
        self._forgotten = True
        self._worker.submit(self._close_forgotten)
        self._worker.stop()

    def stop(self) -> None:
        """End the thread."""
        self._worker.stop()
        self.join()

    def join(self) -> None:
        """Wait for the end of the thread."""
        self._worker.join()

    # -- the thread -------------------------------------------------------------------------------

    def _write_all(self) -> None:
        """Write everything that waits; after a failure, add it to what was not written."""
        while self._waiting:
            records = self._waiting.popleft()
            failure = self._failure
            if failure is not None:
                failure.refused.append(records)
            self._taken.ring()
            if failure is not None:
                continue
            try:
                write_validated(self.sink, records, owned=True)
            except BaseException as error:  # of any kind: it must reach the program
                self._failure = _Failure(error, [records])
                self._taken.ring()

    def _call(self, method: str) -> BaseException | None:
        self._write_all()
        try:
            getattr(self.sink, method)()
        except BaseException as error:
            return error
        return None

    def _close_forgotten(self) -> None:
        """Close the sink, and warn of errors, which no caller can receive any more."""
        try:
            self.raise_all(self._call("close"))
        except BaseException as failure:
            text = f"A sink was not closed, and closing it now failed: {failure}"
            warnings.warn(text, stacklevel=2)
        self._cancel_join()


class _Failure:
    """Why the sink failed, and the records that it did not take, in order."""

    def __init__(self, cause: BaseException, refused: list[Records]) -> None:
        self.cause, self.refused = cause, refused


def _described(sink: Sink, cause: BaseException, refused: Sequence[Records]) -> str:
    entries = Counter[str]()
    for records in refused:
        entries.update({name: len(own) for name, own in records.items()})
    listed = [f"{count} of {name!r}" for name, count in list(entries.items())[:8]]
    more = ", ..." if len(entries) > 8 else ""
    return (
        f"{sink!r} failed in the background: {type(cause).__name__}: {cause}. Not written: "
        f"{len(refused)} writes with the entries {', '.join(listed)}{more}. Hint: they are in "
        "error.refused, in order, with those of the call that raised this; write them again, or "
        "elsewhere."
    )


def _finish_forgotten(queue: _Queue, process: int) -> None:
    """Write what waits after the ``Async`` was collected as garbage.

    This does not wait: the collecting thread may hold a lock of the sink inside.
    """
    if os.getpid() == process:
        queue.finish()
