"""A text file that grows by whole lines: resumed, locked, synced, and never left half-written.

Lines go to the operating system at once, so that only a crash of the machine can lose what was
written since the last flush. Where the disk refuses in the middle of a write, the file is cut back
to where it was.
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
from sawlog.errors import ArgumentError, ForeignStoreError, StoreExistsError, StoreWriteError
from sawlog.store._format._json_files import write_error

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no such locks
    fcntl = None  # type: ignore[assignment]

_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}

#: Where a file is whole, in bytes: given an open file, how much of it is complete lines, and what
#: has to be added to make it so. Raises ForeignStoreError where it is no file of this kind.
Whole = Callable[[Any, Path], tuple[int, bytes]]


class LineFile:
    """The file of one sink, open for appending."""

    def __init__(self, path: str | os.PathLike[str], exists: str, whole: Whole) -> None:
        self.path = absolute(path)
        _check_exists(exists)
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
        """Keep a file open until it is closed, or this is forgotten."""
        self._descriptor = descriptor
        self._let_go = weakref.finalize(self, os.close, descriptor)

    def _open(self, exists: str) -> int:
        new = os.O_EXCL if exists == "error" else 0
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | new | getattr(os, "O_BINARY", 0)
        try:
            return os.open(self.path, flags, 0o666)
        except FileExistsError as error:
            raise StoreExistsError(
                f"There is a file {self.path} already. Hint: exists='append' goes on with it, "
                "exists='replace' empties it first."
            ) from error

    def _lock(self) -> None:
        """One sink a file: two would cut off each other's lines."""
        if fcntl is None:  # pragma: no cover
            return
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:  # pragma: no cover - some network disks
                return
            raise StoreExistsError(
                f"{self.path} is being written to by another sink, in this process or another. "
                "Hint: close that one first, or give each a file of its own."
            ) from error

    def _resume(self, whole: Whole) -> None:
        """Cut off what a crash left of a last line, or refuse a file that is something else."""
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
                    f"The last line of {self.path} was cut, probably by a crash, and is removed: "
                    f"{len(torn)} bytes, {torn[:80]!r}",
                    stacklevel=4,
                )
                os.ftruncate(self._descriptor, end)
            write_all(self._descriptor, tail)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it yet."""
        return os.fstat(self._descriptor).st_size == 0

    def append(self, lines: bytes) -> None:
        """Add whole lines, or nothing.

        Raises:
            StoreFullError, StorePermissionError, StoreWriteError: the disk refuses.
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
        """Put what ``write`` writes in the place of the file, in one step."""
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
        """Sync, and let go of the file."""
        self.sync()
        if fcntl is not None:  # a forked process may hold the file open, and the lock with it
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._let_go()


def _check_exists(exists: Any) -> None:
    if exists not in ("append", "replace", "error"):
        raise ArgumentError(f"exists is 'append', 'replace' or 'error', not {exists!r}")


@contextlib.contextmanager
def _explaining(doing: str, path: Path) -> Any:
    try:
        yield
    except (StoreExistsError, StoreWriteError):
        raise
    except OSError as error:
        raise write_error(error, doing, path) from error


def foreign(path: Path, what: str, first: bytes) -> ForeignStoreError:
    """The error for a file that no sink of this kind wrote."""
    return ForeignStoreError(
        f"{path} is not a file that {what} wrote: it begins with {first[:60]!r}. It was left as it "
        "is. Hint: give another path, or exists='replace' to empty it."
    )
