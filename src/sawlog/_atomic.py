"""Write files and folders atomically: under a temporary name first, then rename.

All code of the package that creates files or folders uses :class:`AsideFile`, usually through
:func:`replacing`, or :func:`new_folder`.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import itertools
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}
_CREATE = (
    os.O_WRONLY
    | os.O_CREAT
    | os.O_EXCL
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
_MOST_PIECES, _MOST_BYTES = 1000, 1 << 30  # of one call; systems allow 1,024, and 2 GiB


def new_name(length: int = 12) -> str:
    """Return a random, unique name of hexadecimal digits."""
    return secrets.token_hex((length + 1) // 2)[:length]


def write_all(descriptor: int, *pieces: Any) -> None:
    """Write every byte of the pieces to an open file, however many calls that takes.

    Pieces are written by one call where the system can do that: Linux then keeps the file in larger
    pages, which are faster to map.
    """
    views = [memoryview(piece) for piece in pieces]
    waiting = collections.deque(view.cast("B") for view in views if view.nbytes)
    while waiting:
        written = _write_some(descriptor, waiting)
        while waiting and written >= len(waiting[0]):
            written -= len(waiting.popleft())
        if written:
            waiting[0] = waiting[0][written:]


def _write_some(descriptor: int, waiting: Iterable[memoryview]) -> int:
    """Write some of the first bytes; return how many."""
    together = list(itertools.islice(waiting, _MOST_PIECES))
    at_once = len(together) > 1 and sum(map(len, together)) <= _MOST_BYTES
    if at_once and hasattr(os, "writev"):
        return os.writev(descriptor, together)
    return os.write(descriptor, together[0])


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some network disks sync names on their own, and refuse this
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def discard(path: str | os.PathLike[str]) -> None:
    """Remove a file, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def aside_of(path: Path) -> Path:
    """Return an unused hidden name beside ``path``."""
    return path.with_name(f".{path.name[:100]}.{new_name()}.part")


class AsideFile:
    """A file that is written under a temporary name, and renamed in one step.

    The temporary name ``aside`` must be on the same disk; the default is a hidden name beside
    ``path``. It is created exclusively: an existing file is never opened or overwritten.
    """

    def __init__(self, path: Path, aside: Path | None = None) -> None:
        self.path = path
        self.aside = aside_of(path) if aside is None else aside
        try:
            self.descriptor = os.open(self.aside, _CREATE, 0o666)
        except OSError as error:
            error.filename = str(path)  # users do not know the temporary name
            raise

    def write(self, *pieces: Any) -> None:
        """Add bytes."""
        write_all(self.descriptor, *pieces)

    def sync(self) -> None:
        """Return when all bytes are on disk."""
        os.fsync(self.descriptor)

    def commit(self, *, replace: bool = True, durable: bool = True) -> None:
        """Rename the file to ``path``.

        Raises:
            FileExistsError: ``path`` exists, and ``replace`` is false.
        """
        if durable:
            self.sync()
        if replace:
            os.replace(self.aside, self.path)
        else:
            self._link()
        self._close()
        if durable:
            sync_folder(self.path.parent)

    def _link(self) -> None:
        """Link instead of rename, which would replace a file that was created since."""
        try:
            os.link(self.aside, self.path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._copy()  # a disk without links: the first to create the file wins
        discard(self.aside)

    def _copy(self) -> None:
        descriptor = os.open(self.path, _CREATE, 0o666)
        try:
            with open(self.aside, "rb") as file:
                while piece := file.read(1 << 20):
                    write_all(descriptor, piece)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def discard(self) -> None:
        """Remove the temporary file, unless it was renamed."""
        self._close()
        discard(self.aside)

    def _close(self) -> None:
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)


@contextlib.contextmanager
def replacing(
    path: str | os.PathLike[str], *, replace: bool = True, durable: bool = True
) -> Iterator[AsideFile]:
    """Write a file in the block; it appears at the end, or not at all after an error.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "notes.txt")
    >>> with replacing(path) as file:
    ...     file.write(b"complete")
    >>> path.read_text()
    'complete'
    """
    file = AsideFile(Path(path))
    try:
        yield file
        file.commit(replace=replace, durable=durable)
    finally:
        file.discard()


@contextlib.contextmanager
def new_folder(
    path: str | os.PathLike[str], *, replace: Callable[[Path], None] | None = None
) -> Iterator[Path]:
    """Create a folder in the block; it appears at the end, or not at all after an error.

    The block gets a temporary path that does not exist yet. An existing folder is renamed and
    passed to ``replace``, which removes it. If two processes do this at the same time, one of the
    two folders stays.

    Raises:
        FileExistsError: the folder exists, and ``replace`` is None.
    """
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    aside = place.with_name(f".{place.name}.{new_name()}.new")
    try:
        yield aside
        _place(aside, place, replace)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _place(made: Path, place: Path, replace: Callable[[Path], None] | None) -> None:
    old = made.with_name(f"{made.name}.old")
    moved = False
    if replace is not None:
        with contextlib.suppress(FileNotFoundError):
            os.rename(place, old)
            moved = True
    try:
        os.rename(made, place)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if replace is None:  # with `replace`, the folder of a faster process stays
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(place)) from error
    finally:
        if moved and replace is not None:
            replace(old)
    sync_folder(place.parent)
