"""What the small files of a store have in common: JSON with a checksum, and errors that explain."""

from __future__ import annotations

import errno
import json
import math
import re
from pathlib import Path
from typing import Any

from sawlog._atomic import new_name as new_name
from sawlog.errors import (
    ArgumentError,
    StoreFullError,
    StorePermissionError,
    StoreWriteError,
)
from sawlog.store import _parse
from sawlog.store._checksum import hash_of
from sawlog.store._disk import Upload

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_MOST_BITS = 12_000  # what Python takes without a change of its limits
_ZEROS = b"0" * 16
_SEAL = re.compile(rb'"checksum": "([0-9a-f]{16})"\s*\}\s*\Z')


def write_all(upload: Upload, data: Any) -> None:
    """Add every byte to a file on its way."""
    upload.write(data)


def check_json(value: Any, where: str) -> None:
    """Refuse what JSON cannot hold as it is; a tuple is welcome, and comes back as a list.

    Raises:
        ArgumentError: naming the place.
    """
    try:
        _parse.check_depth(value, where)
    except _parse.Malformed as error:
        raise ArgumentError(f"{error}. Hint: keep to 300 levels, and no cycles.") from error
    _check_json(value, where)


def _check_json(value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ArgumentError(f"{where} has the key {key!r}, which is no string.")
            _check_text(key, f"a key of {where}")
            _check_json(item, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            _check_json(item, f"{where}[{number}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ArgumentError(f"{where} is {value}, which JSON lacks. Hint: write it as text.")
    elif type(value) is str:
        _check_text(value, where)
    elif type(value) is int and value.bit_length() > _MOST_BITS:
        raise ArgumentError(f"{where} is an integer of {value.bit_length()} bits. Hint: use text.")
    elif type(value) not in (str, int, float, bool, type(None)):
        raise ArgumentError(
            f"{where} is a {type(value).__name__}, which JSON does not have. "
            "Hint: convert it to numbers, strings, lists and dicts of Python."
        )


def _check_text(value: str, where: str) -> None:
    try:
        _parse.text(value, where)
    except _parse.Malformed as error:
        raise ArgumentError(f"{error}. Hint: encode it otherwise, as with repr().") from error


def to_json(value: dict[str, Any]) -> bytes:
    """JSON with a checksum of itself as its last key; a list has one line for each item."""
    lines = [f" {_dumps(key)}: {_lines(item)}" for key, item in value.items()]
    return sealed("{\n" + "".join(line + ",\n" for line in lines))


def sealed(text: str) -> bytes:
    """A JSON file, given its text up to the last key, which is its checksum."""
    start, end = (text + ' "checksum": "').encode(), b'"\n}\n'
    return start + b"%016x" % hash_of(start + _ZEROS + end) + end


def _lines(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return _dumps(value)
    return "[\n  " + ",\n  ".join(map(_dumps, value)) + "\n ]"


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def from_json(data: bytes) -> tuple[dict[str, Any], bool]:
    """The object of a JSON file, and whether it has a checksum, which is then right.

    Only the very last key of the file is its checksum, whatever else is called so.

    Raises:
        Malformed: it was cut or changed.
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


def unread(error: OSError, path: Path) -> OSError:
    """The error for a file that is there and cannot be read."""
    if error.errno in _DENIED:
        return StorePermissionError(
            f"Not permitted while reading {path}: {error.strerror}. "
            "Hint: check who owns the folder and how it is mounted."
        )
    return error


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
