"""``Async``: a thread of its own for a slow sink.

``_Line`` is the queue and what the thread knows; it outlives an ``Async`` that the program forgets,
so that what was taken is still written. Only the thread ever calls the sink, in order. A failure
stops the line: what the sink did not take is put aside, and raised to the next caller.
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
    """Writes in the background, in order; a full queue makes the program wait.

    The sink inside is only ever called by one thread. It is closed with this one, and at the end of
    the program if that was forgotten.

    Where the sink raises, the next ``write``, ``flush`` or ``close`` raises :class:`AsyncError`,
    whose ``refused`` has the records that the sink did not take, all that were waiting behind them,
    and those of the ``write`` that raised it, in order: write them again, or elsewhere, and nothing
    is lost. Afterwards writing goes on.

    Args:
        sink: where everything goes.
        queue: how many writes may wait.

    Raises:
        ArgumentError: ``queue`` is no whole number of at least 1.
        AsyncError: from ``write``, ``flush`` and ``close``: the sink failed in the background. A
            ``close`` that raises it did close, unless it says otherwise.

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
        self._line = _Line(checked_sink(sink, "Async"), most)
        # An Async that the program forgets, or leaves open at its end, still writes.
        self._finalizer = weakref.finalize(self, _finish_forgotten, self._line, self._process)
        self._finalizer.atexit = False
        self._cancel_exit = close_at_exit(self)

    def __repr__(self) -> str:
        return f"Async({self._line.sink!r}, queue={self._line.most})"

    def fail(self) -> None:
        """Have ``close`` end the sink inside as failed."""
        super().fail()
        fail(self._line.sink)

    @property
    def waiting(self) -> int:
        """How many writes wait for the sink."""
        return self._line.writes

    def _write_owned(self, records: Records) -> None:
        self._line.put(records)

    def _flush(self) -> None:
        self._line.raise_all(self._line.ask("flush"))

    def _close(self) -> None:
        error = self._line.ask("close")
        if error is None:
            self._closed = True
            self._finalizer.detach()
            self._cancel_exit()
            self._line.stop()
        self._line.raise_all(error)


class _Ask:
    """A call of ``flush`` or ``close`` that somebody waits for."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.done = False
        self.error: BaseException | None = None


class _Line:
    """What waits for the sink, and the thread that takes it there."""

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
        """Take records once there is room for them."""
        with self._changed:
            while self.writes >= self.most and self._failure is None:
                self._changed.wait()
            self._raise_failure(None, records)
            self._items.append(records)
            self.writes += 1
            self._changed.notify_all()

    def ask(self, method: str) -> BaseException | None:
        """Have the thread call a method after all that was put; returns what that raised."""
        ask = _Ask(method)
        with self._changed:
            self._items.append(ask)
            self._changed.notify_all()
            while not ask.done:
                self._changed.wait()
        return ask.error

    def raise_all(self, error: BaseException | None) -> None:
        """Raise what failed in the background, or else the error that was just met."""
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
        """Have the thread close the sink after all that was put, and end; does not wait."""
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
        """Say what nobody can be told by an exception any more."""
        try:
            self.raise_all(error)
        except BaseException as failure:
            text = f"A sink was not closed, and closing it now failed: {failure}"
            warnings.warn(text, stacklevel=2)

    def _write(self, records: Records) -> None:
        try:
            write_validated(self.sink, records, owned=True)
        except BaseException as error:  # whatever it is, it must reach the program
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


def _finish_forgotten(line: _Line, process: int) -> None:
    """Write what waits after the ``Async`` was collected as garbage.

    This does not wait: the collecting thread may hold a lock of the sink inside.
    """
    if os.getpid() == process:
        line.finish()
