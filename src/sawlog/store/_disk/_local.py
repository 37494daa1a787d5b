"""A store in a folder of a local disk, or of a network disk that behaves like one."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import time
from collections.abc import Callable, Iterable, MutableSequence
from pathlib import Path
from typing import Any

from sawlog._atomic import AsideFile, discard, new_name
from sawlog.store._disk._locks import HeldLock, lock, unlock
from sawlog.store._disk._page_advice import MappedPages, is_own
from sawlog.store._disk._protocol import FileStatus, Lease, Mapped

_TMP = "tmp"
_PART = ".part"
_MINUTE, _DAY = 60.0, 86400.0
SMALL = 1 << 16  # bytes
_SAFELY = (  # refuse links, and do not wait for pipes
    getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


def _link(path: str) -> OSError:
    return OSError(errno.ELOOP, "it is a link, and links in a store are not followed", path)


def _odd(path: str) -> OSError:
    return OSError(errno.EINVAL, "it is not a regular file", path)


def _check_regular(status: os.stat_result, path: str) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise _link(path)
    if not stat.S_ISREG(status.st_mode):
        raise _odd(path)


def _status(status: os.stat_result) -> FileStatus:
    times = (status.st_mtime_ns, status.st_ctime_ns)
    key = (status.st_dev, status.st_ino, status.st_size, *times)
    return FileStatus(status.st_size, status.st_mtime, key)


class _MemoryMap:
    """A memory map with advice about the pages that are needed."""

    def __init__(self, descriptor: int, owner: int) -> None:
        self.data = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        self._pages, self._own = MappedPages(self.data), is_own(owner)

    def releasing(self, start: int, stop: int) -> Callable[[], object]:
        return self._pages.releasing(start, stop)

    def prefetch(self, start: int, stop: int) -> None:
        self._pages.populate(start, stop, self.is_in_memory(start, stop))

    def is_in_memory(self, start: int, stop: int) -> bool:
        return self._own and self._pages.is_resident(start, stop)


class _Bytes:
    """A small file, read into memory: a map would cost more, and keep the file open."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def releasing(self, start: int, stop: int) -> Callable[[], object]:
        return bool

    def prefetch(self, start: int, stop: int) -> None:
        pass

    def is_in_memory(self, start: int, stop: int) -> bool:
        return True


class _File:
    """An open regular file."""

    def __init__(self, path: str) -> None:
        _check_regular(os.lstat(path), path)  # before opening: opening a device can have effects
        self._descriptor = os.open(path, os.O_RDONLY | _SAFELY)
        try:
            found = os.fstat(self._descriptor)
            _check_regular(found, path)
        except BaseException:
            os.close(self._descriptor)
            raise
        self.status, self._owner = _status(found), found.st_uid

    def read(self, start: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, start)

    def map(self) -> Mapped:
        if self.status.size <= SMALL:
            return _Bytes(self.read(0, self.status.size))
        return _MemoryMap(self._descriptor, self._owner)

    def held(self) -> bool | None:
        taken = lock(self._descriptor, exclusive=False)
        if taken:
            unlock(self._descriptor)
        return None if taken is None else not taken

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Upload:
    """A file in ``tmp/``, locked, so that ``sweep`` leaves it alone."""

    def __init__(self, path: Path, aside: Path) -> None:
        self._file = AsideFile(path, aside)
        lock(self._file.descriptor)

    def write(self, *pieces: Any) -> None:
        self._file.write(*pieces)

    def commit(self) -> None:
        self._file.commit()

    def discard(self) -> None:
        self._file.discard()


def _locked(
    descriptor: int, exclusive: bool, check: Callable[[], None] | None = None
) -> Lease | None:
    """Check and lock an open file; close it if that fails or another process has the lock."""
    try:
        if check is not None:
            check()
        claimed = lock(descriptor, exclusive)
    except BaseException:
        os.close(descriptor)
        raise
    if claimed is False:
        os.close(descriptor)
        return None
    return HeldLock(descriptor, claimed is True)


class LocalDisk:
    """The files under one folder; see :class:`sawlog.store._disk.Disk`.

    The folder itself may be a link, because the user named it. Links inside are not followed.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(root)

    def _path(self, name: str) -> str:
        """Return the path of a name, after checking that its parents are folders.

        Raises:
            OSError: ``ELOOP`` if a parent is a link, ``ENOTDIR`` if it is something else.
        """
        *folders, last = parts = name.split("/")
        if any(part in ("", ".", "..") or os.sep in part for part in parts):
            raise ValueError(f"{name!r} is not the name of a file in a store")
        path = self.root
        for part in folders:
            path = f"{path}{os.sep}{part}"
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode):
                raise _link(path)
            if not stat.S_ISDIR(found.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "it is not a folder", path)
        return f"{path}{os.sep}{last}"

    # -- listing ----------------------------------------------------------------------------------

    def exists(self) -> bool:
        return os.path.isdir(self.root)

    def occupied(self) -> bool:
        return os.path.lexists(self.root)

    def writable(self) -> bool:
        return os.access(self.root, os.W_OK)

    def list(self, folder: str = "") -> list[str]:
        if not folder:
            return os.listdir(self.root)
        path = self._path(folder)
        if stat.S_ISLNK(os.lstat(path).st_mode):
            raise _link(path)
        return os.listdir(path)

    def status(self, name: str) -> FileStatus:
        path = self._path(name)
        found = os.lstat(path)
        _check_regular(found, path)
        return _status(found)

    # -- reading ----------------------------------------------------------------------------------

    def open(self, name: str) -> _File:
        return _File(self._path(name))

    def read(self, name: str, most: int) -> bytes:
        with self.open(name) as file:
            size = file.status.size
            if size > most:
                raise OSError(errno.EFBIG, f"it has {size} bytes, more than {most}", name)
            return file.read(0, size)

    # -- writing ----------------------------------------------------------------------------------

    def make(self, folders: Iterable[str]) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.stat(self.root)  # raises for a path that is too long, which makedirs recurses into
        os.makedirs(self.root, exist_ok=True)
        for folder in folders:
            path = self._path(folder)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode):
                raise _link(path)
            if not stat.S_ISDIR(found.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "it is not a folder", path)

    def put(self, name: str, data: bytes, *, durable: bool = True) -> None:
        file = self._aside(name)
        try:
            file.write(data)
            file.commit(durable=durable)
        finally:
            file.discard()

    def put_held(self, name: str, data: bytes, leases: MutableSequence[Lease]) -> bool:
        file = self._aside(name)
        try:
            locked = lock(file.descriptor) is True
            if locked:
                file.write(data)
                leases.append(HeldLock(os.dup(file.descriptor), True))
                file.commit(durable=False)
        finally:
            file.discard()
        return locked

    def put_new(self, name: str, data: bytes) -> bool:
        file = self._aside(name)
        try:
            file.write(data)
            file.commit(replace=False)
        except FileExistsError:
            return False
        finally:
            file.discard()
        return True

    def _aside(self, name: str) -> AsideFile:
        path = Path(self._path(name))
        file = AsideFile(path, Path(self._path(f"{_TMP}/{new_name()}{_PART}")))
        lock(file.descriptor)
        return file

    def upload(self, name: str) -> _Upload:
        path = Path(self._path(name))
        return _Upload(path, Path(self._path(f"{_TMP}/{path.name}.{new_name()}{_PART}")))

    # -- moving and removing ----------------------------------------------------------------------

    def move(self, name: str, target: str) -> None:
        os.replace(self._path(name), self._path(target))

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            discard(self._path(name))

    def delete_folder(self, folder: str) -> None:
        with contextlib.suppress(OSError):  # not empty: the folder stays
            os.rmdir(self._path(folder))

    # -- locks ------------------------------------------------------------------------------------

    def lease(self, name: str) -> Lease | None:
        path = self._path(name)
        with contextlib.suppress(FileNotFoundError):
            _check_regular(os.lstat(path), path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _SAFELY, 0o666)
        return _locked(descriptor, True, lambda: _check_regular(os.fstat(descriptor), path))

    def hold(self) -> Lease | None:
        return self._lock_root(exclusive=False)

    def lease_all(self) -> Lease | None:
        return self._lock_root(exclusive=True)

    def _lock_root(self, exclusive: bool) -> Lease | None:
        descriptor = os.open(self.root, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        return _locked(descriptor, exclusive)

    def sweep(self) -> int:
        return sum(
            self._sweep(f"{_TMP}/{name}") for name in self.list(_TMP) if name.endswith(_PART)
        )

    def _sweep(self, name: str) -> bool:
        """Remove an upload older than a day, or older than a minute and not locked."""
        with contextlib.suppress(OSError):
            path = self._path(name)
            found = os.lstat(path)
            age = time.time() - min(found.st_mtime, found.st_ctime)  # clocks may be ahead
            if age > _MINUTE and (age > _DAY or not self._in_use(path)):
                os.unlink(path)
                return True
        return False

    @staticmethod
    def _in_use(path: str) -> bool:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            return False
        descriptor = os.open(path, os.O_RDONLY | _SAFELY)
        try:
            return lock(descriptor) is not True
        finally:
            os.close(descriptor)
