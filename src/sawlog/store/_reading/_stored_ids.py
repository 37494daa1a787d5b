"""The ids of a chunk, checked: their bytes, and for strings that they are strings."""

from __future__ import annotations

import numpy as np

from sawlog.errors import DamagedStoreError
from sawlog.store._format._checksum import hash_of
from sawlog.store._format._chunks import TableChunk, ids_name
from sawlog.store._format._ids import StringIds
from sawlog.store._format._segment import Segment

_PARTS = ("text", "ends", "hash")


def ids_of(segment: Segment, chunk: TableChunk) -> np.ndarray | list[str]:
    """As :func:`stored_ids`, strings as such."""
    ids = stored_ids(segment, chunk)
    return ids.take() if isinstance(ids, StringIds) else ids


def stored_ids(segment: Segment, chunk: TableChunk) -> np.ndarray | StringIds:
    """The ids of a chunk, checked, and copied: they are kept, and must not keep a file open.

    Raises:
        DamagedStoreError: they are not what was written, or no strings at all.
    """
    if chunk.ids == "int":
        return segment.values(ids_name(chunk.names)).copy()
    parts = [segment.values(ids_name(chunk.names, part)).copy() for part in _PARTS]
    texts = StringIds(*parts)
    if not _are_texts(texts):
        raise segment.damaged(f"the ids of {chunk.first!r} are no strings")
    return texts


def _are_texts(texts: StringIds) -> bool:
    """Whether every text ends behind the one before, and all are UTF-8."""
    ends, data = texts.ends, texts.data
    if not len(ends):
        return not len(data)
    if ends[0] < 0 or ends[-1] != len(data) or bool((ends[1:] < ends[:-1]).any()):
        return False
    try:
        data.tobytes().decode()
    except UnicodeDecodeError:
        return False
    starts = ends[:-1]
    starts = starts[starts < len(data)]
    return not bool((data[starts] & 0xC0 == 0x80).any())  # none begins within a character


def id_faults(segment: Segment, chunk: TableChunk) -> str | None:
    """What is wrong with the ids of a chunk, after looking at each."""
    try:
        texts = stored_ids(segment, chunk)
    except DamagedStoreError as error:
        return error.what
    if isinstance(texts, StringIds):
        data, start = texts.data.tobytes(), 0
        for end, told in zip(texts.ends.tolist(), texts.hashes.tolist(), strict=True):
            if hash_of(data[start:end]) != told:
                return f"the ids of {chunk.first!r} have other hashes than it says"
            start = end
    return None
