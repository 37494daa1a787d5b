"""The ``.wandb`` file of an offline run: detect whether it is complete.

``wandb.Run.finish`` tells W&B's own process to close the file and does not wait for it, so the last
rows can be missing for a while. The file is a log in LevelDB's format: blocks of 32 KiB with chunks
of records, each with a header of a checksum, a length and a kind. A record is a protobuf message;
the exit record follows everything that was logged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

BLOCK, HEADER = 32 * 1024, 7
FULL, FIRST, LAST = 1, 2, 4
EXIT = 18  # the number of `exit` in W&B's message `Record`
MAGIC = b":W&B\xe1\xbe"  # and a version byte: as long as the header of a chunk


def is_known(path: str | os.PathLike[str]) -> bool:
    """Return whether the file has the known format."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except FileNotFoundError:
        return False


def has_ended(path: str | os.PathLike[str]) -> bool:
    """Return whether the last blocks of the file contain the exit record."""
    start = max(0, Path(path).stat().st_size // BLOCK - 2) * BLOCK
    with open(path, "rb") as file:
        file.seek(start)
        return any(EXIT in _fields(record) for record in _records(file.read(), start))


def _records(data: bytes, start: int) -> Iterator[bytes]:
    """Return the complete records in some blocks."""
    at = 0 if start else HEADER
    record: bytes | None = None  # None inside a record that starts in an earlier block
    while at + HEADER <= len(data):
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        left = BLOCK - at % BLOCK
        if left < HEADER or kind == 0:  # nothing more in this block
            at += left
            continue
        part = data[at + HEADER : at + HEADER + length]
        if len(part) < length:
            return
        if kind in (FULL, FIRST):
            record = part
        elif record is not None:
            record += part
        if kind in (FULL, LAST) and record is not None:
            yield record
        at += HEADER + length


def _fields(message: bytes) -> set[int]:
    """Return the field numbers of a protobuf message."""
    found, at = set(), 0
    while at < len(message):
        tag, at = _varint(message, at)
        found.add(tag >> 3)
        if tag & 7 == 0:
            _, at = _varint(message, at)
        elif tag & 7 == 2:
            size, at = _varint(message, at)
            at += size
        else:
            at += {1: 8, 5: 4}.get(tag & 7, len(message))
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Read a varint; return it and the position after it."""
    value = shift = 0
    while at < len(message):
        value |= (message[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if message[at - 1] < 128:
            break
    return value, at
