"""Replace segments by merged ones: publish, move the old ones to ``replaced/``, then remove them.

A merged segment lists the segments that it replaces. They stop to count in the moment that it is
published. If the process is killed at any point, nothing is lost or duplicated, and the next holder
of the lease cleans up.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from sawlog._atomic import new_name
from sawlog.errors import StoreWriteError
from sawlog.store._disk import Lease
from sawlog.store._format import _header, _segment_writer
from sawlog.store._format._header import REPLACED, SEGMENTS, parse_name
from sawlog.store._format._json_files import write_error
from sawlog.store._format._layout import Folder, Identity
from sawlog.store._format._segment import Segment
from sawlog.store._format._sequence_ranges import Ranges
from sawlog.store._format._writer_notes import WriterNote, file_of
from sawlog.store._maintenance._merge_segments import RowsToKeep, merged

_LEASE = "tmp/compact.lock"
_PATIENCE = 2.0  # seconds; merges by writers are shorter
_MINUTE, _DAY = 60, 86400
_TIME = re.compile(r"[0-9]{1,12}")


def try_lease(folder: Folder) -> Lease | None:
    """Take the lease for replacing segments; None if another process holds it."""
    try:
        return folder.disk.lease(_LEASE)
    except OSError as error:
        raise write_error(error, "compacting", folder.path) from error


@contextlib.contextmanager
def exclusive_lease(folder: Folder) -> Iterator[None]:
    """Hold the lease in the block; wait for writers, which hold it only for a moment.

    Raises:
        StoreWriteError: another process is compacting.
    """
    deadline = time.monotonic() + _PATIENCE
    while (lease := try_lease(folder)) is None:
        if time.monotonic() > deadline:
            raise StoreWriteError(
                f"{folder.path} is being compacted by another process. Hint: wait for it."
            )
        time.sleep(0.02)
    try:
        yield
    finally:
        lease.release()


class ReplacementWriter:
    """Publishes segments that replace others."""

    def __init__(self, folder: Folder, identity: Identity) -> None:
        self._folder, self._store = folder, identity.id
        self._writer, self._sequence = new_name(), 0

    def after(self, clock: int) -> tuple[int, str, int]:
        """Return an order behind all existing segments."""
        return (clock + 1, self._writer, self._sequence + 1)

    def merge(self, run: Sequence[Segment], counting: RowsToKeep) -> None:
        """Merge a run of neighbouring segments into one, and publish it."""
        chunks, tensors = merged(run, counting)
        self.publish(chunks, tensors, run[0].order, replaced_by(run))

    def publish(
        self,
        chunks: list[dict[str, Any]],
        tensors: dict[str, np.ndarray],
        order: tuple[int, str, int],
        replaces: Ranges,
    ) -> None:
        """Publish a segment that replaces others."""
        sequence = self._sequence + 1
        description = {
            "version": _header.PLAIN,
            "store": self._store,
            "writer": self._writer,
            "sequence": sequence,
            "order": list(order),
            "chunks": chunks,
            "replaces": replaces.to_json(),
        }
        name, disk = _header.file_name(self._writer, sequence), self._folder.disk
        try:
            prepared = _segment_writer.prepare(description, tensors)
            _segment_writer.UnpublishedSegment(prepared, disk, name).commit()
            self._sequence = sequence
            note = WriterNote(sequence, True, False, 0.0)
            disk.put(file_of(self._writer), note.to_json(), durable=False)
        except OSError as error:
            raise write_error(error, "compacting", self._folder.path) from error


def replaced_by(run: Iterable[Segment]) -> Ranges:
    """Return all that a merged segment replaces, including what its parts replaced."""
    own = Ranges.of((segment.writer, segment.sequence) for segment in run)
    return Ranges.union([own, *(segment.replaces for segment in run)])


def retire(folder: Folder, segments: Iterable[Segment]) -> None:
    """Move segments that no longer count to ``replaced/``, for open readers."""
    until = (int(time.time()) // _MINUTE + 1) * _MINUTE
    aside = f"{REPLACED}/{until}"
    try:
        folder.disk.make((REPLACED, aside))
        for segment in segments:
            with contextlib.suppress(FileNotFoundError):
                folder.disk.move(f"{SEGMENTS}/{segment.name}", f"{aside}/{segment.name}")
    except OSError as error:
        raise write_error(error, "compacting", folder.path) from error


def remove_retired(folder: Folder, grace: float) -> None:
    """Remove segments, and no other files, that were retired ``grace`` seconds ago."""
    with contextlib.suppress(OSError):
        now = time.time()
        for name in filter(_TIME.fullmatch, folder.disk.list(REPLACED)):
            if grace <= 0 or now - int(name) >= grace or int(name) > now + _DAY:
                _purge(folder, f"{REPLACED}/{name}")


def _purge(folder: Folder, aside: str) -> None:
    with contextlib.suppress(OSError):  # a link is not followed
        for name in folder.disk.list(aside):
            if parse_name(name) is not None:
                folder.disk.delete(f"{aside}/{name}")
        folder.disk.delete_folder(aside)
