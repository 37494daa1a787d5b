"""JSON files with a checksum, and the errors for a disk that fails."""

from __future__ import annotations

import errno
import json
import math
import re
from pathlib import Path
from typing import Any

from sawlog.errors import (
    ArgumentError,
    StoreError,
    StoreFullError,
    StorePermissionError,
    StoreReadError,
    StoreWriteError,
)
from sawlog.store._format import _parse
from sawlog.store._format._checksum import hash_of

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
BAD_PATH = {errno.ENAMETOOLONG, errno.ELOOP}  # no file can have such a path
_NO_PLACE = {errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EISDIR}  # for a new file
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
NOT_A_FILE = {errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENOTDIR, errno.ENXIO}
_DAMAGE = {*NOT_A_FILE, *BAD_PATH, errno.ENOENT, errno.EFBIG}  # what the folder contains
_MOST_BITS = 12_000  # below the default limit of Python's int/str conversion
_ZEROS = b"0" * 16
_SEAL = re.compile(rb'"checksum": "([0-9a-f]{16})"\s*\}\s*\Z')


def check_json(value: Any, where: str) -> None:
    """Check that JSON can hold a value exactly; tuples are allowed, and become lists.

    Raises:
        ArgumentError: it cannot. The message names the place.
    """
    try:
        _parse.check_depth(value, where)
    except _parse.Malformed as error:
        raise ArgumentError(f"{error}. Hint: use at most 300 levels, without cycles.") from error
    _check_json(value, where)


def _check_json(value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ArgumentError(f"{where} has the key {key!r}, which is not a string.")
            _check_text(key, f"a key of {where}")
            _check_json(item, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            _check_json(item, f"{where}[{number}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ArgumentError(
            f"{where} is {value}, which JSON cannot represent. Hint: convert it to a string."
        )
    elif type(value) is str:
        _check_text(value, where)
    elif type(value) is int and value.bit_length() > _MOST_BITS:
        raise ArgumentError(
            f"{where} is an integer of {value.bit_length()} bits. Hint: use a string."
        )
    elif type(value) not in (str, int, float, bool, type(None)):
        raise ArgumentError(
            f"{where} is a {type(value).__name__}, which JSON cannot represent. "
            "Hint: convert it to Python numbers, strings, lists and dicts."
        )


def _check_text(value: str, where: str) -> None:
    try:
        _parse.text(value, where)
    except _parse.Malformed as error:
        raise ArgumentError(f"{error}. Hint: encode it in another way, such as repr().") from error


def to_json(value: dict[str, Any]) -> bytes:
    """Return JSON with its checksum as the last key, and a line for each item of a list."""
    lines = [f" {_dumps(key)}: {_lines(item)}" for key, item in value.items()]
    return sealed("{\n" + "".join(line + ",\n" for line in lines))


def sealed(text: str) -> bytes:
    """Complete the text of a JSON file with its last key, the checksum."""
    start, end = (text + ' "checksum": "').encode(), b'"\n}\n'
    return start + b"%016x" % hash_of(start + _ZEROS + end) + end


def _lines(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return _dumps(value)
    return "[\n  " + ",\n  ".join(map(_dumps, value)) + "\n ]"


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def from_json(data: bytes) -> tuple[dict[str, Any], bool]:
    """Parse a JSON file; return the object, and whether it has a (correct) checksum.

    Only the last key of the file is its checksum; other keys may have the same name.

    Raises:
        Malformed: the file was cut or changed.
    """
    found = _SEAL.search(data)
    if found is None:
        return _parse.load(data), False
    start, stop = found.span(1)
    if b"%016x" % hash_of(data[:start] + _ZEROS + data[stop:]) != found[1]:
        _parse.fail("it was cut or changed after it was written")
    value = _parse.load(data)
    del value["checksum"]
    return value, True


def read_error(error: OSError, path: Path) -> OSError:
    """Return the error for a file that cannot be read: the same one if the file is damaged.

    A disk that fails, or a process with too many open files, is not damage: the file may be
    intact, and must not be skipped or repaired.
    """
    if isinstance(error, StoreError) or error.errno in _DAMAGE:
        return error
    if error.errno in _DENIED:
        return StorePermissionError(
            f"Not permitted while reading {path}: {error.strerror}. "
            "Hint: check who owns the folder and how it is mounted."
        )
    return StoreReadError(
        f"Failed to read {path}: {error.strerror or error}. The file may be intact. Hint: try "
        "again once the disk responds; ulimit -n shows how many files a process may open."
    )


def reason_of(error: Exception) -> str:
    """Return what is wrong with a file, in words: without the number and path of an ``OSError``."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


def raise_unless_damage(error: Exception, path: Path) -> None:
    """Raise the error of a system that failed to read a file; return if the file is damaged."""
    if isinstance(error, OSError) and (reason := read_error(error, path)) is not error:
        raise reason from error


def write_error(error: OSError, doing: str, path: Path, *, new: bool = False) -> OSError:
    """Return the store error for an ``OSError`` that occurred while ``doing`` something.

    ``new`` says that the path was to be created, so that nothing was written before.
    """
    why = f"{doing} {path}: {error.strerror or error}"
    pending = doing.startswith("writing")  # of a writer, which keeps its data
    again = "call flush() again" if pending else "try again"
    if error.errno in _FULL:
        return StoreFullError(
            f"No space left while {why}. Published data is safe. Hint: free some space and {again}"
            + ("; accepted data is kept in memory until then." if pending else ".")
        )
    if error.errno in _DENIED:
        return StorePermissionError(
            f"Not permitted while {why}. Hint: check who owns the folder and how it is mounted."
        )
    if error.errno in BAD_PATH or (new and error.errno in _NO_PLACE):
        return StoreWriteError(f"Failed while {why[:600]}. Hint: choose another path.")
    return StoreWriteError(
        f"The disk failed while {why}. Published data is safe. "
        f"Hint: {again} once the disk responds."
    )


def background_error(error: BaseException, path: Path) -> OSError:
    """Return the store error for any error of a thread that publishes segments."""
    if isinstance(error, StoreWriteError):
        return error
    if isinstance(error, OSError) and not isinstance(error, StoreError):
        failure = write_error(error, "writing to", path)
    else:
        failure = StoreWriteError(
            f"Writing to {path} failed: {type(error).__name__}: {error}. "
            "Published data is safe. Hint: call flush() to try again."
        )
    failure.__cause__ = error
    return failure
