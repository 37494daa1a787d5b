"""``Sink``, the protocol of all sinks, and ``BaseSink``, which implements what they share.

1. ``write`` takes all of the records, or raises and takes none. They need not be durable yet. The
   sink keeps no reference to the arrays: the caller may change them afterwards.
2. Entries of one name keep the order in which they were written. Entries that are masked entirely
   were never logged, and a sink without masks leaves them out.
3. ``flush`` returns when everything taken is durable: where it would be after ``close``.
4. ``close`` flushes and releases the sink. A second call does nothing; after a failure, it tries
   again. After ``close``, ``write`` raises :class:`~sawlog.errors.StoreClosedError`.
5. Threads may share a sink. Forked processes may not: there ``write`` raises, and ``close`` does
   nothing.
6. As a context manager a sink closes at the end of the block, and never hides an exception.
7. ``fail`` marks the run as failed; ``close`` then ends it as failed, where the destination has
   such a status. Sinks need not have ``fail``.

Records are validated once, by the outermost sink. Sinks around others pass them on with
:func:`write_validated`.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Mapping
from typing import Any, Protocol

from sawlog._lifecycle import CloseOnExit
from sawlog._turn import Turn
from sawlog.errors import ArgumentError, StoreClosedError
from sawlog.records import Entries, Records
from sawlog.sinks._entries import copied_records, normal


class Sink(Protocol):
    """The destination of the logs of one run."""

    def write(self, records: Records) -> None:
        """Take entries; they need not be durable yet."""

    def flush(self) -> None:
        """Return when everything taken is durable."""

    def close(self) -> None:
        """Flush, and release the sink. After a failure, call it again."""


class BaseSink(CloseOnExit, abc.ABC):
    """A sink that keeps these promises; a subclass defines ``_write``, ``_flush`` and ``_close``.

    These three run one at a time, only while the sink is open, and only in the process that created
    it. ``_write`` receives validated records: numpy arrays, with masks that fit their values.
    """

    def __init__(self) -> None:
        self._turn = Turn()
        self._closed = False
        self._failed = False
        self._process = os.getpid()

    @abc.abstractmethod
    def _write(self, records: Records) -> None:
        """Take all of the records, or raise and take none."""

    def _write_owned(self, records: Records) -> None:
        """Take records whose arrays no one will change, so that keeping them needs no copy."""
        self._write(records)

    def _flush(self) -> None:
        """Return when everything taken is durable; by default at once."""

    def _close(self) -> None:
        """Flush, and release resources; by default only flush."""
        self._flush()

    def write(self, records: Records | Mapping[str, Entries]) -> None:
        """Take entries; they need not be durable yet.

        Raises:
            ArgumentError, LogValueError, LogMismatchError: the records are not valid for any sink.
            StoreClosedError: the sink is closed, or another process created it.
        """
        self._write_validated(normal(records), owned=False)

    def _write_validated(self, records: Records, owned: bool) -> None:
        self._check_process()
        with self._turn.taken():
            self._check_open()
            if owned:
                self._write_owned(records)
            else:
                self._write(records)

    def flush(self) -> None:
        """Return when everything taken is durable.

        Raises:
            StoreClosedError: the sink is closed, or another process created it.
        """
        self._check_process()
        with self._turn.taken():
            self._check_open()
            self._flush()

    def close(self) -> None:
        """Flush, and release the sink. A second call does nothing, unless the first failed."""
        if os.getpid() != self._process:
            return
        with self._turn.taken():
            if not self._closed:
                self._close()
                self._closed = True

    def fail(self) -> None:
        """Mark the run as failed, where the destination has such a status."""
        self._failed = True

    @property
    def closed(self) -> bool:
        """Whether the sink is closed."""
        return self._closed

    @property
    def failed(self) -> bool:
        """Whether the sink ends as failed."""
        return self._failed

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(
                f"{self!r} is closed. Probably its run was finished before this was logged. "
                "Hint: close it last, or make a new one."
            )

    def _check_process(self) -> None:  # before the lock, which may stay locked after a fork
        if os.getpid() != self._process:
            raise StoreClosedError(
                f"{self!r} belongs to process {self._process}; this is process {os.getpid()}. "
                "Probably it was created before a fork. Hint: create a sink in each process, after "
                "the fork, each with its own path."
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r} cannot be sent to another process. Hint: create a sink there, with its own "
            "path."
        )


class CopyingSink(BaseSink):
    """A sink that keeps records after ``write`` returns; ``_write_owned`` says how."""

    def _write(self, records: Records) -> None:
        self._write_owned(copied_records(records))

    @abc.abstractmethod
    def _write_owned(self, records: Records) -> None:
        """Take records whose arrays no one will change."""


class WrapperSink(BaseSink):
    """A sink around another one: it forwards some of the records, and ``flush`` and ``close``."""

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self._sink = checked_sink(sink, type(self).__name__)

    def _forward(self, entries: Mapping[str, Entries]) -> None:
        """Write the entries that are left, if any."""
        if entries:
            write_validated(self._sink, Records(entries))

    def fail(self) -> None:
        """Mark the run as failed, also in the sink inside."""
        super().fail()
        fail(self._sink)

    def _flush(self) -> None:
        self._sink.flush()

    def _close(self) -> None:
        self._sink.close()


def write_validated(sink: Sink, records: Records, *, owned: bool = False) -> None:
    """Write validated records to a sink, which does not validate them again if it is a BaseSink.

    With ``owned`` no one changes the arrays afterwards, so the sink need not copy them either.
    """
    inherited = getattr(sink.write, "__func__", None) is BaseSink.write
    if inherited and isinstance(sink, BaseSink):
        sink._write_validated(records, owned)
    else:
        sink.write(records)


def fail(sink: Sink) -> None:
    """Mark the run of a sink as failed, if the sink has ``fail``."""
    method = getattr(sink, "fail", None)
    if callable(method):
        method()


def checked_sink(sink: Any, who: str) -> Sink:
    """Check that a value is a sink.

    Raises:
        ArgumentError: it lacks a method, or is a class.
    """
    methods = ("write", "flush", "close")
    lacking = [name for name in methods if not callable(getattr(sink, name, None))]
    if lacking or isinstance(sink, type):
        given = f"the class {sink.__name__}" if isinstance(sink, type) else repr(sink)
        raise ArgumentError(
            f"{who} needs a sink, with the methods write, flush and close; got {given:.200}. "
            f'Hint: {who}(sawlog.sinks.JsonlSink("run.jsonl"), ...).'
        )
    return sink
