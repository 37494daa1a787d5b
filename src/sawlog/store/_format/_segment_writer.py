"""Write a segment: lay out its tensors, describe and hash them, then publish the file."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sawlog.errors import SchemaError
from sawlog.store._disk import Disk, Upload
from sawlog.store._format import _chunks, _dtypes, _parse
from sawlog.store._format._checksum import Cut, bytes_of, hash_of
from sawlog.store._format._empty_items import MOST, empty_items
from sawlog.store._format._header import CHECKSUMS, METADATA, MOST_BYTES, SEGMENTS
from sawlog.store._format._tensor_groups import grouped
from sawlog.store._gc_pause import paused_gc

_ALIGN = 64
_PAGE, _LARGE = 4096, 1 << 20  # the data of a large segment starts at a page boundary
_SMALL = 1 << 16  # bytes; smaller pieces are written together


@dataclasses.dataclass(frozen=True)
class PreparedSegment:
    """The bytes of a segment, in pieces."""

    header: bytes
    pieces: list[memoryview]
    checksums: bytes

    @property
    def nbytes(self) -> int:
        """The size of the file."""
        return len(self.header) + sum(map(len, self.pieces)) + len(self.checksums)


def prepare(description: dict[str, Any], tensors: Mapping[str, np.ndarray]) -> PreparedSegment:
    """Lay out and hash a segment. Arrays must be contiguous, with rows as the first axis.

    Raises:
        SchemaError: the arrays do not match the chunks of the description, or are too many.
    """
    with paused_gc():
        return _prepare(description, tensors)


def _prepare(description: dict[str, Any], tensors: Mapping[str, np.ndarray]) -> PreparedSegment:
    _check(description, tensors)
    description, groups = grouped(description, tensors)
    units = _units(tensors, groups)
    order = [name for names in units.values() for name in names]
    cuts = {name: _cut(tensors[name]) for name in order}
    pieces = [bytes_of(tensors[name]) for name in order]
    header = _header(description, tensors, units, cuts)
    hashes = [cuts[name].hashes(piece) for name, piece in zip(order, pieces, strict=True)]
    body = struct.pack("<Q", hash_of(header)) + b"".join(hashes)
    return PreparedSegment(header, _gathered(pieces), body + struct.pack("<Q", hash_of(body)))


def _units(
    tensors: Mapping[str, np.ndarray], groups: Mapping[str, list[str]]
) -> dict[str, list[str]]:
    """Return the entries of the header in file order, with the tensors that each represents."""
    members = {name for names in groups.values() for name in names}
    units = {**groups, **{name: [name] for name in tensors if name not in members}}
    order = sorted(units, key=lambda unit: -_alignment(tensors[units[unit][0]].dtype))
    return {unit: units[unit] for unit in order}


def _gathered(pieces: list[memoryview]) -> list[memoryview]:
    """Join small neighbouring pieces."""
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
    """Refuse tensors that do not match the chunks."""
    try:
        chunks = _chunks.parse_all(description["chunks"])
        _chunks.check_all(chunks, tensors)
    except _parse.Malformed as error:
        raise SchemaError(f"A segment was not written, because {error}.") from error
    if sum(len(chunk.tensors) for chunk in chunks) != len(tensors):
        raise SchemaError("A segment was not written, because it has tensors without a chunk.")
    if (empty := empty_items(tensors.values())) > MOST:
        raise SchemaError(
            f"A segment was not written, because it has {empty} items without bytes, more than "
            f"{MOST}."
        )


@functools.lru_cache(1024)
def _alignment(dtype: np.dtype) -> int:
    """Return the sort key that aligns tensors: widest first, each starts at a multiple of it."""
    return dtype.alignment if _dtypes.stored_as(dtype) is None else dtype.itemsize


def _cut(array: np.ndarray) -> Cut:
    rows = len(array)
    return Cut.of(rows, array.nbytes // rows if rows else 0)


def _header(
    description: dict[str, Any],
    tensors: Mapping[str, np.ndarray],
    units: Mapping[str, list[str]],
    cuts: Mapping[str, Cut],
) -> bytes:
    entries, types, offset = {}, {}, 0
    for unit, names in units.items():
        array = tensors[names[0]]
        count = [] if unit == names[0] else [len(names)]  # of a group
        stored, shape = _dtypes.stored_as(array.dtype), [*count, *array.shape]
        if stored is None:
            types[unit] = {"dtype": _dtypes.name_of(array.dtype), "shape": shape}
            stored, shape = "U8", [*shape, array.dtype.itemsize]
        size = array.nbytes * len(names)
        entries[unit] = _entry(stored, shape, offset, size)
        offset += size
    size = 8 * (2 + sum(cut.spans + cut.blocks for cut in cuts.values()))
    entries[CHECKSUMS] = _entry("U8", [size], offset, size)
    said = {
        **description,
        "types": types,
        "checksums": {
            unit: [cuts[names[0]].block, cuts[names[0]].span] for unit, names in units.items()
        },
    }
    document = {METADATA: {"sawlog": json.dumps(said)}, **entries}
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    least = empty_items(tensors.values()) - offset - size - 8  # FORMAT.md: items without bytes
    text += b" " * (least - len(text))
    text += b" " * (-(len(text) + 8) % (_PAGE if offset >= _LARGE else _ALIGN))
    if len(text) > MOST_BYTES:
        raise SchemaError(
            f"A segment of {len(tensors)} tensors would need {len(text)} bytes to describe them, "
            f"more than {MOST_BYTES}. Hint: use fewer names, with larger arrays under each."
        )
    return struct.pack("<Q", len(text)) + text


def _entry(stored: str, shape: list[int], offset: int, size: int) -> dict[str, Any]:
    return {"dtype": stored, "shape": shape, "data_offsets": [offset, offset + size]}


class UnpublishedSegment:
    """A prepared segment: ``write`` puts it into ``tmp/``, ``commit`` renames it."""

    def __init__(self, prepared: PreparedSegment, disk: Disk, name: str) -> None:
        self._prepared, self._disk, self._name = prepared, disk, name
        self._upload: Upload | None = None

    def write(self) -> None:
        """Write all bytes. If that raises ``OSError``, nothing is left in ``tmp/``."""
        with self._or_discard():
            self._upload = self._disk.upload(f"{SEGMENTS}/{self._name}")
            whole = self._prepared
            self._upload.write(whole.header, *whole.pieces, whole.checksums)

    def commit(self) -> None:
        """Sync and publish. If that raises ``OSError``, it can be called again."""
        if self._upload is None:
            self.write()
        with self._or_discard():
            assert self._upload is not None
            self._upload.commit()
        self._upload = None

    @contextlib.contextmanager
    def _or_discard(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            upload, self._upload = self._upload, None
            if upload is not None:
                with contextlib.suppress(OSError):
                    upload.discard()
            raise
