"""``compact``: many small segments become few large ones, while others read and write.

The merged segment says which ones it replaces; from the moment it has its name they no longer
count, and then they are removed. A reader that has one of them mapped keeps it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sawlog.errors import DuplicateIdError, StoreWriteError
from sawlog.store import _segment
from sawlog.store._catalog import Catalog, Ranges, stored_ids
from sawlog.store._files import explained, new_name, publish
from sawlog.store._ids import Index
from sawlog.store._layout import Folder, Identity, identity_of
from sawlog.store._merge import Part, merge_series, merge_tables
from sawlog.store._segment import Segment

Progress = Callable[[int, int], None]
_HOUR = 3600.0


@dataclasses.dataclass(frozen=True)
class Compaction:
    """What :func:`compact` did: segments and bytes before and after, leftovers swept away."""

    segments_before: int
    segments_after: int
    bytes_before: int
    bytes_after: int
    swept: int


def compact(
    path: str | os.PathLike[str],
    *,
    segment_bytes: int = 256 << 20,
    grace: float = 3600.0,
    progress: Progress | None = None,
) -> Compaction:
    """Merge neighbouring segments up to ``segment_bytes``, and drop rows that were replaced.

    Readers and writers go on meanwhile: merged segments are kept aside for ``grace`` seconds, for
    readers that were open, and are removed by the first compaction after that; with 0, at once.
    ``progress(done, in all)`` is told how many bytes were merged. A segment more than half as
    large is left alone. Memory: about twice ``segment_bytes``.

    Raises:
        DamagedStoreError: files are damaged; nothing was changed.
        StoreWriteError: another compaction of this store is running, or the disk failed.
    """
    folder = Folder(Path(path))
    identity = identity_of(folder)
    folder.make()
    with alone(folder):
        catalog = Catalog(folder, identity)
        before = list(catalog.segments)
        dead = _dead_rows(catalog, identity.config.duplicates)
        runs = list(_runs(before, dead, segment_bytes))
        total, done = sum(s.nbytes for run in runs for s in run), 0
        out = Output(folder, identity)
        for run in runs:
            out.merge(run, dead)
            _retire(run, folder.replaced)
            done += sum(segment.nbytes for segment in run)
            if progress is not None:
                progress(done, total)
        swept = _sweep(folder.tmp)
        _purge(folder.replaced, grace)
        catalog.refresh()
        after = catalog.segments
    sizes = [sum(segment.nbytes for segment in group) for group in (before, after)]
    return Compaction(len(before), len(after), sizes[0], sizes[1], swept)


@contextlib.contextmanager
def alone(folder: Folder) -> Iterator[None]:
    """Two compactions at once would merge the same rows twice, so the second one gives up."""
    path = folder.tmp / "compact.lock"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    except OSError as error:
        raise explained(error, "compacting", folder.path) from error
    try:
        if _segment.claim(descriptor) is False:
            raise StoreWriteError(
                f"{folder.path} is being compacted by another process. Hint: wait for it."
            )
        yield
    finally:
        os.close(descriptor)


def _dead_rows(catalog: Catalog, policy: str) -> dict[tuple[str, str], np.ndarray]:
    """By segment and table: which rows count, where some do not."""
    found = {}
    for table in catalog.schema.tables:
        chunks = catalog.chunks(table.names[0])
        ids = [stored_ids(segment, chunk) for segment, chunk in chunks]
        try:
            index = Index(ids, policy, repr(table.names[0]))
        except DuplicateIdError:
            continue  # both rows stay, and readers go on reporting them
        if index.superseded is None:
            continue
        for (segment, _), low, high in zip(chunks, index.starts, index.starts[1:], strict=False):
            dead = index.superseded[low:high]
            if dead.any():
                found[segment.name, table.names[0]] = ~dead
    return found


def _runs(
    segments: list[Segment], dead: dict[tuple[str, str], np.ndarray], most: int
) -> Iterator[list[Segment]]:
    """Neighbours that are worth merging."""
    wasteful = {name for name, _ in dead}
    run: list[Segment] = []
    for segment in [*segments, None]:
        small = segment is not None and (segment.nbytes <= most // 2 or segment.name in wasteful)
        fits = segment is not None and sum(s.nbytes for s in run) + segment.nbytes <= most
        if run and not (small and fits):
            if len(run) > 1 or run[0].name in wasteful:
                yield run
            run = []
        if segment is not None and small:
            run.append(segment)


class Output:
    """The writer of merged segments."""

    def __init__(self, folder: Folder, identity: Identity) -> None:
        self._folder, self._store = folder, identity.id
        self._writer, self._sequence = new_name(), 0

    def after(self, clock: int) -> tuple[int, str, int]:
        """An order behind everything that is there."""
        return (clock + 1, self._writer, self._sequence + 1)

    def merge(self, run: list[Segment], dead: dict[tuple[str, str], np.ndarray]) -> None:
        """Publish one segment in place of these."""
        chunks, tensors = [], {}
        for parts in _by_log(run, dead).values():
            if "table" in parts[0][1]:
                chunk, own = merge_tables(parts)
            else:
                chunk, own = merge_series([(segment, chunk) for segment, chunk, _ in parts])
            chunks.append(chunk)
            tensors.update(own)
        self.publish(chunks, tensors, run[0].order, replaced_by(run))

    def publish(
        self,
        chunks: list[dict[str, Any]],
        tensors: dict[str, np.ndarray],
        order: tuple[int, str, int],
        replaces: dict[str, list[list[int]]],
    ) -> None:
        """Publish a segment that replaces others."""
        self._sequence += 1
        description = {
            "version": _segment.VERSION,
            "store": self._store,
            "writer": self._writer,
            "sequence": self._sequence,
            "order": list(order),
            "chunks": chunks,
            "replaces": replaces,
        }
        path = self._folder.segments / _segment.file_name(self._writer, self._sequence)
        try:
            prepared = _segment.prepare(description, tensors)
            _segment.Unpublished(prepared, path, self._folder.tmp).commit()
            said = json.dumps({"published": self._sequence, "closed": True}).encode()
            publish(said, self._folder.writers / f"{self._writer}.json", self._folder.tmp)
        except OSError as error:
            raise explained(error, "compacting", self._folder.path) from error


def _by_log(run: list[Segment], dead: dict[tuple[str, str], np.ndarray]) -> dict[str, list[Part]]:
    groups: dict[str, list[Part]] = {}
    for segment in run:
        for chunk in segment.chunks:
            name = chunk["table"][0] if "table" in chunk else chunk["series"]
            groups.setdefault(name, []).append((segment, chunk, dead.get((segment.name, name))))
    return groups


def replaced_by(run: list[Segment]) -> dict[str, list[list[int]]]:
    """All that a merged segment replaces, also what its parts replaced."""
    pairs = {(segment.writer, segment.sequence) for segment in run}
    for segment in run:
        for writer, ranges in segment.replaces.items():
            pairs.update((writer, n) for a, b in ranges for n in range(a, b + 1))
    return Ranges.of(pairs)


def _retire(run: list[Segment], replaced: Path) -> None:
    """Move segments that no longer count to a folder that is named after the time."""
    aside = replaced / f"{int(time.time())}"
    aside.mkdir(parents=True, exist_ok=True)
    for segment in run:
        with contextlib.suppress(FileNotFoundError):
            os.rename(segment.path, aside / segment.name)


def _purge(replaced: Path, grace: float) -> None:
    """Remove what was retired long enough ago."""
    for aside in replaced.glob("[0-9]*"):
        if time.time() - int(aside.name) >= grace:
            shutil.rmtree(aside)


def _sweep(tmp: Path) -> int:
    """Remove what dead writers left unfinished; returns how many files."""
    swept = 0
    for path in tmp.glob("*.part"):
        with contextlib.suppress(FileNotFoundError):
            age = time.time() - path.stat().st_mtime
            descriptor = os.open(path, os.O_RDONLY)
            try:
                alive = _segment.claim(descriptor) is not True
                if (age > 60 and not alive) or age > 24 * _HOUR:
                    path.unlink()
                    swept += 1
            finally:
                os.close(descriptor)
    return swept
