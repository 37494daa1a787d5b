"""Segments: safetensors files that describe themselves and can be checked piece by piece.

Written whole, once; read through a memory map. See FORMAT.md, sections 4 and 6.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import mmap
import os
import re
import struct
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from sawlog.errors import DamagedStoreError, NewerStoreError, SchemaError
from sawlog.store import _dtypes
from sawlog.store._checksum import Checked, Cut, Memory, bytes_of, hash_of
from sawlog.store._files import sync_folder, write_all

VERSION = 1
CHECKSUMS = "sawlog.checksums"
SUFFIX = ".safetensors"
REPLACED = "replaced"
_NAME = re.compile(r"([a-z0-9]{1,32})-(\d{8,})\.safetensors")
_ALIGN = 64
_PAGE, _LARGE = 4096, 1 << 20  # the data of a large segment starts on a page of its own
_checked_before = Memory()


def file_name(writer: str, sequence: int) -> str:
    """The name of a segment."""
    return f"{writer}-{sequence:08d}{SUFFIX}"


def parse_name(name: str) -> tuple[str, int] | None:
    """Writer and sequence, or None for a file that is no segment."""
    match = _NAME.fullmatch(name)
    return (match[1], int(match[2])) if match else None


# -- tensor names ---------------------------------------------------------------------------------


def ids_name(table: Iterable[str], part: str = "") -> str:
    """The tensor with the ids of a table's chunk, or with a part of them."""
    first = next(iter(table))
    return f"sawlog.ids.{part}/{first}" if part else f"sawlog.ids/{first}"


def step_name(axis: str, series: str) -> str:
    """The tensor with a step axis of a series."""
    return f"sawlog.step/{axis}/{series}"


def mask_name(series: str) -> str:
    """The tensor with the mask of a series."""
    return f"sawlog.mask/{series}"


def tensors_of(chunk: Mapping[str, Any]) -> list[str]:
    """The names of all tensors of a chunk."""
    if "table" in chunk:
        names = chunk["table"]
        parts = ("",) if chunk["ids"] == "int" else ("text", "ends", "hash")
        return [*names, *(ids_name(names, part) for part in parts)]
    name = chunk["series"]
    mask = [mask_name(name)] if chunk.get("mask") else []
    return [name, *(step_name(axis, name) for axis in chunk["steps"]), *mask]


# -- writing --------------------------------------------------------------------------------------


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
    """Lay out a segment and hash it. Arrays must be contiguous, with their rows first."""
    order = sorted(tensors, key=lambda name: -_alignment(tensors[name].dtype))
    cuts = {name: _cut(tensors[name]) for name in order}
    pieces = [bytes_of(tensors[name]) for name in order]
    header = _header(description, {name: tensors[name] for name in order}, cuts)
    hashes = [cuts[name].hashes(piece) for name, piece in zip(order, pieces, strict=True)]
    body = struct.pack("<Q", hash_of(header)) + b"".join(h.tobytes() for h in hashes)
    return Prepared(header, pieces, body + struct.pack("<Q", hash_of(body)))


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
    document = {"__metadata__": {"sawlog": json.dumps(said)}, **entries}
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % (_PAGE if offset >= _LARGE else _ALIGN))
    return struct.pack("<Q", len(text)) + text


def _entry(stored: str, shape: list[int], offset: int, size: int) -> dict[str, Any]:
    return {"dtype": stored, "shape": shape, "data_offsets": [offset, offset + size]}


class Unpublished:
    """A prepared segment on its way: ``write`` puts it aside, ``commit`` gives it its name."""

    def __init__(self, prepared: Prepared, path: Path, tmp: Path) -> None:
        self._prepared, self._path = prepared, path
        self._aside = tmp / (path.name + ".part")
        self._descriptor: int | None = None

    def write(self) -> None:
        """Hand all bytes to the system. Raises OSError, and then nothing is left of it."""
        with self._or_discard():
            self._descriptor = os.open(self._aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            claim(self._descriptor)
            for piece in (self._prepared.header, *self._prepared.pieces, self._prepared.checksums):
                write_all(self._descriptor, piece)

    def commit(self) -> None:
        """Wait for the disk, and publish. Raises OSError, and then it can be called again."""
        if self._descriptor is None:
            self.write()
        with self._or_discard():
            assert self._descriptor is not None
            os.fsync(self._descriptor)
            os.rename(self._aside, self._path)
        self._close()
        sync_folder(self._path.parent)

    @contextlib.contextmanager
    def _or_discard(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._close()
            with contextlib.suppress(OSError):
                self._aside.unlink()
            raise

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def claim(descriptor: int) -> bool | None:
    """Mark an open file as in use. False if somebody else did, None where nobody can tell.

    Nobody ever waits for it: it tells the leftovers of the dead from the work of the living.
    """
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


# -- reading --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Placed:
    """Where a tensor lies in the file."""

    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    stop: int
    cut: Cut


@dataclasses.dataclass(frozen=True)
class _Map:
    """The mapped bytes of a file, and what of them was checked."""

    data: mmap.mmap
    checked: dict[str, Checked]


class _OpenMaps:
    """Bounds how many files are mapped at once: a process may not have many open."""

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._segments: collections.deque[weakref.ref[Segment]] = collections.deque()

    def used(self, segment: Segment) -> None:
        """Note one more, and forget the oldest if there are too many."""
        self._segments.append(weakref.ref(segment))
        while len(self._segments) > self._most:
            oldest = self._segments.popleft()()
            if oldest is not None and oldest is not segment:
                oldest.forget()


_open_maps = _OpenMaps()


class Segment:
    """A published segment: its description at once, its data through a map when it is needed."""

    def __init__(self, path: Path, trusting: bool = True) -> None:
        """Read and check the header.

        ``trusting``: what this process has checked before need not be checked again.

        Raises:
            DamagedStoreError: the file was cut or changed.
            NewerStoreError: it was written in a newer version of the format.
        """
        self.path = path
        self.name = path.name
        self._lock = threading.Lock()
        self._map: _Map | None = None
        with open(path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            self.nbytes, self._key, self._trusting = status.st_size, Memory.key(status), trusting
            self._read_header(file.fileno())

    def damaged(self, what: str) -> DamagedStoreError:
        """The error that names this file."""
        return DamagedStoreError(
            f"{self.path}: {what}. Hint: sawlog verify lists what is damaged and what is readable; "
            "open(path, damaged='skip') reads the rest.",
            what=what,
        )

    def _read_header(self, file: int) -> None:
        head = os.pread(file, 1 << 16, 0)
        length = struct.unpack("<Q", head[:8])[0] if len(head) >= 8 else 0
        if not 2 <= length <= self.nbytes - 8:
            raise self.damaged("the file is cut or its beginning was changed")
        if len(head) < 8 + length:
            head += os.pread(file, 8 + length - len(head), len(head))
        head = head[: 8 + length]
        try:
            document = json.loads(head[8:])
            said = json.loads(document["__metadata__"]["sawlog"])
            last = document[CHECKSUMS]["data_offsets"]
            self._base = 8 + length
            self._tail = (self._base + last[0], self._base + last[1])
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise self.damaged(f"its header cannot be read ({error})") from error
        if self.nbytes != self._tail[1]:
            raise self.damaged(f"it has {self.nbytes} bytes instead of {self._tail[1]}")
        if os.pread(file, 8, self._tail[0]) != struct.pack("<Q", hash_of(head)):
            raise self.damaged("its header was changed after it was written")
        if said["version"] > VERSION:
            raise NewerStoreError(
                f"{self.path} has version {said['version']} of the format, and this sawlog knows "
                f"{VERSION}. Hint: pip install --upgrade sawlog"
            )
        self._take(said, document)

    def _take(self, said: dict[str, Any], document: dict[str, Any]) -> None:
        self.store: str = said["store"]
        self.writer: str = said["writer"]
        self.sequence: int = said["sequence"]
        self.order = (said["order"][0], said["order"][1], said["order"][2])
        self.chunks: list[dict[str, Any]] = said["chunks"]
        self.replaces: dict[str, list[list[int]]] = said.get("replaces", {})
        if parse_name(self.name) != (self.writer, self.sequence):
            raise self.damaged(f"it was published as {file_name(self.writer, self.sequence)}")
        self.tensors: dict[str, Placed] = {}
        for name, entry in document.items():
            if name not in ("__metadata__", CHECKSUMS):
                self.tensors[name] = self._placed(name, entry, said)

    def _placed(self, name: str, entry: dict[str, Any], said: dict[str, Any]) -> Placed:
        opaque = said["types"].get(name)
        try:
            kind = opaque["dtype"] if opaque else None
            dtype = _dtypes.dtype_of(kind) if opaque else _dtypes.dtype_stored_as(entry["dtype"])
        except SchemaError as error:
            raise self.damaged(f"{name!r}: {error}") from error
        shape = tuple(opaque["shape"] if opaque else entry["shape"])
        start, stop = entry["data_offsets"]
        rows = shape[0]
        cut = Cut(rows, (stop - start) // rows if rows else 0, *said["checksums"][name])
        return Placed(dtype, shape, self._base + start, self._base + stop, cut)

    def _mapped(self) -> _Map:
        with self._lock:
            if self._map is None:
                self._map = self._open_map()
                _open_maps.used(self)
            return self._map

    def forget(self) -> None:
        """Let go of the map; whoever has a view of it keeps it open."""
        with self._lock:
            self._map = None

    def _open_map(self) -> _Map:
        with self._open() as file:
            if Memory.key(os.fstat(file.fileno()))[:-1] != self._key[:-1]:  # it may have been moved
                raise self.damaged("the file was changed after it was opened")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        start, stop = self._tail
        tail = data[start:stop]
        if struct.unpack("<Q", tail[-8:])[0] != hash_of(tail[:-8]):
            raise self.damaged("its checksums were changed after it was written")
        hashes, at, view, checked = np.frombuffer(tail, dtype="<u8"), 1, memoryview(data), {}
        for name, placed in self.tensors.items():
            count = placed.cut.spans + placed.cut.blocks
            known = self._trusting and _checked_before.knows(self._key, name)
            own = view[placed.start : placed.stop]
            checked[name] = Checked(own, placed.cut, hashes[at : at + count], known)
            at += count
        return _Map(data, checked)

    def _open(self) -> FileIO:
        """The file, also if it was compacted away since its header was read."""
        with contextlib.suppress(FileNotFoundError):
            return FileIO(self.path)
        for path in (self.path.parent.parent / REPLACED).glob(f"*/{self.name}"):
            with contextlib.suppress(FileNotFoundError):
                return FileIO(path)
        raise self.damaged(
            "it was removed after it was opened, perhaps compacted away: refresh() or open again"
        )

    def unchecked(self, name: str) -> np.ndarray:
        """A whole tensor as a read-only view of the map, as it is on disk."""
        placed, mapped = self.tensors[name], self._mapped().data
        if placed.stop == placed.start:
            return _read_only(np.empty(placed.shape, placed.dtype))
        size = placed.stop - placed.start
        flat = np.frombuffer(mapped, dtype=np.uint8, offset=placed.start, count=size)
        return flat.view(placed.dtype).reshape(placed.shape)

    def check(self, name: str, start: int = 0, stop: int | None = None) -> None:
        """Make sure of the rows from ``start`` to ``stop`` of a tensor.

        Raises:
            DamagedStoreError: they are not what was written.
        """
        checked = self._mapped().checked[name]
        stop = self.tensors[name].shape[0] if stop is None else stop
        if checked.complete:
            return
        if not checked.range_ok(start, stop):
            raise self._changed(name)
        if checked.complete:
            _checked_before.add(self._key, name)

    def take(self, name: str, rows: np.ndarray) -> np.ndarray:
        """A checked copy of single rows; as :meth:`values`."""
        copy = self.unchecked(name)[rows]
        if not self._mapped().checked[name].copied_ok(rows, copy):
            raise self._changed(name)
        return copy

    def _changed(self, name: str) -> DamagedStoreError:
        return self.damaged(f"bytes of {name!r} were changed after they were written")

    def faults(self) -> dict[str, str]:
        """What is wrong with which tensor, after reading all of it."""
        found = {}
        for name, placed in self.tensors.items():
            try:
                self.check(name)
            except DamagedStoreError as error:
                found[name] = error.what
            self.release((name,), 0, placed.shape[0])
        return found

    def values(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Checked rows of a tensor, as a read-only view of the map."""
        self.check(name, start, stop)
        return self.unchecked(name)[start:stop]

    def release(self, names: Iterable[str], start: int, stop: int) -> None:
        """Give back the memory that rows of the map take; they are read anew if needed."""
        self._advise(names, start, stop, getattr(mmap, "MADV_DONTNEED", None))

    def will_need(self, names: Iterable[str], start: int, stop: int) -> None:
        """Let the system read rows ahead, if they are not in its cache."""
        self._mapped()
        self._advise(names, start, stop, getattr(mmap, "MADV_WILLNEED", None))

    def is_checked(self, name: str) -> bool:
        """Whether all of a tensor was checked before."""
        return self._mapped().checked[name].complete

    def _advise(self, names: Iterable[str], start: int, stop: int, advice: int | None) -> None:
        """Tell the system what becomes of the pages of some rows."""
        mapped = self._map
        if advice is None or mapped is None:
            return
        for first, last in self._pages(names, start, stop):
            mapped.data.madvise(advice, first, min(last, len(mapped.data)) - first)

    def _pages(self, names: Iterable[str], start: int, stop: int) -> list[tuple[int, int]]:
        """From where to where the pages of some rows lie; tensors side by side are one range."""
        page = mmap.PAGESIZE
        cuts = [(self.tensors[name].start, self.tensors[name].cut.row_bytes) for name in names]
        ranges = sorted(
            ((base + start * row) // page * page, -(-(base + stop * row) // page) * page)
            for base, row in cuts
            if row and stop > start
        )
        joined: list[tuple[int, int]] = []
        for first, last in ranges:
            if joined and first <= joined[-1][1]:
                joined[-1] = (joined[-1][0], last)
            else:
                joined.append((first, last))
        return joined


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
