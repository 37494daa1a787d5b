"""The protocol between a store and the place where its files are.

Names are relative to the store, with ``/`` between folder and file: ``segments/a-00000001.x``.
An implementation stays inside the store, whatever the folder contains: it does not follow links,
opens regular files only, and does not wait for other processes. Methods raise ``OSError``:
``FileNotFoundError`` for a missing file, ``ELOOP`` for a link, ``EINVAL`` for any other kind of
file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, MutableSequence
from typing import Any, Protocol


@dataclasses.dataclass(frozen=True, slots=True)
class FileStatus:
    """The size and times of a file.

    ``key`` changes whenever the file is changed or replaced; its last item is the time of the last
    change, in nanoseconds. ``modified`` is in seconds since 1970.
    """

    size: int
    modified: float
    key: tuple[int, ...]


class Mapped(Protocol):
    """The bytes of a file as memory."""

    data: Any  # a buffer, read-only

    def releasing(self, start: int, stop: int) -> Callable[[], object]:
        """Return a quick call that releases the memory of these bytes.

        They are read from disk again if needed.
        """

    def prefetch(self, start: int, stop: int) -> None:
        """Read these bytes into memory, so that a program that uses them does not wait."""

    def is_in_memory(self, start: int, stop: int) -> bool:
        """Return whether these bytes are in memory, as far as a few samples of them tell."""


class Blob(Protocol):
    """An open file. Close it, or use it in a ``with`` block."""

    status: FileStatus

    def read(self, start: int, size: int) -> bytes:
        """Return up to ``size`` bytes from ``start``."""

    def map(self) -> Mapped:
        """Map the whole file, which is not empty; the map outlives the blob."""

    def held(self) -> bool | None:
        """Return whether a process holds the file, see ``put_held``; None if that is unknown."""

    def close(self) -> None:
        """Close the file."""

    def __enter__(self) -> Blob: ...

    def __exit__(self, *error: object) -> None: ...


class Upload(Protocol):
    """A file that is being written; readers see it after ``commit``."""

    def write(self, *pieces: Any) -> None:
        """Add bytes, in few calls of the system."""

    def commit(self) -> None:
        """Make it durable, then give it its name in one step."""

    def discard(self) -> None:
        """Remove what was written, unless it was committed."""


class Lease(Protocol):
    """An exclusive right. ``certain`` is false on a disk without locks."""

    certain: bool

    def release(self) -> None:
        """Release the lease. The end of the process does that, too."""


class Disk(Protocol):
    """The files of one store."""

    def exists(self) -> bool:
        """Return whether the folder of the store exists."""

    def occupied(self) -> bool:
        """Return whether the path of the store is taken, by a file of any kind."""

    def writable(self) -> bool:
        """Return whether files may be added."""

    def make(self, folders: Iterable[str]) -> None:
        """Create the folders that do not exist."""

    def list(self, folder: str = "") -> list[str]:
        """Return the names in a folder, in no order."""

    def status(self, name: str) -> FileStatus:
        """Return the status of a regular file."""

    def read(self, name: str, most: int) -> bytes:
        """Return the contents of a file. ``EFBIG`` if it has more than ``most`` bytes."""

    def open(self, name: str) -> Blob:
        """Open a file to read parts of it."""

    def put(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Publish a small file in one step, replacing an existing one."""

    def put_held(self, name: str, data: bytes, leases: MutableSequence[Lease]) -> bool:
        """Publish a small file as ``put`` does, not durable, and hold it.

        The lease is added to ``leases`` before the file has its name. Processes that open the file
        see whether it is held. False on a disk without locks: nothing was published.
        """

    def put_new(self, name: str, data: bytes) -> bool:
        """Publish a small file in one step if the name is free; return whether it was."""

    def upload(self, name: str) -> Upload:
        """Start to write a large file."""

    def move(self, name: str, target: str) -> None:
        """Rename a file of any kind, replacing an existing one."""

    def delete(self, name: str) -> None:
        """Remove a file or a link, if it exists."""

    def delete_folder(self, folder: str) -> None:
        """Remove a folder if it is empty."""

    def lease(self, name: str) -> Lease | None:
        """Take the lease of this name without waiting; None if another process holds it."""

    def hold(self) -> Lease | None:
        """Mark the store as in use; None while another process leases all of it."""

    def lease_all(self) -> Lease | None:
        """Lease the whole store without waiting; None while it is in use."""

    def sweep(self) -> int:
        """Remove unfinished uploads of dead processes; return how many."""
