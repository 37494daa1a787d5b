"""Remove stores: file by file, and only files that are part of a store.

If the folder contains any other file, nothing is removed, and the error lists it. Links are not
followed; if the path is itself a link to a store, the store is removed and the link stays.

Of several processes that start together, the first one removes the store of an earlier job. The
others find a store that was created after they started, and append to it. A store that is being
written is never removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import stat
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from sawlog._atomic import new_folder
from sawlog.errors import (
    DamagedStoreError,
    ForeignStoreError,
    NewerStoreError,
    SinkWarning,
    StoreExistsError,
    StoreNotFoundError,
    StoreWriteError,
)
from sawlog.store._disk import Lease
from sawlog.store._format._json_files import write_error
from sawlog.store._format._layout import Folder, identity_of, is_store
from sawlog.store._maintenance._process_group import LaunchedProcesses, process_group

_SEGMENT = r"[a-z0-9]{1,32}-[0-9]{8,19}\.safetensors"
_OURS = re.compile(
    r"store\.json"
    r"|schema/[0-9]{8,19}(?:-[0-9]{8,19})?\.json"
    rf"|segments/{_SEGMENT}"
    r"|writers/[a-z0-9]{1,32}\.json"
    rf"|tmp/(?:[0-9a-f]{{12}}|{_SEGMENT}(?:\.[0-9a-f]{{12}})?)\.part|tmp/compact\.lock"
    rf"|replaced/[0-9]{{1,12}}/{_SEGMENT}"
    r"|damaged/(?:store\.json|schema-[0-9]{8,19}(?:-[0-9]{8,19})?\.json"
    rf"|segments-{_SEGMENT})(?:\.[0-9]+)?"
)
_FOLDERS = re.compile(r"schema|segments|writers|tmp|damaged|replaced(?:/[0-9]{1,12})?")
_PATIENCE = 30.0  # seconds that processes of one job wait for each other
_LISTED = 10


def _walk(path: str, below: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Yield all files below a folder by relative name, folders after their contents.

    Folders that no store has are not entered.
    """
    try:
        entries = sorted(os.listdir(os.path.join(path, below) if below else path))
    except FileNotFoundError:
        return
    except OSError as error:
        raise write_error(error, "replacing", Path(path, below)) from error
    for entry in entries:
        name = f"{below}/{entry}" if below else entry
        try:
            status = os.lstat(os.path.join(path, name))
        except FileNotFoundError:  # removed since the listing
            continue
        if stat.S_ISDIR(status.st_mode) and _FOLDERS.fullmatch(name):
            yield from _walk(path, name)
        yield name, status


def _is_ours(name: str, status: os.stat_result) -> bool:
    if stat.S_ISDIR(status.st_mode):
        return _FOLDERS.fullmatch(name) is not None
    return stat.S_ISREG(status.st_mode) and _OURS.fullmatch(name) is not None


def foreign_files(path: Path) -> list[Path]:
    """Return the files in the folder of a store that are not part of it."""
    return [path / name for name, status in _walk(str(path)) if not _is_ours(name, status)]


def foreign_files_error(paths: Iterable[Path], doing: str) -> StoreExistsError:
    """Return the error that lists files which are not part of a store."""
    found = list(paths)
    listed = "".join(f"\n  {str(path)!r}" for path in found[:_LISTED])
    more = f"\n  and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return StoreExistsError(
        f"{doing} would remove files that are not part of a store:{listed}{more}\nNothing was "
        "removed. Hint: move them elsewhere, or choose another folder."
    )


def check_only_store_files(path: Path) -> None:
    """Check that a folder is a store and contains nothing else.

    Raises:
        StoreExistsError: it is not a store, or contains other files.
    """
    try:
        identity_of(Folder(path))
    except (ForeignStoreError, NewerStoreError, DamagedStoreError, StoreNotFoundError) as error:
        raise StoreExistsError(
            f"{path} is not replaced, because it is not known to be a store of this version: "
            f"{error} Nothing was removed."
        ) from error
    if found := foreign_files(path):
        raise foreign_files_error(found, f"Replacing {path}")


def _remove(path: Path) -> None:
    """Remove the files of a store, ``store.json`` last. The folder stays."""
    names = [name for name, status in _walk(str(path)) if _is_ours(name, status)]
    try:
        for name in sorted(names, key=lambda name: name == "store.json"):
            place = os.path.join(path, name)
            with contextlib.suppress(FileNotFoundError):
                if _FOLDERS.fullmatch(name):
                    os.rmdir(place)
                else:
                    os.unlink(place)
    except OSError as error:
        raise write_error(error, "replacing", path) from error


def remove_store(path: Path) -> None:
    """Remove a store and its folder.

    Raises:
        StoreExistsError: it is not a store, or contains other files. Nothing was removed.
    """
    check_only_store_files(path)
    _remove(path)
    with contextlib.suppress(OSError):
        os.rmdir(path)


def replace_stores(
    find: Callable[[], list[Path]], doing: str, *, for_all: bool = False
) -> list[Path]:
    """Remove stores, except those that sibling processes created; return the removed ones.

    ``find`` returns the stores, and raises if other files are in the way. ``for_all`` says that
    sibling processes wait for this one, so that no store is theirs.

    Raises:
        StoreExistsError: a folder contains other files. Nothing was removed.
        StoreWriteError: a store is being written.
    """
    here, deadline = process_group(), time.monotonic() + _PATIENCE
    if for_all:
        here = dataclasses.replace(here, several=False)
    while True:
        old = [path for path in find() if not _is_new(path, here)]
        with contextlib.ExitStack() as stack:
            old = [path for path in old if _is_still_ours(path)]
            busy = [path for path in old if not _leased(path, stack)]
            if not busy:
                old = [path for path in old if not _is_new(path, here) and _is_still_ours(path)]
                for path in old:
                    _remove(path)
                return old
        if not here.several or time.monotonic() > deadline:
            raise StoreWriteError(
                f"{doing}: {busy[0]} is being written, by this process or another one. Nothing "
                "was removed. Hint: close its writer first; processes that write to one store "
                "together use exists='append'."
            )
        time.sleep(0.05)


def _is_still_ours(path: Path) -> bool:
    """Check that a folder is a store and nothing else; return False if another process removed it.

    Raises:
        StoreExistsError: the folder holds something that is not part of a store.
    """
    try:
        check_only_store_files(path)
    except StoreExistsError:
        if is_store(path):
            raise
        return False
    return True


def _leased(path: Path, stack: contextlib.ExitStack) -> bool:
    """Lease a store until the stack is closed; return False if it is being written."""
    try:
        lease = Folder(path).disk.lease_all()
    except OSError as error:
        raise write_error(error, "replacing", path) from error
    if lease is None:
        return False
    stack.callback(lease.release)
    return True


def _is_new(path: Path, here: LaunchedProcesses) -> bool:
    """Return whether a sibling process created the store, or it is gone."""
    try:
        folder = Folder(path)
        modified = folder.disk.status("store.json").modified
        new = here.is_of_this(modified) and identity_of(folder).id not in InUse.written
        if new and here.is_unsure(modified):
            warnings.warn(
                f"{path} is appended to, not replaced: it was created just before this process "
                "started, perhaps by a process of the same job. Hint: if it is of an earlier job, "
                "use a folder for each job.",
                SinkWarning,
                stacklevel=2,
            )
        return new
    except (FileNotFoundError, StoreNotFoundError):
        return True


@contextlib.contextmanager
def new_store(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Create a store under a temporary name; at the end of the block it replaces the existing one.

    Raises:
        StoreExistsError: the path is taken by something that is not a store.
    """
    place = Path(os.path.realpath(path))
    if os.path.lexists(place) and (not place.is_dir() or os.listdir(place)):
        check_only_store_files(place)
    with new_folder(place, replace=_remove_old) as aside:
        yield aside


def _remove_old(path: Path) -> None:
    if os.listdir(path):
        remove_store(path)
    else:
        os.rmdir(path)


class InUse:
    """Marks a store as being written, until released or the process ends.

    Each mark needs two open files, one of them the writer's report (``_writer_notes.py``), so a
    process marks at most ``_most`` stores.
    """

    written: ClassVar[set[str]] = set()  # ids of the stores that this process has written to
    _most = 64
    _count = 0

    def __init__(self, folder: Folder) -> None:
        """Mark the store; wait for a process that is replacing it."""
        self._lease: Lease | None = None
        deadline = time.monotonic() + _PATIENCE
        while InUse._count < InUse._most and self._lease is None and time.monotonic() < deadline:
            try:
                self._lease = folder.disk.hold()
            except OSError:  # too many open files, or no folder: reported elsewhere
                return
            if self._lease is None:
                time.sleep(0.02)
        InUse._count += self._lease is not None

    @property
    def marked(self) -> bool:
        """Whether the store is marked, and not one too many."""
        return self._lease is not None

    def release(self) -> None:
        """Remove the mark."""
        lease, self._lease = self._lease, None
        if lease is not None:
            InUse._count -= 1
            lease.release()
