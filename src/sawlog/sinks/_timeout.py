"""``Timeout``: a sink that does not respond in time has failed.

A call that hangs cannot be stopped, only abandoned: a thread makes all calls, one after the other,
and the caller stops waiting after the given time.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from sawlog._validate import positive_number
from sawlog._worker import Worker
from sawlog.errors import SinkTimeoutError
from sawlog.records import Records
from sawlog.sinks._base import CopyingSink, Sink, checked_sink, fail, write_validated


class Timeout(CopyingSink):
    """Call a sink, and wait at most ``seconds`` for each call.

    A call that takes longer raises :class:`~sawlog.errors.SinkTimeoutError`, and so do all later
    calls: the sink is not called again, even if the call that hangs returns. Later writes were not
    taken; whether the write that hangs was taken is unknown. Wrap this in a :class:`Fallback` to
    continue with a store and lose nothing.

    Args:
        sink: the sink to write to; or a function that opens it, which may hang as well.
        seconds: the longest time of a call.

    Raises:
        ArgumentError: ``sink`` is not a sink, or ``seconds`` is not a positive number.
        SinkTimeoutError: from any method, and from the constructor if it opens the sink.

    >>> import time, numpy as np
    >>> from sawlog.records import Entries, Records
    >>> class Hangs:
    ...     def write(self, records):
    ...         time.sleep(10)
    ...     flush = close = lambda self: None
    >>> try:
    ...     Timeout(Hangs(), 0.01).write(Records({"x": Entries(np.ones(1))}))
    ... except TimeoutError as error:
    ...     print(str(error).partition(". ")[0].rpartition("> ")[2])
    did not return from write within 0.01 seconds
    """

    def __init__(self, sink: Sink | Callable[[], Sink], seconds: float) -> None:
        super().__init__()
        self._seconds = min(positive_number("seconds", seconds), threading.TIMEOUT_MAX)
        self._hangs: str | None = None  # the method that hangs
        self._sink: Sink | None = None
        self._worker = Worker("sawlog-timeout")
        weakref.finalize(self, self._worker.stop)
        opened = self._call("open", sink) if _opens(sink) else sink
        self._sink = checked_sink(opened, "Timeout")

    def __repr__(self) -> str:
        return "A sink" if self._sink is None else repr(self._sink)

    @property
    def appends(self) -> bool:
        """Whether the sink had entries before."""
        return bool(getattr(self._sink, "appends", False))

    def fail(self) -> None:
        """Mark the run as failed, also in the sink inside."""
        super().fail()
        if self._sink is not None:
            fail(self._sink)

    def _write_owned(self, records: Records) -> None:
        # A call that hangs reads the records after ``write`` has raised, so they must be copies.
        assert self._sink is not None
        self._call("write", partial(write_validated, self._sink, records, owned=True))

    def _flush(self) -> None:
        assert self._sink is not None
        self._call("flush", self._sink.flush)

    def _close(self) -> None:
        assert self._sink is not None
        self._call("close", self._sink.close)

    def _call(self, method: str, function: Any) -> Any:
        later = self._hangs is not None
        if not later:
            task = self._worker.submit(function)
            if task.wait(self._seconds):  # Ctrl-C can interrupt this
                return task.result()
            self._hangs = method
        taken = ", so nothing of this call was taken" if later else ""
        raise SinkTimeoutError(
            f"{self!r} did not return from {self._hangs} within {self._seconds:g} seconds. It is "
            f"not called any more{taken}. Probably the network or the disk hangs. "
            "Hint: increase timeout=, or wait forever with timeout=None."
        )


def _opens(sink: Any) -> bool:
    return callable(sink) and not callable(getattr(sink, "write", None))
