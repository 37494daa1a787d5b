"""``Fallback``: a store on disk that replaces a sink when it fails.

Records that the sink took but has not flushed are kept in memory, so that they can be written to
the store as well. When they exceed a limit, the sink is flushed and they are released.
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
_OVERHEAD = 1024  # approximate bytes of a name in a record, without its arrays


class Fallback(BaseSink):
    """Write to a sink; once it fails, write to a store on disk, so that the program can continue.

    An exception of the sink, from any method, is reported and not raised. From then on everything
    goes to a new store, beginning with all records that the sink had not flushed, so that nothing
    is lost; some of them may be in both places. The failure is reported a second time by ``close``,
    which ends the sink as failed.

    Args:
        sink: the sink to write to as long as it works.
        path: the folder of the store. If it exists, ``path-2`` and so on.
        report: a function that receives a sentence or two about each failure; None warns.
        keep: the number of bytes to keep in memory before the sink is flushed.
        options: those of :class:`sawlog.sinks.StoreSink`.

    Raises:
        ArgumentError: ``sink`` is not a sink, or ``keep`` is not a positive integer.
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
        """The exception of the sink, if it failed."""
        return self._failure

    @property
    def path(self) -> Path | None:
        """The folder of the store, once the sink has failed."""
        return None if self._store is None else self._store.path

    def fail(self) -> None:
        """Mark the run as failed, also in the sink and the store."""
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
            self._report(f"{self._failure_text()} The rest is in the store {self._store.path}.")

    def _end(self) -> None:
        """Close the sink once; ignore errors of a sink that failed before."""
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
        """Replace the sink by a store; if that fails too, the next write tries again."""
        try:
            store = StoreSink(_free(self._path), exists="error", **self._options)
            try:
                for records in self._kept:
                    write_validated(store, records, owned=True)
            except BaseException:
                store.close()
                raise
        except Exception as worse:
            worse.add_note(
                f"The store was to replace {self._sink!r}, which failed: {error!r}. Its records "
                "are kept in memory, and the next call tries again: do not write them again."
            )
            raise
        self._store = store
        if self._failed:
            store.fail()
        self._failure = error
        self._forget()
        self._report(
            f"{self._failure_text()} The program continues, and its logs go to the store "
            f"{self._store.path}, beginning with those that were not flushed."
        )

    def _failure_text(self) -> str:
        return f"{self._sink!r} failed: {type(self._failure).__name__}: {self._failure}."


def _nbytes(entries: Entries) -> int:
    mask = () if entries.mask is None else (entries.mask,)
    return sum(array.nbytes for array in (entries.values, *entries.steps.values(), *mask))


def _free(path: Path) -> Path:
    """Return the path, or the first unused one with a number appended."""
    others = (path.with_name(f"{path.name}-{i}") for i in itertools.count(2))
    return next(each for each in itertools.chain([path], others) if not each.exists())


def _warn(text: str) -> None:
    warnings.warn(text, SinkWarning, stacklevel=2)
