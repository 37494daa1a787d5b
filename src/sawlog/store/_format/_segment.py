"""Read a segment: a safetensors file with a description and checksums.

The header is read and checked at once; data is read through a memory map, and checked block by
block. See FORMAT.md, sections 4 and 6.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import functools
import itertools
import struct
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from sawlog.errors import DamagedStoreError, NewerStoreError
from sawlog.store._disk import SMALL, Blob, LocalDisk, Mapped
from sawlog.store._format import _parse
from sawlog.store._format._checksum import CheckedBytes, CheckedTensors, hash_of
from sawlog.store._format._chunks import Chunk
from sawlog.store._format._header import (
    MOST_BYTES,
    REPLACED,
    SEGMENTS,
    VERSION,
    Header,
    NewerVersion,
    TensorLocation,
    document_of,
    file_name,
    header_of,
    parse_name,
)
from sawlog.store._format._header_cache import HeaderCache
from sawlog.store._format._json_files import NOT_A_FILE, read_error
from sawlog.store._format._unicode import is_returnable

_FIRST_READ = 1 << 14  # bytes; most headers are smaller
_PAGE = 4096
_LARGE_ROW = 1 << 20  # bytes; larger rows are copied one by one, without a second copy
_COPIED_AT_ONCE = 256 << 10  # bytes of smaller rows, which fit into the cache of a core
_NONE = np.zeros(0, "<u8")
_checked_before = CheckedTensors()
_read_before = HeaderCache()


@dataclasses.dataclass
class _SegmentMap:
    """The mapped bytes of a segment, and which of them were checked."""

    memory: Mapped
    checked: dict[str, CheckedBytes]  # by tensor, once it is read
    hashes: np.ndarray | None = None  # all checksums, once they are needed


class _OpenMaps:
    """Bounds the number of mapped files, because a process may only have few open."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._segments: collections.deque[weakref.ref[Segment]] = collections.deque()

    def used(self, segment: Segment) -> None:
        """Add a segment, and close the oldest map if there are too many."""
        self._segments.append(weakref.ref(segment))
        with contextlib.suppress(IndexError):  # another thread took the last one
            while len(self._segments) > self._most:
                oldest = self._segments.popleft()()
                if oldest is not None and oldest is not segment:
                    oldest.forget()


_open_maps, _small_maps = _OpenMaps(256), _OpenMaps(8192)  # small files are in memory


class RemovedSegmentError(DamagedStoreError):
    """The file was removed after its header was read, as a compaction does."""


class Segment:
    """A published segment. Its header is read at once, its data when it is needed."""

    def __init__(self, disk: LocalDisk, name: str, trusting: bool = True) -> None:
        """Read and check the header.

        If ``trusting``, tensors that this process has checked before are not checked again.

        Raises:
            FileNotFoundError: the file does not exist.
            DamagedStoreError: the file was cut or changed, or is not a regular file.
            NewerStoreError: the file is of a newer version of the format.
        """
        self.name = name
        self._disk, self._trusting = disk, trusting
        self._map: _SegmentMap | None = None
        try:
            with disk.open(f"{SEGMENTS}/{name}") as blob:
                self.nbytes, self._key = blob.status.size, blob.status.key
                self._take(*self._read_header(blob))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._unreadable(error) from error
        except _parse.Malformed as error:
            raise self.damaged(str(error)) from error
        except NewerVersion as error:
            raise NewerStoreError(
                f"{self.path} has {error}, and this sawlog knows {VERSION}. "
                "Hint: pip install --upgrade sawlog"
            ) from error

    @property
    def path(self) -> Path:
        """The path of the file."""
        return Path(self._disk.root, SEGMENTS, self.name)

    def damaged(self, what: str) -> DamagedStoreError:
        """Return an error that names this file."""
        return DamagedStoreError(
            f"{self.path}: {what}. Hint: sawlog verify lists what is damaged and what is readable; "
            "open(path, damaged='skip') reads the rest.",
            what=what,
        )

    def _read_header(self, blob: Blob) -> tuple[Header, tuple[int, int]]:
        """Return the header, and the place of the checksums."""
        head = blob.read(0, _FIRST_READ)
        length = struct.unpack("<Q", head[:8])[0] if len(head) >= 8 else 0
        if not 2 <= length <= self.nbytes - 8:
            _parse.fail("the file is cut or its beginning was changed")
        if length > MOST_BYTES:
            _parse.fail(f"its header has {length} bytes, more than {MOST_BYTES}")
        begin = head
        if len(head) < 8 + length:
            head += blob.read(len(head), 8 + length - len(head))
        head = head[: 8 + length]
        text = head[8:]
        known = _read_before.find(text, self.nbytes)
        if known is None:
            try:
                document = document_of(text, self.nbytes)
            except _parse.Malformed as error:
                _parse.fail(f"its header cannot be read: {error}")
        at = document.checksums[0] if known is None else known[1][0]
        told = begin[at : at + 8] if at + 8 <= len(begin) else blob.read(at, 8)
        if told != struct.pack("<Q", hash_of(head)):
            _parse.fail("its header was changed after it was written")
        if known is None:
            known = header_of(document), document.checksums
            _read_before.add(text, self.nbytes, *known)
        return known

    def _take(self, header: Header, checksums: tuple[int, int]) -> None:
        if parse_name(self.name) != (header.writer, header.sequence):
            _parse.fail(f"it was published as {file_name(header.writer, header.sequence)}")
        self._tail = checksums
        self.version, self.store = header.version, header.store
        self.writer, self.sequence = header.writer, header.sequence
        self.order, self.replaces = header.order, header.replaces
        self.chunks: list[Chunk] = list(header.chunks)
        self.kind = header.chunks  # the same object for equal headers, see _header_cache
        self.tensors: dict[str, TensorLocation] = header.tensors
        self.empty_items = header.empty_items

    def _mapped(self) -> _SegmentMap:
        mapped = self._map
        if mapped is None:  # no lock: at worst, two threads map the file twice
            mapped = self._open_map()
            self._map = mapped
            (_small_maps if self.nbytes <= SMALL else _open_maps).used(self)
        return mapped

    def forget(self) -> None:
        """Drop the map; it stays open while views of it exist."""
        self._map = None

    def _open_map(self) -> _SegmentMap:
        with self._open() as blob:
            if blob.status.key[:-1] != self._key[:-1]:  # moving changes the last item
                raise self.damaged("the file was changed after it was opened")
            self._key = blob.status.key  # if it was moved, or changed in place, check it again
            try:
                memory = blob.map()
            except (OSError, ValueError) as error:  # mmap: a file that was cut is a ValueError
                if isinstance(error, ValueError):
                    raise self.damaged("the file was cut while it was read") from error
                raise self._unreadable(error) from error
        if len(memory.data) != self.nbytes:
            raise self.damaged("the file was cut while it was read")
        mapped = _SegmentMap(memory, {})
        if not self._trusting:
            self._hashes(mapped)
        return mapped

    def _hashes(self, mapped: _SegmentMap) -> np.ndarray:
        """Return all checksums, which are checked first."""
        if mapped.hashes is None:
            start, stop = self._tail
            tail = mapped.memory.data[start:stop]
            if struct.unpack("<Q", tail[-8:])[0] != hash_of(tail[:-8]):
                raise self.damaged("its checksums were changed after it was written")
            mapped.hashes = np.frombuffer(tail, dtype="<u8")
        return mapped.hashes

    def _checked(self, name: str) -> CheckedBytes:
        """Return the checked state of a tensor, created when it is first read."""
        mapped = self._mapped()
        found = mapped.checked.get(name)
        if found is None:
            placed, at = self.tensors[name], self._first_hashes[name]
            known = self._trusting and _checked_before.knows(self._key, name)
            own = memoryview(mapped.memory.data)[placed.start : placed.stop]
            hashes = _NONE if known else self._hashes(mapped)[at : at + placed.cut.hash_count]
            found = mapped.checked.setdefault(name, CheckedBytes(own, placed.cut, hashes, known))
        return found

    @functools.cached_property
    def _first_hashes(self) -> dict[str, int]:
        """The index of the first checksum of each tensor; 0 is that of the header."""
        counts = [placed.cut.hash_count for placed in self.tensors.values()]
        return dict(zip(self.tensors, itertools.accumulate(counts, initial=1), strict=False))

    def _open(self) -> Blob:
        """Open the file, also if it was moved to ``replaced/`` since its header was read."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return self._open_at(f"{SEGMENTS}/{self.name}")
        with contextlib.suppress(OSError):
            for folder in sorted(self._disk.list(REPLACED), reverse=True):
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    return self._open_at(f"{REPLACED}/{folder}/{self.name}")
        what = (
            "it was removed after it was opened, perhaps by a compaction: refresh() or open again"
        )
        raise RemovedSegmentError(str(self.damaged(what)), what)

    def _open_at(self, name: str) -> Blob:
        try:
            return self._disk.open(name)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> OSError | DamagedStoreError:
        """Return the error: something other than a file is damage, a failing disk is not."""
        if error.errno == errno.ELOOP:
            return self.damaged("missing: it is a link, and links are not followed")
        if error.errno in NOT_A_FILE:
            return self.damaged(f"{error.strerror}")
        return read_error(error, self.path)

    def unchecked(self, name: str) -> np.ndarray:
        """Return a whole tensor as a read-only view of the map, without checking it."""
        placed, mapped = self.tensors[name], self._mapped().memory.data
        if placed.stop == placed.start:
            return _read_only(np.empty(placed.shape, placed.dtype))
        size = placed.stop - placed.start
        flat = np.frombuffer(mapped, dtype=np.uint8, offset=placed.start, count=size)
        return flat.view(placed.dtype).reshape(placed.shape)

    def check(self, name: str, start: int = 0, stop: int | None = None) -> None:
        """Check the rows from ``start`` to ``stop`` of a tensor.

        Raises:
            DamagedStoreError: the bytes do not match their checksums.
        """
        checked = self._checked(name)
        stop = self.tensors[name].shape[0] if stop is None else stop
        if checked.complete:
            return
        if not checked.range_ok(start, stop):
            raise self._changed(name)
        if checked.complete:
            _checked_before.add(self._key, name)

    def take_into(self, name: str, rows: np.ndarray, out: np.ndarray, where: np.ndarray) -> None:
        """Copy single rows to ``out[where]``, checked.

        Raises:
            IndexError: the number of a row is negative, or too large.
            DamagedStoreError: the bytes do not match their checksums.
        """
        placed = self.tensors[name]
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < placed.shape[0]:
            raise IndexError(f"{self.path} has {placed.shape[0]} rows of {name!r}")
        if placed.cut.row_bytes < _LARGE_ROW or placed.dtype != out.dtype:
            self._take_small(name, rows, out, where)
            return
        whole, checked = self.unchecked(name), self._checked(name)
        for i, place in enumerate(where.tolist()):
            row, copy = rows[i : i + 1], out[place : place + 1]
            copy[...] = whole[int(row[0])]
            if not checked.copied_ok(row, copy):
                raise self._changed(name)
            self._check_strings(name, copy)

    def _take_small(self, name: str, rows: np.ndarray, out: np.ndarray, where: np.ndarray) -> None:
        """Copy rows some at a time, so that the copy that is checked stays in the CPU cache."""
        whole, checked = self.unchecked(name), self._checked(name)
        step = max(1, _COPIED_AT_ONCE // max(1, self.tensors[name].cut.row_bytes))
        buffer = np.empty((min(step, len(rows)), *whole.shape[1:]), whole.dtype)
        for start in range(0, len(rows), step):
            own = rows[start : start + step]
            copy = buffer[: len(own)]
            if whole.flags.aligned:
                np.take(whole, own, axis=0, out=copy, mode="clip")  # "raise" would copy once more
            else:  # in the file of a stranger: `take` would copy all of it
                copy[...] = whole[own]
            if not checked.copied_ok(own, copy):
                raise self._changed(name)
            self._check_strings(name, copy)
            out[where[start : start + step]] = copy

    def _changed(self, name: str) -> DamagedStoreError:
        return self.damaged(f"bytes of {name!r} were changed after they were written")

    def _check_strings(self, name: str, values: np.ndarray) -> None:
        if values.dtype.kind in "UV" and not is_returnable(values):
            raise self.damaged(f"{name!r} has strings that are not text")

    def faults(self) -> dict[str, str]:
        """Check every tensor; return what is wrong, by tensor.

        Raises:
            RemovedSegmentError: the file was removed, which is not damage if it was compacted.
        """
        found = {}
        for name, placed in self.tensors.items():
            try:
                self.values(name)
            except RemovedSegmentError:
                raise
            except DamagedStoreError as error:
                found[name] = error.what
            self.release((name,), 0, placed.shape[0])
        return found

    def values(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return checked rows of a tensor, as a read-only view of the map."""
        self.check(name, start, stop)
        values = self.unchecked(name)[start:stop]
        self._check_strings(name, values)
        return values

    def release(self, names: Iterable[str], start: int, stop: int) -> None:
        """Release the memory of rows of the map; they are read from disk again if needed."""
        for release in self.releasing(names, start, stop):
            release()

    def releasing(self, names: Iterable[str], start: int, stop: int) -> list[Callable[[], object]]:
        """Return quick calls that do what :meth:`release` does."""
        if (mapped := self._map) is None:
            return []
        return [mapped.memory.releasing(*own) for own in self._ranges(names, start, stop)]

    def fetch(self, names: Iterable[str], start: int, stop: int) -> None:
        """Read rows into memory and check them; those that were checked before are only read."""
        known = []
        for name in names:
            if self.is_checked(name):
                known.append(name)
            else:
                self.check(name, start, stop)
        for first, last in self._ranges(known, start, stop):
            self._mapped().memory.prefetch(first, last)

    def is_checked(self, name: str) -> bool:
        """Return whether all of a tensor was checked before."""
        return self._checked(name).complete

    def is_in_memory(self, names: Iterable[str], start: int, stop: int) -> bool:
        """Return whether rows can be used without reading from disk, as far as samples tell."""
        memory = self._mapped().memory
        return all(memory.is_in_memory(*own) for own in self._ranges(names, start, stop))

    def _ranges(self, names: Iterable[str], start: int, stop: int) -> list[tuple[int, int]]:
        """Return the byte ranges of some rows; neighbouring tensors become one range."""
        cuts = [(self.tensors[name].start, self.tensors[name].cut.row_bytes) for name in names]
        ranges = sorted(
            (base + start * row, base + stop * row) for base, row in cuts if row and stop > start
        )
        joined: list[tuple[int, int]] = []
        for first, last in ranges:
            if joined and first <= joined[-1][1] + _PAGE:
                joined[-1] = (joined[-1][0], last)
            else:
                joined.append((first, last))
        return joined


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
