"""Locks of files, which the system releases when the process ends, however it ends."""

from __future__ import annotations

import contextlib
import functools
import os
import weakref

import xxhash

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no such locks
    fcntl = None  # type: ignore[assignment]


def lock(descriptor: int, exclusive: bool = True) -> bool | None:
    """Lock an open file, exclusively or shared, without waiting.

    Returns False if another process holds the lock, and None if the disk does not support locks.
    The locks tell files of running processes from those that dead processes left.
    """
    if fcntl is None:
        return None
    try:
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def unlock(descriptor: int) -> None:
    """Unlock a file. Closing is not enough if a forked child has the file open, too."""
    with contextlib.suppress(OSError):
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_UN)


class HeldLock:
    """A locked file. The system releases the lock when the process ends."""

    def __init__(self, descriptor: int, certain: bool) -> None:
        self._descriptor, self.certain = descriptor, certain
        _held.add(self)

    def release(self) -> None:
        """Unlock and close the file."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            unlock(descriptor)
            os.close(descriptor)

    def leave(self) -> None:
        """Close the file in a forked child, without unlocking it for the parent."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


_held: weakref.WeakSet[HeldLock] = weakref.WeakSet()


def _leave_all() -> None:
    """Leave all locks to the parent: a child that outlives it would hold them."""
    for each in _held:
        each.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all)


@functools.cache
def system_id() -> str:
    """Return a name of the running system; empty if it has none.

    Processes with the same name see each other's locks, on every disk that has locks.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return f"{xxhash.xxh3_64_intdigest(file.read(64).strip()):016x}"
    except OSError:
        return ""
