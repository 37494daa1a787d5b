"""``Sink``, what every sink promises, and ``BaseSink``, which keeps the promises common to all.

1. ``write`` takes all of the records or raises and takes none. What it took need not be safe yet.
   It does not hold on to the arrays: the caller may change them afterwards.
2. Entries of one name stay in the order in which they were written. Entries that are masked as a
   whole were never logged, and a sink that has no masks leaves them out.
3. ``flush`` returns when everything taken is safe: where it would be after ``close``.
4. ``close`` flushes and ends. Calling it again does nothing; where it failed, it tries again.
   After it ``write`` raises :class:`~sawlog.errors.StoreClosedError`.
5. Threads may share a sink. A process that was forked may not: ``write`` raises there, and
   ``close`` does nothing.
6. As a context manager a sink closes at the end, and never hides the error that was under way.
7. ``fail`` says that what is logged came to a bad end; ``close`` then ends it as failed, where the
   place knows of that. Sinks without it are left alone.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, TypeVar

from sawlog._turn import Turn
from sawlog.errors import ArgumentError, StoreClosedError
from sawlog.records import Entries, Records
from sawlog.sinks._entries import normal

Self = TypeVar("Self", bound="BaseSink")


class Sink(Protocol):
    """Where the logs of one run go."""

    def write(self, records: Records) -> None:
        """Take entries; they need not be safe yet."""

    def flush(self) -> None:
        """Return when everything taken is safe."""

    def close(self) -> None:
        """Flush and end. Where that fails, it may be tried again."""


class BaseSink(abc.ABC):
    """A sink whose promises are kept; a subclass says how to ``_write``, ``_flush``, ``_close``.

    These three run one at a time, only while the sink is open, and only in the process that made
    it. ``_write`` gets records that were checked: numpy arrays, masks that fit their values.
    """

    def __init__(self) -> None:
        self._turn = Turn()
        self._closed = False
        self._failed = False
        self._process = os.getpid()

    @abc.abstractmethod
    def _write(self, records: Records) -> None:
        """Take all of the records, or raise and take none."""

    def _flush(self) -> None:  # noqa: B027
        """Return when everything taken is safe; to begin with, that is so at once."""

    def _close(self) -> None:
        """Flush, and let go of what is held; to begin with, nothing."""
        self._flush()

    def write(self, records: Records | Mapping[str, Entries]) -> None:
        """Take entries; they need not be safe yet.

        Raises:
            ArgumentError, LogValueError, LogMismatchError: these are no records for any sink.
            StoreClosedError: the sink is closed, or belongs to another process.
        """
        checked = normal(records)
        self._check_process()
        with self._turn.taken():
            self._check_open()
            self._write(checked)

    def flush(self) -> None:
        """Return when everything taken is safe.

        Raises:
            StoreClosedError: the sink is closed, or belongs to another process.
        """
        self._check_process()
        with self._turn.taken():
            self._check_open()
            self._flush()

    def close(self) -> None:
        """Flush and end. A second call does nothing; where the first failed, it tries again."""
        if os.getpid() != self._process:
            return
        with self._turn.taken():
            if not self._closed:
                self._close()
                self._closed = True

    def fail(self) -> None:
        """Have ``close`` end this as failed, where the place of the logs knows of that."""
        self._failed = True

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._closed

    @property
    def failed(self) -> bool:
        """Whether it ends as failed."""
        return self._failed

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(
                f"{self!r} is closed. Probably its run was finished before this was logged. "
                "Hint: close it last, or make a new one."
            )

    def _check_process(self) -> None:  # before the lock: after a fork, nobody may ever release it
        if os.getpid() != self._process:
            raise StoreClosedError(
                f"{self!r} belongs to process {self._process}, and this is process {os.getpid()}. "
                "Probably it was made before a fork. Hint: make one in each process, after the "
                "fork, each with a place of its own."
            )

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if error is not None:
            self.fail()
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"Besides, {self!r} could not be closed: {failure}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r} cannot be sent to another process. Hint: make a sink there, with a place "
            "of its own."
        )


class Around(BaseSink):
    """A sink around another: what it lets through goes on, ``flush`` and ``close`` as well."""

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self._sink = checked_sink(sink, type(self).__name__)

    def _forward(self, entries: Mapping[str, Entries]) -> None:
        """Write what is left, if anything is."""
        if entries:
            self._sink.write(Records(entries))

    def fail(self) -> None:
        """Have ``close`` end what is inside as failed."""
        super().fail()
        fail(self._sink)

    def _flush(self) -> None:
        self._sink.flush()

    def _close(self) -> None:
        self._sink.close()


def fail(sink: Sink) -> None:
    """Have a sink end as failed, if it can."""
    method = getattr(sink, "fail", None)
    if callable(method):
        method()


def checked_sink(sink: Any, who: str) -> Sink:
    """Refuse what is no sink.

    Raises:
        ArgumentError: naming what was given.
    """
    methods = ("write", "flush", "close")
    lacking = [name for name in methods if not callable(getattr(sink, name, None))]
    if lacking or isinstance(sink, type):
        given = f"the class {sink.__name__}" if isinstance(sink, type) else repr(sink)
        raise ArgumentError(
            f"{who} goes around a sink, which has the methods write, flush and close, and got "
            f'{given:.200}. Hint: {who}(sawlog.sinks.JsonlSink("run.jsonl"), ...).'
        )
    return sink


def checked_count(count: Any, what: str) -> int:
    """Refuse what is no positive whole number.

    Raises:
        ArgumentError: naming what was given.
    """
    if isinstance(count, bool) or not hasattr(count, "__index__") or count.__index__() < 1:
        raise ArgumentError(f"{what} must be a whole number of at least 1, got {count!r}.")
    return int(count.__index__())
