"""``Fallback``: a store on disk for when a sink fails.

What the sink took but did not yet make safe is kept in memory, so that it can be written to the
store as well; once there is much of it the sink is flushed, and it need not be kept any more.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sawlog._paths import absolute
from sawlog._validate import positive_integer
from sawlog.errors import SinkWarning
from sawlog.records import Entries, Records
from sawlog.sinks._base import BaseSink, Sink, checked_sink, fail, write_validated
from sawlog.sinks._entries import copied_records
from sawlog.sinks._store import StoreSink

StrPath = str | os.PathLike[str]

KEEP = 64 * 2**20
_OVERHEAD = 1024  # bytes that a name in a record takes besides its arrays, about


class Fallback(BaseSink):
    """Writes to a sink; once that fails, to a store on disk, so that the program can go on.

    Whatever the sink raises, from any method, is reported and not raised. From then on everything
    goes to a new store, beginning with all that the sink had not made safe, so that nothing is
    lost; some of it may be in both places. The failure is reported a second time on ``close``,
    which ends the sink as failed.

    Args:
        sink: where everything goes as long as it works.
        path: the folder of the store. Where there is something already, ``path-2`` and so on.
        report: what is told of failures, in one sentence or two; None warns.
        keep: how many bytes to keep before the sink is flushed.
        options: those of :class:`sawlog.sinks.StoreSink`.

    Raises:
        ArgumentError: ``sink`` is none, or ``keep`` is no whole number of at least 1.
        StoreError: from any method: the store fails as well.

    >>> import tempfile, warnings, numpy as np, sawlog
    >>> from sawlog.records import Entries, Records
    >>> class Broken:
    ...     def write(self, records):
    ...         raise ConnectionError("no network")
    ...     flush = close = lambda self: None
    >>> path = tempfile.mkdtemp() + "/spare"
    >>> with Fallback(Broken(), path, report=lambda text: None) as sink:
    ...     sink.write(Records({"loss": Entries(np.array([0.5]))}))
    >>> sink.failure, sawlog.store.open(path).read("loss")
    (ConnectionError('no network'), array([0.5]))
    """

    def __init__(
        self,
        sink: Sink,
        path: StrPath,
        *,
        report: Callable[[str], None] | None = None,
        keep: int = KEEP,
        **options: Any,
    ) -> None:
        super().__init__()
        self._sink = checked_sink(sink, "Fallback")
        self._path = absolute(path)
        self._report = _warn if report is None else report
        self._most = positive_integer("keep", keep)
        self._options = options
        self._kept: list[Records] = []
        self._bytes = 0
        self._failure: Exception | None = None
        self._store: StoreSink | None = None
        self._ended = False

    def __repr__(self) -> str:
        return f"Fallback({self._sink!r}, {str(self._path)!r})"

    @property
    def failure(self) -> Exception | None:
        """What the sink raised, if it did."""
        return self._failure

    @property
    def path(self) -> Path | None:
        """The folder of the store, if there is one."""
        return None if self._store is None else self._store.path

    def fail(self) -> None:
        """Have ``close`` end the sink as failed, and the store."""
        super().fail()
        fail(self._sink)
        if self._store is not None:
            self._store.fail()

    def _write(self, records: Records) -> None:
        if self._store is not None:
            write_validated(self._store, records)
        else:
            self._write_and_keep(records, copied_records(records), owned=False)

    def _write_owned(self, records: Records) -> None:
        if self._store is not None:
            write_validated(self._store, records, owned=True)
        else:
            self._write_and_keep(records, records, owned=True)

    def _write_and_keep(self, records: Records, own: Records, *, owned: bool) -> None:
        try:
            write_validated(self._sink, records, owned=owned)
            self._keep(own)
        except Exception as error:
            self._kept.append(own)
            self._give_up(error)

    def _keep(self, records: Records) -> None:
        if self._bytes > self._most:
            self._sink.flush()
            self._forget()
        self._kept.append(records)
        self._bytes += sum(_OVERHEAD + _nbytes(entries) for entries in records.values())

    def _forget(self) -> None:
        self._kept, self._bytes = [], 0

    def _flush(self) -> None:
        if self._store is None:
            try:
                self._sink.flush()
                self._forget()
            except Exception as error:
                self._give_up(error)
        if self._store is not None:
            self._store.flush()

    def _close(self) -> None:
        if not self._ended:
            self._end()
        if self._store is not None:
            self._store.close()
            self._report(f"{self._said()} All that it may lack is in the store {self._store.path}.")

    def _end(self) -> None:
        """Close the sink, once: one that failed before may do as it likes."""
        if self._failure is not None:
            fail(self._sink)
        try:
            self._sink.close()
        except Exception as error:
            if self._failure is None:
                self._give_up(error)
        self._ended = True
        self._forget()

    def _give_up(self, error: Exception) -> None:
        """Go on with a store instead; where that fails too, the next write tries again."""
        try:
            store = StoreSink(_free(self._path), exists="error", **self._options)
            try:
                for records in self._kept:
                    write_validated(store, records, owned=True)
            except BaseException:
                store.close()
                raise
        except Exception as worse:
            said = (
                f"It was to take the place of {self._sink!r}, which failed: {error!r}. What was "
                "written is kept in memory, and the next call tries again: do not write it again."
            )
            worse.add_note(said)
            raise
        self._store = store
        if self._failed:
            store.fail()
        self._failure = error
        self._forget()
        self._report(
            f"{self._said()} The program goes on, and its logs go to the store {self._store.path}, "
            "beginning with those that were not safe yet."
        )

    def _said(self) -> str:
        return f"{self._sink!r} failed: {type(self._failure).__name__}: {self._failure}."


def _nbytes(entries: Entries) -> int:
    mask = () if entries.mask is None else (entries.mask,)
    return sum(array.nbytes for array in (entries.values, *entries.steps.values(), *mask))


def _free(path: Path) -> Path:
    """The path, or one with a number behind it."""
    others = (path.with_name(f"{path.name}-{i}") for i in itertools.count(2))
    return next(each for each in itertools.chain([path], others) if not each.exists())


def _warn(text: str) -> None:
    warnings.warn(text, SinkWarning, stacklevel=2)
