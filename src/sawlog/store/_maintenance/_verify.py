"""``verify``: read every byte of a store, and check it against the checksums."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from sawlog.errors import DamagedStoreError, StoreError
from sawlog.store._format._chunks import Chunk
from sawlog.store._format._header import parse_name
from sawlog.store._format._layout import Config, Folder, Identity, identity_of
from sawlog.store._format._segment import Segment
from sawlog.store._reading._catalog import Catalog, Problem

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class VerifyReport:
    """The result of :func:`verify`.

    ``readable`` counts the intact rows and entries of each name, ``lost`` those known to be
    damaged. The contents of missing and cut files are unknown.
    """

    path: Path
    problems: list[Problem]
    segments: int
    nbytes: int
    readable: dict[str, int]
    lost: dict[str, int]

    @property
    def ok(self) -> bool:
        """Whether all files are intact."""
        return not self.problems


def verify(path: str | os.PathLike[str], progress: Progress | None = None) -> VerifyReport:
    """Check every file of a store.

    ``progress`` is called with the number of segments that were read, and the total.

    Raises:
        StoreNotFoundError, ForeignStoreError, NewerStoreError: ``path`` is not a store that this
            version can check.
    """
    folder = Folder(Path(path))
    problems = []
    try:
        identity = identity_of(folder)
    except DamagedStoreError as error:
        problems.append(Problem("store.json", f"missing, cut or changed: {error.what}"))
        if not _has_segments(folder):
            raise error
        identity = salvaged_identity(folder)
    catalog = Catalog(folder, identity, "skip", look=False)
    catalog.progress = progress
    catalog.refresh()
    problems += catalog.problems
    nbytes = sum(segment.nbytes for segment in catalog.segments)
    readable = {
        **dict.fromkeys(catalog.schema, 0),
        **_counts(c for s in catalog.segments for c in s.chunks),
    }
    lost = _counts(catalog.lost_chunks)
    return VerifyReport(folder.path, problems, len(catalog.segments), nbytes, readable, lost)


def _segment_names(folder: Folder) -> list[str]:
    try:
        return sorted(name for name in folder.names("segments") if parse_name(name))
    except StoreError:
        return []


def _has_segments(folder: Folder) -> bool:
    return bool(_segment_names(folder))


def _counts(chunks: Iterable[Chunk]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for chunk in chunks:
        for name in chunk.names:
            counts[name] = counts.get(name, 0) + chunk.rows
    return counts


def salvaged_identity(folder: Folder) -> Identity:
    """Read ``store.json``; if it is damaged, take the store id from the segments."""
    try:
        return identity_of(folder)
    except DamagedStoreError:
        return Identity(_id_in_segments(folder), "", Config(), {})


def _id_in_segments(folder: Folder) -> str:
    for name in _segment_names(folder):
        try:
            return Segment(folder.disk, name).store
        except (StoreError, OSError):
            continue
    return ""
