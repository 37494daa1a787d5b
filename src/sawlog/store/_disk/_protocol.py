"""What a store asks of the place where its files are.

Names are relative to the store, with ``/`` between folder and file: ``segments/a-00000001.x``.
An implementation never leaves the store, whatever lies in it: it follows no link, opens nothing but
regular files, and waits for nobody. Methods raise ``OSError``: ``FileNotFoundError`` where
something is not there, ``ELOOP`` where a link is in the way, ``EINVAL`` for what is no plain file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Protocol


@dataclasses.dataclass(frozen=True, slots=True)
class Status:
    """What is known of a file without opening it.

    ``key`` changes whenever the file is changed or replaced; its last item, in nanoseconds, is when
    that was last. ``modified`` is in seconds since 1970.
    """

    size: int
    modified: float
    key: tuple[int, ...]


class Mapped(Protocol):
    """The bytes of a file as memory."""

    data: Any  # a buffer, read-only

    def release(self, start: int, stop: int) -> None:
        """Give back the memory of these bytes; they are read anew if needed."""

    def prefetch(self, start: int, stop: int) -> None:
        """Read these bytes ahead."""


class Blob(Protocol):
    """An open file. Close it, or use it in a ``with`` block."""

    status: Status

    def read(self, start: int, size: int) -> bytes:
        """Return up to ``size`` bytes from ``start``."""

    def map(self) -> Mapped:
        """Map the whole file, which is not empty; the map outlives the blob."""

    def close(self) -> None:
        """Let go of the file."""

    def __enter__(self) -> Blob: ...

    def __exit__(self, *error: object) -> None: ...


class Upload(Protocol):
    """A file on its way: nobody sees it before ``commit``."""

    def write(self, data: Any) -> None:
        """Add bytes."""

    def commit(self) -> None:
        """Make it durable, then give it its name in one step."""

    def discard(self) -> None:
        """Remove what was written, unless it has its name."""


class Lease(Protocol):
    """The right to be the only one. ``certain`` is false where a disk cannot tell."""

    certain: bool

    def release(self) -> None:
        """Let others have it. A process that dies does so too."""


class Disk(Protocol):
    """The files of one store."""

    def exists(self) -> bool:
        """Return whether the folder of the store is there."""

    def occupied(self) -> bool:
        """Return whether there is anything in the place of the store, of whatever kind."""

    def writable(self) -> bool:
        """Return whether files may be added."""

    def make(self, folders: Iterable[str]) -> None:
        """Create folders that are not there."""

    def list(self, folder: str = "") -> list[str]:
        """Return the names in a folder, in no order."""

    def status(self, name: str) -> Status:
        """Return what is known of a regular file."""

    def read(self, name: str, most: int) -> bytes:
        """Return a whole file. One that is larger than ``most`` bytes is ``EFBIG``."""

    def open(self, name: str) -> Blob:
        """Open a file to read parts of it."""

    def put(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Publish a small file in one step, in place of what was there."""

    def put_new(self, name: str, data: bytes) -> bool:
        """Publish a small file in one step if the name is free; return whether it was."""

    def upload(self, name: str) -> Upload:
        """Begin a large file."""

    def move(self, name: str, target: str) -> None:
        """Rename a file, whatever it is, in place of what was there."""

    def delete(self, name: str) -> None:
        """Remove a file or a link, if it is there."""

    def delete_folder(self, folder: str) -> None:
        """Remove a folder if it is empty."""

    def lease(self, name: str) -> Lease | None:
        """Take the lease of this name, without waiting; None if somebody has it."""

    def hold(self) -> Lease | None:
        """Say that the store is in use; None while somebody has the lease of all of it."""

    def lease_all(self) -> Lease | None:
        """Take the lease of the whole store, without waiting; None while anybody holds it."""

    def sweep(self) -> int:
        """Remove what dead uploads left; return how many."""
