"""``verify``: read every byte of a store, compare it with its checksum, name what is wrong."""

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
class Report:
    """What :func:`verify` found.

    ``readable`` counts the rows and entries of each name that are intact, ``lost`` those known to
    be damaged; what a missing or cut file held nobody knows.
    """

    path: Path
    problems: list[Problem]
    segments: int
    nbytes: int
    readable: dict[str, int]
    lost: dict[str, int]

    @property
    def ok(self) -> bool:
        """Whether everything is as it was published."""
        return not self.problems


def verify(path: str | os.PathLike[str], progress: Progress | None = None) -> Report:
    """Check every file of a store; ``progress(done, in all)`` is told how many segments it read.

    Raises:
        StoreNotFoundError, ForeignStoreError, NewerStoreError: there is no store to check.
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
    return Report(folder.path, problems, len(catalog.segments), nbytes, readable, lost)


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
    """What ``store.json`` says, or where it is damaged, what the segments tell."""
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
