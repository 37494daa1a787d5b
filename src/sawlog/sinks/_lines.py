"""A text file that grows by whole lines: resumed, locked, synced, and never left half-written.

Lines go to the operating system at once, so that only a crash of the machine can lose those written
since the last flush. If a write fails in the middle, the file is truncated to its former size.
"""

from __future__ import annotations

import contextlib
import errno
import os
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sawlog._atomic import replacing, sync_folder, write_all
from sawlog._paths import absolute
from sawlog._validate import one_of
from sawlog.errors import ForeignStoreError, StoreExistsError, StoreWriteError
from sawlog.sinks._base import BaseSink
from sawlog.sinks._logdict_metadata import DisplayedNames
from sawlog.store._format._json_files import write_error

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no such locks
    fcntl = None  # type: ignore[assignment]

_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}

#: Reads an open file; returns how many bytes of it are complete lines, and which bytes to append to
#: complete the last one. Raises ForeignStoreError for a file of another kind.
Whole = Callable[[Any, Path], tuple[int, bytes]]


class LineFile:
    """The file of one sink, open for appending."""

    def __init__(self, path: str | os.PathLike[str], exists: str, whole: Whole) -> None:
        self.path = absolute(path)
        one_of("exists", exists, ("append", "replace", "error"))
        with _explaining("opening", self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._hold(self._open(exists))
        self.resumed = False
        try:
            self._lock()
            if exists == "replace":
                os.ftruncate(self._descriptor, 0)
            self._resume(whole)
        except BaseException:
            self._let_go()
            raise

    def _hold(self, descriptor: int) -> None:
        """Keep a descriptor open until ``close``, or until this object is collected."""
        self._descriptor = descriptor
        self._let_go = weakref.finalize(self, os.close, descriptor)

    def _open(self, exists: str) -> int:
        new = os.O_EXCL if exists == "error" else 0
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | new | getattr(os, "O_BINARY", 0)
        try:
            return os.open(self.path, flags, 0o666)
        except FileExistsError as error:
            raise StoreExistsError(
                f"The file {self.path} exists. Hint: exists='append' appends to it, "
                "exists='replace' empties it first."
            ) from error

    def _lock(self) -> None:
        """Lock the file: two sinks would truncate each other's lines."""
        if fcntl is None:  # pragma: no cover
            return
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:  # pragma: no cover - some network disks
                return
            raise StoreExistsError(
                f"{self.path} is being written to by another sink, in this process or another. "
                "Hint: close that one first, or give each sink its own file."
            ) from error

    def _resume(self, whole: Whole) -> None:
        """Remove a last line that a crash cut, or refuse a file of another kind."""
        size = os.fstat(self._descriptor).st_size
        if not size:
            return
        self.resumed = True
        with open(self.path, "rb") as file:
            end, tail = whole(file, self.path)
            file.seek(end)
            torn = file.read()
        with _explaining("repairing", self.path):
            if torn:
                warnings.warn(
                    f"The last line of {self.path} was cut, probably by a crash; it is removed: "
                    f"{len(torn)} bytes, {torn[:80]!r}",
                    stacklevel=4,
                )
                os.ftruncate(self._descriptor, end)
            write_all(self._descriptor, tail)

    @property
    def is_empty(self) -> bool:
        """Whether the file is empty."""
        return os.fstat(self._descriptor).st_size == 0

    def append(self, lines: bytes) -> None:
        """Append whole lines, or nothing.

        Raises:
            StoreFullError, StorePermissionError, StoreWriteError: the disk is full, not writable,
                or failed.
        """
        if not lines:
            return
        size = os.fstat(self._descriptor).st_size
        try:
            with _explaining("writing to", self.path):
                write_all(self._descriptor, lines)
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, size)
            raise

    def sync(self) -> None:
        """Return when everything is on disk."""
        with _explaining("writing to", self.path):
            os.fsync(self._descriptor)
            sync_folder(self.path.parent)

    def replace(self, write: Callable[[Any], None]) -> None:
        """Replace the file atomically by what ``write(file)`` writes."""
        with _explaining("rewriting", self.path):
            fresh = -1
            try:
                with replacing(self.path) as aside:
                    with open(aside.aside, "wb") as file:
                        write(file)
                    os.chmod(aside.aside, os.fstat(self._descriptor).st_mode & 0o777)
                    flags = os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0)
                    fresh = os.open(aside.aside, flags)
            except BaseException:
                if fresh >= 0:
                    os.close(fresh)
                raise
        self._let_go()
        self._hold(fresh)
        self._lock()

    def close(self) -> None:
        """Sync and close the file."""
        self.sync()
        if fcntl is not None:  # a forked process may hold the file open, and the lock with it
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._let_go()


@contextlib.contextmanager
def _explaining(doing: str, path: Path) -> Any:
    try:
        yield
    except (StoreExistsError, StoreWriteError):
        raise
    except OSError as error:
        raise write_error(error, doing, path, new=doing == "opening") from error


class LineSink(BaseSink):
    """A sink that writes lines to one file; a subclass defines ``_write``."""

    def __init__(self, path: str | os.PathLike[str], exists: str, whole: Whole) -> None:
        super().__init__()
        self._file = LineFile(path, exists, whole)
        self._shown = DisplayedNames()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    @property
    def appends(self) -> bool:
        """Whether the file had entries before."""
        return self._file.resumed

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    def _flush(self) -> None:
        self._file.sync()

    def _close(self) -> None:
        self._file.close()


def foreign(path: Path, what: str, first: bytes) -> ForeignStoreError:
    """Return the error for a file that another program wrote."""
    return ForeignStoreError(
        f"{path} is not a file that {what} wrote: it begins with {first[:60]!r}. It was left as it "
        "is. Hint: use another path, or exists='replace' to empty it."
    )
