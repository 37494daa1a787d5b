"""Files that are complete or not there: written aside, synced, and moved to their name."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import secrets
from pathlib import Path
from typing import Any

from sawlog.errors import (
    ArgumentError,
    DamagedStoreError,
    StoreFullError,
    StorePermissionError,
    StoreWriteError,
)
from sawlog.store._checksum import hash_of

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}
_CHECKSUM = '"checksum": "'
_ZEROS = "0" * 16


def new_name(length: int = 12) -> str:
    """A name that nobody else has."""
    return secrets.token_hex((length + 1) // 2)[:length]


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some network disks sync names by themselves and refuse this
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: Any) -> None:
    """Write every byte, however many calls that takes."""
    view = memoryview(data)
    while len(view):
        view = view[os.write(descriptor, view) :]


def publish(data: bytes, path: Path, tmp: Path, *, durable: bool = True) -> None:
    """Put ``data`` at ``path`` in one step, in place of what was there."""
    aside = _write_aside(data, tmp, durable)
    try:
        os.replace(aside, path)
    except OSError:
        discard(aside)
        raise
    if durable:
        sync_folder(path.parent)


def publish_new(data: bytes, path: Path, tmp: Path) -> bool:
    """Put ``data`` at ``path`` in one step if nothing is there; say whether that was so."""
    aside = _write_aside(data, tmp, True)
    try:
        try:
            os.link(aside, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return _create_in_place(data, path)
    finally:
        discard(aside)
    sync_folder(path.parent)
    return True


def _create_in_place(data: bytes, path: Path) -> bool:
    """For disks without hard links: whoever creates the file wins, readers wait for the rest."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return False
    with contextlib.closing(os.fdopen(descriptor, "wb")) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)
    return True


def _write_aside(data: bytes, tmp: Path, durable: bool) -> Path:
    aside = tmp / f"{new_name()}.part"
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        write_all(descriptor, data)
        if durable:
            os.fsync(descriptor)
    except OSError:
        discard(aside)
        raise
    finally:
        os.close(descriptor)
    return aside


def discard(path: Path) -> None:
    """Remove a file that nobody needs."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def check_json(value: Any, where: str) -> None:
    """Refuse what JSON cannot hold as it is; a tuple is welcome, and comes back as a list.

    Raises:
        ArgumentError: naming the place.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ArgumentError(f"{where} has the key {key!r}, which is no string.")
            check_json(item, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            check_json(item, f"{where}[{number}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ArgumentError(f"{where} is {value}, which JSON lacks. Hint: write it as text.")
    elif type(value) not in (str, int, float, bool, type(None)):
        raise ArgumentError(
            f"{where} is a {type(value).__name__}, which JSON does not have. "
            "Hint: convert it to numbers, strings, lists and dicts of Python."
        )


def to_json(value: dict[str, Any]) -> bytes:
    """JSON with a checksum of itself as its last key."""
    text = json.dumps({**value, "checksum": _ZEROS}, indent=1, ensure_ascii=False) + "\n"
    data = text.encode()
    return data.replace((_CHECKSUM + _ZEROS).encode(), f"{_CHECKSUM}{hash_of(data):016x}".encode())


def from_json(data: bytes, path: Path) -> dict[str, Any]:
    """The object of a JSON file with a checksum.

    Raises:
        DamagedStoreError: it was cut or changed.
    """
    head, mark, tail = data.rpartition(_CHECKSUM.encode())
    if not mark and (other := _other_json(data)) is not None:
        return {**other, "unchecked": True}  # perhaps not ours: whoever knows the format says so
    told, rest = tail[:16], tail[16:]
    if not mark or f"{hash_of(head + mark + _ZEROS.encode() + rest):016x}".encode() != told:
        raise DamagedStoreError(
            f"{path} was cut or changed after it was written. "
            "Hint: sawlog verify shows what is readable; damaged='skip' reads the rest."
        )
    value = json.loads(data)
    del value["checksum"]
    return value


def _other_json(data: bytes) -> dict[str, Any] | None:
    """An object without a checksum that says of which format and version it is."""
    try:
        value = json.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) and {"format", "version"} & set(value) else None


def explained(error: OSError, doing: str, path: Path) -> OSError:
    """The error of ours that says what went wrong while ``doing`` something at ``path``."""
    why = f"{doing} {path}: {error.strerror or error}"
    if error.errno in _FULL:
        return StoreFullError(
            f"No room left while {why}. What was published before is safe. Hint: free some space "
            "and call flush() again; nothing that was accepted is given up until then."
        )
    if error.errno in _DENIED:
        return StorePermissionError(
            f"Not permitted while {why}. Hint: check who owns the folder and how it is mounted."
        )
    return StoreWriteError(
        f"The disk failed while {why}. What was published before is safe. "
        "Hint: call flush() again once the disk answers."
    )
