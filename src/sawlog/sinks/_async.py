"""``Async``: write to a slow sink in a thread.

``_Queue`` holds the pending writes and the thread. It outlives an ``Async`` that the program
forgets, so that everything taken is still written. Only the thread calls the sink, in order. After
a failure the queue is emptied, and the next caller gets what was not written.
"""

from __future__ import annotations

import collections
import os
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Sequence

from sawlog._lifecycle import at_exit, close_at_exit
from sawlog._validate import positive_integer
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
        self._queue.raise_all(self._queue.ask("flush"))

    def _close(self) -> None:
        error = self._queue.ask("close")
        if error is None:
            self._closed = True
            self._finalizer.detach()
            self._cancel_exit()
            self._queue.stop()
        self._queue.raise_all(error)


class _Ask:
    """A call of ``flush`` or ``close`` that a caller waits for."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.done = False
        self.error: BaseException | None = None


class _Queue:
    """The writes that wait for the sink, and the thread that makes them."""

    def __init__(self, sink: Sink, most: int) -> None:
        self.sink, self.most = sink, most
        self.writes = 0
        self._changed = threading.Condition()
        self._items: collections.deque[Records | _Ask] = collections.deque()
        self._failure: tuple[BaseException, list[Records]] | None = None
        self._stopped = self._forgotten = False
        self._cancel_join: Callable[[], None] = lambda: None
        self.thread = threading.Thread(target=self._work, name="sawlog-sink", daemon=True)
        self.thread.start()

    # -- the callers' side ------------------------------------------------------------------------

    def put(self, records: Records) -> None:
        """Add records once there is room for them."""
        with self._changed:
            while self.writes >= self.most and self._failure is None:
                self._changed.wait()
            self._raise_failure(None, records)
            self._items.append(records)
            self.writes += 1
            self._changed.notify_all()

    def ask(self, method: str) -> BaseException | None:
        """Let the thread call a method after all earlier writes; return the exception, if any."""
        ask = _Ask(method)
        with self._changed:
            self._items.append(ask)
            self._changed.notify_all()
            while not ask.done:
                self._changed.wait()
        return ask.error

    def raise_all(self, error: BaseException | None) -> None:
        """Raise the failure of the background thread, or else the given error."""
        with self._changed:
            self._raise_failure(error)
        if error is not None:
            raise error

    def _raise_failure(self, besides: BaseException | None, *now: Records) -> None:
        if self._failure is None:
            return
        cause, refused = self._failure
        refused = [*refused, *now]
        self._failure = None
        error = AsyncError(_described(self.sink, cause, refused), refused)
        if besides is not None:
            error.add_note(f"Besides, it failed now: {type(besides).__name__}: {besides}")
        raise error from cause

    def finish(self) -> None:
        """Let the thread close the sink after all earlier writes, and end, without waiting."""
        self._cancel_join = at_exit(self.join)
        with self._changed:
            self._forgotten = self._stopped = True
            self._items.append(_Ask("close"))
            self._changed.notify_all()

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self.join()

    def join(self) -> None:
        """Wait for the end of the thread."""
        self.thread.join()

    # -- the thread -------------------------------------------------------------------------------

    def _work(self) -> None:
        while (item := self._next()) is not None:
            if isinstance(item, _Ask):
                self._answer(item)
            else:
                self._write(item)
        self._cancel_join()

    def _next(self) -> Records | _Ask | None:
        with self._changed:
            while not self._items and not self._stopped:
                self._changed.wait()
            if not self._items:
                return None
            item = self._items.popleft()
            if not isinstance(item, _Ask):
                self.writes -= 1
                self._changed.notify_all()
            return item

    def _answer(self, ask: _Ask) -> None:
        try:
            getattr(self.sink, ask.method)()
        except BaseException as error:
            ask.error = error
        with self._changed:
            ask.done = True
            self._changed.notify_all()
        if self._forgotten:
            self._warn(ask.error)

    def _warn(self, error: BaseException | None) -> None:
        """Warn of errors that no caller can receive any more."""
        try:
            self.raise_all(error)
        except BaseException as failure:
            text = f"A sink was not closed, and closing it now failed: {failure}"
            warnings.warn(text, stacklevel=2)

    def _write(self, records: Records) -> None:
        try:
            write_validated(self.sink, records, owned=True)
        except BaseException as error:  # of any kind: it must reach the program
            with self._changed:
                behind = [item for item in self._items if not isinstance(item, _Ask)]
                self._items = collections.deque(x for x in self._items if isinstance(x, _Ask))
                self.writes = 0
                self._failure = (error, [records, *behind])
                self._changed.notify_all()


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
