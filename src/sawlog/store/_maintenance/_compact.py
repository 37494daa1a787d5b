"""``compact``: merge small segments into large ones, while other processes read and write."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from sawlog.errors import DuplicateIdError
from sawlog.store._format._chunks import TableChunk
from sawlog.store._format._layout import Folder, identity_of
from sawlog.store._format._schema_files import merge_schema
from sawlog.store._format._segment import Segment
from sawlog.store._maintenance._merge_segments import MOST_EMPTY_ITEMS
from sawlog.store._maintenance._replacements import (
    ReplacementWriter,
    exclusive_lease,
    remove_retired,
    retire,
)
from sawlog.store._reading._catalog import Catalog
from sawlog.store._reading._id_index import IdIndex
from sawlog.store._reading._stored_ids import stored_ids

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Compaction:
    """The result of :func:`compact`: segments and bytes before and after, removed leftovers."""

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

    Other processes may read and write. Segments larger than half of ``segment_bytes`` stay as they
    are. Memory: about twice ``segment_bytes``.

    Args:
        path: the folder of the store.
        segment_bytes: the size of merged segments.
        grace: seconds that merged segments are kept for open readers; the first compaction after
            that removes them. 0 removes them at once.
        progress: called with the number of merged bytes, and the total.

    Raises:
        DamagedStoreError: files are damaged; nothing was changed.
        StoreWriteError: another compaction of this store is running, or the disk failed.
    """
    folder = Folder(Path(path))
    identity = identity_of(folder)
    folder.make()
    with exclusive_lease(folder):
        catalog = Catalog(folder, identity)
        retire(folder, catalog.replaced)  # left by a compaction that was killed
        before = list(catalog.segments)
        counting = _counting(catalog, identity.config.duplicates)
        runs = list(_runs(before, counting, segment_bytes))
        total, done = sum(s.nbytes for run in runs for s in run), 0
        out = ReplacementWriter(folder, identity)
        for run in runs:
            out.merge(run, counting)
            retire(folder, run)
            done += sum(segment.nbytes for segment in run)
            if progress is not None:
                progress(done, total)
        swept = folder.disk.sweep()
        remove_retired(folder, grace)
        merge_schema(folder)
        catalog.refresh()
        after = catalog.segments
    sizes = [sum(segment.nbytes for segment in group) for group in (before, after)]
    return Compaction(len(before), len(after), sizes[0], sizes[1], swept)


def _counting(catalog: Catalog, policy: str) -> dict[tuple[str, str], np.ndarray]:
    """Return which rows count, by segment and table, for those where some do not."""
    found: dict[tuple[str, str], np.ndarray] = {}
    if policy == "error":  # keep all rows of an id; readers report them
        return found
    for table in catalog.schema.tables:
        chunks = [(s, c) for s, c in catalog.chunks(table.names[0]) if isinstance(c, TableChunk)]
        ids = [stored_ids(segment, chunk) for segment, chunk in chunks]
        try:
            index = IdIndex(ids, policy, repr(table.names[0]))
        except DuplicateIdError:
            continue
        if index.superseded is None:
            continue
        for (segment, _), low, high in zip(chunks, index.starts, index.starts[1:], strict=False):
            dead = index.superseded[low:high]
            if dead.any():
                found[segment.name, table.names[0]] = ~dead
    return found


def _runs(
    segments: list[Segment], counting: Mapping[tuple[str, str], np.ndarray], most: int
) -> Iterator[list[Segment]]:
    """Yield neighbours to merge."""
    wasteful = {name for name, _ in counting}
    run: list[Segment] = []
    size = empty = 0
    for segment in [*segments, None]:
        small = segment is not None and (segment.nbytes <= most // 2 or segment.name in wasteful)
        fits = segment is not None and size + segment.nbytes <= most
        fits = fits and segment is not None and empty + segment.empty_items <= MOST_EMPTY_ITEMS
        if run and not (small and fits):
            if len(run) > 1 or run[0].name in wasteful:
                yield run
            run, size, empty = [], 0, 0
        if segment is not None and small:
            run.append(segment)
            size += segment.nbytes
            empty += segment.empty_items
