"""A segment that is ready to be written: laid out, described and hashed."""

from __future__ import annotations

import dataclasses
import functools
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from sawlog.errors import SchemaError
from sawlog.store import _chunks, _dtypes, _parse
from sawlog.store._checksum import Cut, bytes_of, hash_of
from sawlog.store._header import CHECKSUMS, METADATA, MOST_BYTES
from sawlog.store._many import many_objects

_ALIGN = 64
_PAGE, _LARGE = 4096, 1 << 20  # the data of a large segment starts on a page of its own
_SMALL = 1 << 16  # bytes: smaller pieces are written together


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A segment that is ready to be written: its bytes, piece by piece."""

    header: bytes
    pieces: list[memoryview]
    checksums: bytes

    @property
    def nbytes(self) -> int:
        """The size of the file."""
        return len(self.header) + sum(map(len, self.pieces)) + len(self.checksums)


def prepare(description: dict[str, Any], tensors: Mapping[str, np.ndarray]) -> Prepared:
    """Lay out a segment and hash it. Arrays must be contiguous, with their rows first.

    Raises:
        SchemaError: the arrays do not go with the chunks of the description, or there are too many.
    """
    with many_objects():
        return _prepare(description, tensors)


def _prepare(description: dict[str, Any], tensors: Mapping[str, np.ndarray]) -> Prepared:
    _check(description, tensors)
    order = sorted(tensors, key=lambda name: -_alignment(tensors[name].dtype))
    cuts = {name: _cut(tensors[name]) for name in order}
    pieces = [bytes_of(tensors[name]) for name in order]
    header = _header(description, {name: tensors[name] for name in order}, cuts)
    hashes = [cuts[name].hashes(piece) for name, piece in zip(order, pieces, strict=True)]
    body = struct.pack("<Q", hash_of(header)) + b"".join(hashes)
    return Prepared(header, _gathered(pieces), body + struct.pack("<Q", hash_of(body)))


def _gathered(pieces: list[memoryview]) -> list[memoryview]:
    """The same bytes in fewer pieces: small neighbours become one."""
    if len(pieces) < 8:
        return pieces
    out: list[memoryview] = []
    small: list[memoryview] = []
    for piece in pieces:
        if len(piece) <= _SMALL:
            small.append(piece)
            continue
        out += [memoryview(b"".join(small)), piece]
        small = []
    return [*out, memoryview(b"".join(small))]


def _check(description: dict[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
    """A segment whose tensors disagree with its chunks is not written, whoever made it."""
    try:
        chunks = [_chunks.parse(chunk) for chunk in description["chunks"]]
        _chunks.check_all(chunks, tensors)
    except _parse.Malformed as error:
        raise SchemaError(f"A segment was not written, because {error}.") from error
    if sum(len(chunk.tensors) for chunk in chunks) != len(tensors):
        raise SchemaError("A segment was not written, because it has tensors of no chunk.")


@functools.lru_cache(1024)
def _alignment(dtype: np.dtype) -> int:
    """Sorted by this, widest first, every tensor starts at a multiple of it."""
    return dtype.alignment if _dtypes.stored_as(dtype) is None else dtype.itemsize


def _cut(array: np.ndarray) -> Cut:
    rows = len(array)
    return Cut.of(rows, array.nbytes // rows if rows else 0)


def _header(
    description: dict[str, Any], tensors: Mapping[str, np.ndarray], cuts: Mapping[str, Cut]
) -> bytes:
    entries, types, offset = {}, {}, 0
    for name, array in tensors.items():
        stored, shape = _dtypes.stored_as(array.dtype), list(array.shape)
        if stored is None:
            types[name] = {"dtype": _dtypes.name_of(array.dtype), "shape": shape}
            stored, shape = "U8", [*shape, array.dtype.itemsize]
        entries[name] = _entry(stored, shape, offset, array.nbytes)
        offset += array.nbytes
    size = 8 * (2 + sum(cut.spans + cut.blocks for cut in cuts.values()))
    entries[CHECKSUMS] = _entry("U8", [size], offset, size)
    said = {
        **description,
        "types": types,
        "checksums": {name: [cut.block, cut.span] for name, cut in cuts.items()},
    }
    document = {METADATA: {"sawlog": json.dumps(said)}, **entries}
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % (_PAGE if offset >= _LARGE else _ALIGN))
    if len(text) > MOST_BYTES:
        raise SchemaError(
            f"A segment of {len(tensors)} tensors would need {len(text)} bytes to describe them, "
            f"more than {MOST_BYTES}. Hint: use fewer names, with larger arrays under each."
        )
    return struct.pack("<Q", len(text)) + text


def _entry(stored: str, shape: list[int], offset: int, size: int) -> dict[str, Any]:
    return {"dtype": stored, "shape": shape, "data_offsets": [offset, offset + size]}
