"""Parse the header of a segment into typed values, and check all of it before any use.

See FORMAT.md, section 4. Tensors of older versions get the names of the newest version.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
import re
from typing import Any, NamedTuple

import numpy as np

from sawlog.errors import SchemaError
from sawlog.store._format import _chunks, _dtypes, _parse
from sawlog.store._format._checksum import Cut
from sawlog.store._format._chunks import Chunk
from sawlog.store._format._empty_items import MOST, empty_items
from sawlog.store._format._sequence_ranges import Ranges
from sawlog.store._format._tensor_groups import TensorGroup, parse_groups

VERSION = 3  # the newest known version
PLAIN = 2  # the version of stores, and of segments without groups
CHECKSUMS = "sawlog.checksums"
_MOST_ROWS = 1 << 60
SUFFIX = ".safetensors"
SEGMENTS = "segments"  # folders
REPLACED = "replaced"
METADATA = "__metadata__"
_chain = itertools.chain.from_iterable
_make = tuple.__new__  # builds a named tuple without the cost of its constructor
MOST_BYTES = 1 << 28  # of a header
_NAME = re.compile(r"([a-z0-9]{1,32})-([0-9]{8,19})\.safetensors")


class NewerVersion(Exception):
    """The header is of a version, or needs a codec, that this sawlog does not know."""


def file_name(writer: str, sequence: int) -> str:
    """Return the file name of a segment."""
    return f"{writer}-{sequence:08d}{SUFFIX}"


def parse_name(name: str) -> tuple[str, int] | None:
    """Return writer and sequence, or None if the name is not that of a segment."""
    match = _NAME.fullmatch(name)
    if match is None or not 1 <= (sequence := int(match[2])) <= _parse.MOST:
        return None
    return (match[1], sequence) if name == file_name(match[1], sequence) else None


class TensorLocation(NamedTuple):
    """A tensor of the file: its type, its byte range, and its checksum blocks."""

    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    stop: int
    cut: Cut


class Header(NamedTuple):
    """The description of a segment."""

    version: int
    store: str
    writer: str
    sequence: int
    order: tuple[int, str, int]
    chunks: tuple[Chunk, ...]
    replaces: Ranges
    tensors: dict[str, TensorLocation]
    empty_items: int


class Document(NamedTuple):
    """A header whose JSON was parsed; only the place of its checksums was checked."""

    entries: dict[str, Any]
    said: dict[str, Any]
    base: int
    checksums: tuple[int, int]


def document_of(text: bytes, size: int) -> Document:
    """Parse the JSON of the header of a file with ``size`` bytes.

    Raises:
        Malformed: this is not the header of such a file.
    """
    entries = _parse.load(text)
    metadata = _parse.mapping(_parse.field(entries, METADATA), "'__metadata__'")
    said = _parse.load(_parse.text(_parse.field(metadata, "sawlog"), "its description"))
    base = 8 + len(text)
    last = _parse.mapping(_parse.field(entries, CHECKSUMS), CHECKSUMS)
    start, stop = _offsets(last, CHECKSUMS)
    if last.get("dtype") != "U8" or last.get("shape") != [stop - start]:
        _parse.fail("its checksums are not bytes")
    if base + stop != size:
        _parse.fail(f"it has {size} bytes instead of {base + stop}")
    if stop - start < 16 or (stop - start) % 8:
        _parse.fail("its checksums are cut")
    del entries[METADATA], entries[CHECKSUMS]
    return Document(entries, said, base, (base + start, base + stop))


def header_of(document: Document) -> Header:
    """Parse and check all of a header.

    Raises:
        Malformed: the header is invalid.
        NewerVersion: the header is of a later version.
    """
    said = document.said
    version = _parse.integer(_parse.field(said, "version"), "'version'", 1)
    if version > VERSION:
        raise NewerVersion(f"version {version} of the format")
    writer = _parse.writer(_parse.field(said, "writer"), "'writer'")
    groups = parse_groups(said.get("groups", {})) if version > PLAIN else {}
    chunks = _chunks.parse_all(_parse.field(said, "chunks"), groups)
    renamed = _chunks.renamed(chunks) if version == 1 else {}
    tensors = _tensors(document, groups)
    if renamed:  # keep the order, which is that of the checksums
        tensors = {renamed.get(name, name): placed for name, placed in tensors.items()}
    _chunks.check_all(chunks, tensors)
    empty = empty_items([placed for placed in tensors.values() if placed.start == placed.stop])
    if empty > min(MOST, document.checksums[1]):
        _parse.fail(f"it has {empty} items without bytes, more than such a file can have")
    sequence = _parse.integer(_parse.field(said, "sequence"), "'sequence'", 1)
    replaces = Ranges.from_json(said.get("replaces", {}))
    if replaces.has(writer, sequence):
        _parse.fail("it replaces itself")
    return Header(
        version,
        _parse.text(_parse.field(said, "store"), "'store'"),
        writer,
        sequence,
        _order(_parse.field(said, "order")),
        chunks,
        replaces,
        tensors,
        empty,
    )


def _order(value: Any) -> tuple[int, str, int]:
    order = _parse.sequence(value, "'order'")
    if len(order) != 3:
        _parse.fail("'order' is not [clock, writer, sequence]")
    clock, writer, sequence = order
    return (
        _parse.integer(clock, "the clock of 'order'"),
        _parse.writer(writer, "the writer of 'order'"),
        _parse.integer(sequence, "the sequence of 'order'"),
    )


def _offsets(entry: dict[str, Any], name: str) -> tuple[int, int]:
    pair = entry.get("data_offsets")
    if type(pair) is not list or len(pair) != 2:
        _parse.fail(f"{_parse.shown(name)} has no 'data_offsets'")
    start, stop = pair
    if type(start) is int and type(stop) is int and 0 <= start <= stop <= _parse.MOST:
        return start, stop
    start = _parse.integer(pair[0], "an offset of a tensor")
    return start, _parse.integer(pair[1], "an offset of a tensor", start)


def _tensors(
    document: Document, groups: dict[str, TensorGroup] | None = None
) -> dict[str, TensorLocation]:
    """Return every tensor in file order, after checking that there are no gaps."""
    said, base = document.said, document.base
    types = _parse.mapping(_parse.field(said, "types"), "'types'")
    cuts = _parse.mapping(_parse.field(said, "checksums"), "'checksums'")
    found = None if types else _all_plain(document.entries, cuts, base)
    if found is None:
        found = {
            name: _placed(name, entry, types.get(name), cuts.get(name), base)
            for name, entry in _in_order(document.entries)
        }
        _check_gaps(found, base)
    at = next(reversed(found.values())).stop if found else base
    if groups:
        found = _expanded(found, groups)
    if max(map(len, {placed.shape for placed in found.values()}), default=0) > _parse.MOST_AXES:
        _parse.fail(f"a tensor has more than {_parse.MOST_AXES} axes")
    alike = collections.Counter([placed.cut for placed in found.values()])
    hashes = sum([cut.hash_count * count for cut, count in alike.items()])
    first, last = document.checksums
    if at != first:
        _parse.fail("its checksums do not follow its tensors")
    if 8 * (hashes + 2) != last - first:
        _parse.fail(f"it has {(last - first) // 8} checksums instead of {hashes + 2}")
    return found


def _expanded(
    found: dict[str, TensorLocation], groups: dict[str, TensorGroup]
) -> dict[str, TensorLocation]:
    """Replace each group by the tensors that it represents."""
    if lost := groups.keys() - found.keys():
        _parse.fail(f"the tensor {_parse.shown(min(lost))} is missing")
    out: dict[str, TensorLocation] = {}
    count = 0
    for name, placed in found.items():
        group = groups.get(name)
        if group is None:
            out[name] = placed
            count += 1
            continue
        dtype, shape, first, last, cut = placed
        names, prefix = group
        if len(shape) < 2 or shape[0] != len(names) or first == last:
            _parse.fail(f"{_parse.shown(name)} has the shape {list(shape)}, not {len(names)} rows")
        size, own = (last - first) // len(names), shape[1:]
        cut = Cut(own[0], size // own[0], cut.block, cut.span)
        starts = range(first, last, size)
        places = [_make(TensorLocation, (dtype, own, start, start + size, cut)) for start in starts]
        full = [prefix + each for each in names] if prefix else names
        out.update(zip(full, places, strict=True))
        count += len(names)
    if len(out) != count:
        _parse.fail("a tensor of a group occurs twice")
    return out


def _in_order(entries: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the tensors in file order."""
    for name, entry in entries.items():
        if type(entry) is not dict:
            _parse.fail(f"{_parse.shown(name)} is {_parse.shown(entry)}, not a tensor")
        _offsets(entry, name)
    return sorted(entries.items(), key=lambda item: item[1]["data_offsets"])  # stable


def _check_gaps(found: dict[str, TensorLocation], at: int) -> None:
    for name, placed in found.items():
        if placed.start != at:
            _parse.fail(f"{_parse.shown(name)} begins at {placed.start} instead of {at}")
        at = placed.stop


class _Kind(NamedTuple):
    """What tensors of the same type, shape and cut share."""

    dtype: np.dtype
    shape: tuple[int, ...]
    size: int
    cut: Cut


def _all_plain(
    entries: dict[str, Any], cuts: dict[str, Any], base: int
) -> dict[str, TensorLocation] | None:
    """Parse all tensors at once if each has a safetensors type and they are in order.

    A fast path for a hundred thousand tensors of few kinds. It accepts nothing that
    :func:`_placed` refuses, with the same result. None if they must be parsed one by one.
    """
    try:
        "".join(entries).encode()
        shapes = [entry["shape"] for entry in entries.values()]
        offsets = [entry["data_offsets"] for entry in entries.values()]
        chosen = [cuts[name] for name in entries]
        if "" in entries or not all(map(_are_integers, (shapes, offsets, chosen))):
            return None
        types = [entry["dtype"] for entry in entries.values()]
        keys = list(zip(types, map(tuple, shapes), map(tuple, chosen), strict=True))
        known = {key: _kind(*key) for key in set(keys)}
    except (KeyError, TypeError, ValueError):  # also if an entry is not an object
        return None
    kinds = [kind for kind in map(known.__getitem__, keys) if kind is not None]
    if len(kinds) != len(keys):
        return None
    ends = list(itertools.accumulate([kind.size for kind in kinds], initial=0))
    if offsets != [[start, stop] for start, stop in itertools.pairwise(ends)]:
        return None
    places = itertools.pairwise([base + end for end in ends])
    return {
        name: _make(TensorLocation, (kind.dtype, kind.shape, start, stop, kind.cut))
        for name, kind, (start, stop) in zip(entries, kinds, places, strict=True)
    }


def _are_integers(lists: list[Any]) -> bool:
    """Return whether these are lists of integers; true and 1.0 are not integers."""
    if not set(map(type, lists)) <= {list}:
        return False
    return set(map(type, _chain(lists))) <= {int}


@functools.lru_cache(1 << 12)
def _kind(stored: Any, shape: tuple[int, ...], cut: tuple[int, ...]) -> _Kind | None:
    try:
        dtype = _dtypes.dtype_stored_as(stored)
        rows = _parse.shape(list(shape), "")[0]
        block, span = _cut("", list(cut))
    except (_parse.Malformed, SchemaError, IndexError):
        return None
    size = math.prod(shape) * dtype.itemsize
    return _Kind(dtype, shape, size, Cut(rows, size // rows if rows else 0, block, span))


def _placed(name: str, entry: dict[str, Any], opaque: Any, cut: Any, base: int) -> TensorLocation:
    _parse.name(name, "the name of a tensor")
    start, stop = _offsets(entry, name)
    try:
        dtype = _dtypes.dtype_stored_as(entry.get("dtype"))
    except SchemaError as error:
        _parse.fail(f"{_parse.shown(name)}: {error}")
    most = _parse.MOST_AXES + 2  # the axis of a group, and that of the bytes of an item
    shape = _parse.shape(entry.get("shape"), f"the shape of {_parse.shown(name)}", most)
    if not shape:
        _parse.fail(f"{_parse.shown(name)} has no rows")
    size = math.prod(shape) * dtype.itemsize
    if stop - start != size:
        _parse.fail(f"{_parse.shown(name)} has {stop - start} bytes, unlike its shape")
    if opaque is not None:
        dtype, shape = _opaque(name, opaque, dtype, shape)
    rows = shape[0]
    block, span = _cut(name, cut)
    row_bytes = size // rows if rows else 0
    return TensorLocation(
        dtype, shape, base + start, base + stop, Cut(rows, row_bytes, block, span)
    )


def _cut(name: str, value: Any) -> tuple[int, int]:
    if type(value) is not list or len(value) != 2:
        _parse.fail(f"'checksums' has no blocks and spans of {_parse.shown(name)}")
    block = _parse.integer(value[0], "the rows of a block", 1)
    span = _parse.integer(value[1], "the rows of a span", block)
    if span > _MOST_ROWS:
        _parse.fail(f"the spans of {_parse.shown(name)} have more rows than any file can hold")
    if span % block:
        _parse.fail(f"the spans of {_parse.shown(name)} are not multiples of its blocks")
    return block, span


def _opaque(
    name: str, value: Any, stored: np.dtype, shape: tuple[int, ...]
) -> tuple[np.dtype, tuple[int, ...]]:
    """Return the dtype and shape of a tensor that is stored as bytes."""
    said = _parse.mapping(value, f"the type of {_parse.shown(name)}")
    if said.get("codec") is not None:
        raise NewerVersion(f"{_parse.shown(name)} in the codec {_parse.shown(said['codec'])}")
    try:
        dtype = _dtypes.dtype_of(said.get("dtype"))
    except SchemaError as error:
        _parse.fail(f"{_parse.shown(name)}: {error}")
    most = _parse.MOST_AXES + 1  # the axis of a group
    own = _parse.shape(said.get("shape"), f"the type of {_parse.shown(name)}", most)
    if stored != np.uint8 or not own or shape != (*own, dtype.itemsize):
        _parse.fail(f"{_parse.shown(name)} is not stored as the bytes of its type")
    return dtype, own
