"""``Fanout``: write everything to several sinks."""

from __future__ import annotations

from collections.abc import Callable

from sawlog.errors import ArgumentError
from sawlog.records import Records
from sawlog.sinks._base import BaseSink, Sink, checked_sink, fail, write_validated
from sawlog.sinks._errors import FanoutError


class Fanout(BaseSink):
    """Write everything to every sink, in the given order.

    All sinks are called, even if one fails; then :class:`FanoutError` names those that failed. The
    other sinks have the records, so do not write them again here.

    Raises:
        ArgumentError: no sinks are given, or an argument is not a sink.
        FanoutError: from ``write``, ``flush`` and ``close``: some of the sinks failed.

    >>> import numpy as np
    >>> from sawlog.records import Entries, Records
    >>> from sawlog.sinks import MemorySink
    >>> one, two = MemorySink(), MemorySink()
    >>> Fanout(one, two).write(Records({"x": Entries(np.arange(2))}))
    >>> one.logs, two.logs
    ({'x': array([0, 1])}, {'x': array([0, 1])})
    """

    def __init__(self, *sinks: Sink) -> None:
        super().__init__()
        if not sinks:
            raise ArgumentError("Fanout needs at least one sink. Hint: Fanout(MemorySink(), ...).")
        self._sinks = tuple(checked_sink(sink, "Fanout") for sink in sinks)

    def __repr__(self) -> str:
        return f"Fanout({', '.join(map(repr, self._sinks))})"

    def fail(self) -> None:
        """Mark the run as failed in all sinks."""
        super().fail()
        for sink in self._sinks:
            fail(sink)

    def _write(self, records: Records) -> None:
        self._each("write", lambda sink: write_validated(sink, records))

    def _write_owned(self, records: Records) -> None:
        self._each("write", lambda sink: write_validated(sink, records, owned=True))

    def _flush(self) -> None:
        self._each("flush", lambda sink: sink.flush())

    def _close(self) -> None:
        self._each("close", lambda sink: sink.close())

    def _each(self, what: str, call: Callable[[Sink], None]) -> None:
        failures: list[tuple[Sink, Exception]] = []
        for sink in self._sinks:
            try:
                call(sink)
            except Exception as error:
                failures.append((sink, error))
        if failures:
            raise _failed(what, failures, len(self._sinks))


def _failed(what: str, failures: list[tuple[Sink, Exception]], total: int) -> FanoutError:
    texts = "; ".join(f"{sink!r}: {type(e).__name__}: {e}" for sink, e in failures)
    hints = {
        "write": "the other sinks have these logs, so do not write them here again.",
        "flush": "call flush() again once the cause is gone.",
        "close": "call close() again once the cause is gone; the other sinks are closed.",
    }
    text = f"{len(failures)} of {total} sinks failed to {what}: {texts}. Hint: {hints[what]}"
    return FanoutError(text, [error for _, error in failures])
