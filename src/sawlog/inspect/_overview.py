"""``StoreOverview``: what the headers of a store tell, and all stores under a folder."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sawlog.store
from sawlog._format import iso
from sawlog.errors import (
    DamagedStoreError,
    ForeignStoreError,
    NewerStoreError,
    SawlogError,
    StoreNotFoundError,
)
from sawlog.inspect._activity import writer_activity
from sawlog.store._format._chunks import TableChunk
from sawlog.store._format._header import parse_name
from sawlog.store._format._layout import MOST_JSON, Folder


@dataclasses.dataclass(frozen=True)
class StoreOverview:
    """A store, by its headers alone; counts are None if the store cannot be opened.

    Args:
        path: its folder.
        state: as in :class:`WriterActivity`, or ``"damaged"``, ``"newer"`` (than this sawlog), or
            ``"unreadable"``.
        written: when a writer published last, in seconds since the epoch; None if unknown.
        segments: how many segments it has.
        nbytes: their size in bytes.
        names: how many names it has.
        rows: how many rows were written to its tables.
        entries: how many entries were written to its series.
        problem: why it cannot be opened; None if it can.
        error: what stopped the program that wrote it last, if it failed and said so.
    """

    path: Path
    state: str
    written: float | None
    segments: int
    nbytes: int
    names: int | None = None
    rows: int | None = None
    entries: int | None = None
    problem: str | None = None
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields in types of JSON."""
        fields = dataclasses.asdict(self)
        fields.update(path=str(self.path), written=iso(self.written), bytes=fields.pop("nbytes"))
        return fields


def find_stores(
    folder: str | os.PathLike[str], on_error: Callable[[OSError], None] | None = None
) -> Iterator[Path]:
    """Find the stores under a folder, at any depth; stores are not searched for others.

    Args:
        folder: where to search.
        on_error: called with the error of each folder that cannot be read; None ignores these.
    """
    for here, below, files in os.walk(folder, onerror=on_error):
        if _is_store(Path(here), below, files):
            below.clear()
            yield Path(here)


def _is_store(folder: Path, below: list[str], files: list[str]) -> bool:
    if {"schema", "segments", "writers"} <= set(below):  # even if its store.json is missing
        return True
    if "store.json" not in files:
        return False
    try:
        return b'"sawlog-store"' in Folder(folder).disk.read("store.json", MOST_JSON)
    except OSError:
        return True


def store_overview(path: str | os.PathLike[str]) -> StoreOverview | None:
    """Read the headers of a store; None if there is no store at ``path`` (any more)."""
    folder = Path(path)
    try:
        with sawlog.store.open(folder) as reader:
            rows, entries = _counts(reader)
            activity = writer_activity(folder)
            return StoreOverview(
                folder,
                activity.state,
                activity.written,
                len(reader.segments),
                reader.nbytes,
                len(reader.names),
                rows,
                entries,
                error=activity.error,
            )
    except (ForeignStoreError, StoreNotFoundError):
        return None
    except (SawlogError, OSError) as error:
        return _broken(folder, error)


def _counts(reader: sawlog.store.Reader) -> tuple[int, int]:
    """Count the rows of tables and the entries of series, as they were written."""
    rows = entries = 0
    for segment in reader.segments:
        for chunk in segment.chunks:
            if isinstance(chunk, TableChunk):
                rows += chunk.rows
            else:
                entries += chunk.rows
    return rows, entries


def _broken(path: Path, error: Exception) -> StoreOverview:
    state = {DamagedStoreError: "damaged", NewerStoreError: "newer"}.get(type(error), "unreadable")
    sizes = _segment_sizes(Folder(path))
    problem = str(error).partition(" Hint:")[0]
    written = writer_activity(path).written
    return StoreOverview(path, state, written, len(sizes), sum(sizes), problem=problem)


def _segment_sizes(folder: Folder) -> list[int]:
    try:
        names = [name for name in folder.names("segments") if parse_name(name)]
    except SawlogError:
        return []
    sizes = []
    for name in names:
        with contextlib.suppress(OSError):
            sizes.append(folder.disk.status(f"segments/{name}").size)
    return sizes
