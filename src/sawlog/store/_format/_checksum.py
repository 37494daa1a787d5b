"""Checksums: every tensor is hashed in blocks of about 4 KiB and in spans of about 1 MiB.

With blocks, a single row is checked without reading its neighbours. With spans, a whole segment is
checked at memory speed, because one call hashes 256 blocks.
"""

from __future__ import annotations

import struct
import time
from typing import NamedTuple

import numpy as np
import xxhash

BLOCK_BYTES = 4 << 10
SPAN_BYTES = 1 << 20

hash_of = xxhash.xxh3_64_intdigest


def bytes_of(array: np.ndarray) -> memoryview:
    """Return the bytes of a contiguous array of any dtype."""
    if array.nbytes == 0:
        return memoryview(b"")
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


class Cut(NamedTuple):
    """How the rows of a tensor are divided: rows per block, and rows per span."""

    rows: int
    row_bytes: int
    block: int
    span: int

    @classmethod
    def of(cls, rows: int, row_bytes: int) -> Cut:
        """Return the cut that writers use."""
        block = max(1, BLOCK_BYTES // max(1, row_bytes))
        span = block * max(1, SPAN_BYTES // max(1, block * row_bytes))
        return cls(rows, row_bytes, block, span)

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return -(-self.rows // self.block) if self.row_bytes else 0

    @property
    def spans(self) -> int:
        """The number of spans."""
        return -(-self.rows // self.span) if self.row_bytes else 0

    @property
    def hash_count(self) -> int:
        """The number of hashes, of spans and blocks."""
        if not self.row_bytes:
            return 0
        return -(-self.rows // self.block) + -(-self.rows // self.span)

    def hashes(self, data: memoryview) -> bytes:
        """Span hashes, then block hashes; span by span, so that data stays in cache."""
        span, block = self.span * self.row_bytes, self.block * self.row_bytes
        if not span or not len(data):
            return b""
        if len(data) <= block:  # one span and one block, of the same bytes
            return struct.pack("<Q", hash_of(data)) * 2
        spans, blocks = [], []
        for start in range(0, len(data), span):
            part = data[start : start + span]
            spans.append(hash_of(part))
            blocks += [hash_of(part[i : i + block]) for i in range(0, len(part), block)]
        return np.array(spans + blocks, dtype="<u8").tobytes()


_SECOND = 1_000_000_000  # nanoseconds
_FINE, _COARSE = _SECOND // 10, 2 * _SECOND


class CheckedTensors:
    """The tensors that this process has checked completely, by file.

    The key of a file includes its size and times of change, so a changed file is checked again. A
    file that changed a moment ago is not added: the clock of a disk is coarse, and a second change
    could have the same key. The moment is two seconds for a time of whole seconds, as some disks
    have, and otherwise a tenth of one, since clocks tick at least a hundred times in a second.
    """

    def __init__(self, files: int = 1 << 16) -> None:
        self._files = files
        self._intact: dict[tuple[int, ...], set[str]] = {}

    def knows(self, key: tuple[int, ...], tensor: str) -> bool:
        """Return whether a tensor was checked."""
        return tensor in self._intact.get(key, ())

    def add(self, key: tuple[int, ...], tensor: str) -> None:
        """Add a tensor that was checked."""
        if time.time_ns() - key[-1] < (_FINE if key[-1] % _SECOND else _COARSE):
            return
        self._intact.setdefault(key, set()).add(tensor)
        while len(self._intact) > self._files:
            self._intact.pop(next(iter(self._intact)), None)


class CheckedBytes:
    """The bytes of one tensor; each block is checked at most once."""

    def __init__(self, data: memoryview, cut: Cut, hashes: np.ndarray, known: bool) -> None:
        self._data, self._cut = data, cut
        self._spans = hashes[: cut.spans]
        self._blocks = hashes[cut.spans :]
        self.complete = known or cut.blocks == 0
        self._seen = np.zeros(0 if self.complete else cut.blocks, dtype=bool)

    def range_ok(self, start: int, stop: int) -> bool:
        """Return whether the rows from ``start`` to ``stop`` match their checksums."""
        cut = self._cut
        if self.complete or stop <= start:
            return True
        per_span = cut.span // cut.block
        first, last = start // cut.block, -(-stop // cut.block)
        for span in range(start // cut.span, -(-stop // cut.span)):
            low, high = span * per_span, min((span + 1) * per_span, cut.blocks)
            if first <= low and high <= last:
                if not self._seen[low:high].all() and not self._span_ok(span, low, high):
                    return False
            elif not self.blocks_ok(np.arange(max(low, first), min(high, last))):
                return False
        self.complete = bool(self._seen.all())
        return True

    def _span_ok(self, span: int, low: int, high: int) -> bool:
        step = self._cut.span * self._cut.row_bytes
        if hash_of(self._data[span * step : (span + 1) * step]) != self._spans[span]:
            return False
        self._seen[low:high] = True
        return True

    def rows_ok(self, rows: np.ndarray) -> bool:
        """Return whether single rows match their checksums."""
        if self.complete or not len(rows):
            return True
        blocks = np.unique(rows // self._cut.block)
        return self.blocks_ok(blocks)

    def copied_ok(self, rows: np.ndarray, copy: np.ndarray) -> bool:
        """Check rows like :meth:`rows_ok`, by hashing a fresh copy, which is in the CPU cache."""
        if self._cut.block != 1 or self.complete:
            return self.rows_ok(rows)
        if self._seen[rows].all():
            return True
        step, data = self._cut.row_bytes, bytes_of(copy)
        found = [hash_of(data[start : start + step]) for start in range(0, len(data), step)]
        if not np.array_equal(np.array(found, dtype="<u8"), self._blocks[rows]):
            return False
        self._seen[rows] = True
        return True

    def blocks_ok(self, blocks: np.ndarray) -> bool:
        """Return whether blocks match their checksums."""
        blocks = blocks[~self._seen[blocks]]
        step, data = self._cut.block * self._cut.row_bytes, self._data
        starts = (blocks * step).tolist()
        found = [hash_of(data[start : start + step]) for start in starts]
        if not np.array_equal(np.array(found, dtype="<u8"), self._blocks[blocks]):
            return False
        self._seen[blocks] = True
        return True
