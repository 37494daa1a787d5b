"""Read the ids of a chunk: check their bytes, and that strings are valid."""

from __future__ import annotations

import numpy as np

from sawlog.errors import DamagedStoreError
from sawlog.store._format._checksum import hash_of
from sawlog.store._format._chunks import TableChunk, ids_name
from sawlog.store._format._ids import StringIds
from sawlog.store._format._segment import RemovedSegmentError, Segment

_PARTS = ("text", "ends", "hash")


def ids_of(segment: Segment, chunk: TableChunk) -> np.ndarray | list[str]:
    """Return :func:`stored_ids` with strings decoded."""
    ids = stored_ids(segment, chunk)
    return ids.take() if isinstance(ids, StringIds) else ids


def stored_ids(segment: Segment, chunk: TableChunk) -> np.ndarray | StringIds:
    """Return a checked copy of the ids of a chunk; a view would keep the file open.

    Raises:
        DamagedStoreError: the ids were changed, or are not valid strings.
    """
    if chunk.ids == "int":
        return segment.values(ids_name(chunk.names)).copy()
    texts = StringIds.stored(*(segment.values(ids_name(chunk.names, part)) for part in _PARTS))
    if not _are_texts(texts):
        raise segment.damaged(f"the ids of {chunk.first!r} are not valid strings")
    return texts


def _are_texts(texts: StringIds) -> bool:
    """Return whether the ends are in order and every string is UTF-8."""
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
    return not bool((data[starts] & 0xC0 == 0x80).any())  # no string starts inside a character


def id_faults(segment: Segment, chunk: TableChunk) -> str | None:
    """Return what is wrong with the ids of a chunk, after checking each, or None."""
    try:
        texts = stored_ids(segment, chunk)
    except RemovedSegmentError:
        raise
    except DamagedStoreError as error:
        return error.what
    if isinstance(texts, StringIds):
        data, start = texts.data.tobytes(), 0
        for end, told in zip(texts.ends.tolist(), texts.hashes.tolist(), strict=True):
            if hash_of(data[start:end]) != told:
                return f"the ids of {chunk.first!r} do not match their hashes"
            start = end
    return None
