"""``sawlog ls``: the stores under a folder, by their headers alone."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.text import Text

import sawlog.store
from sawlog.cli._commands import Ls
from sawlog.cli._format import age, iso, number, plain, size
from sawlog.cli._outcome import DAMAGED, OK
from sawlog.cli._screen import Screen
from sawlog.cli._state import activity, style_of
from sawlog.cli._table import Cell, Column, table
from sawlog.errors import (
    DamagedStoreError,
    ForeignStoreError,
    NewerStoreError,
    SawlogError,
    StoreNotFoundError,
)
from sawlog.store._chunks import TableChunk
from sawlog.store._layout import MOST_JSON, Folder
from sawlog.store._segment import parse_name

_COLUMNS = (
    Column("store", folds=16, style="bold"),
    Column("names", right=True, rank=2),
    Column("rows", right=True),
    Column("entries", right=True),
    Column("segments", right=True, rank=3),
    Column("size", right=True),
    Column("written", right=True, rank=1),
    Column("state"),
)


@dataclasses.dataclass(frozen=True)
class Listed:
    """One store; None where a broken one does not tell."""

    path: Path
    state: str
    written: float | None
    segments: int
    nbytes: int
    names: int | None = None
    rows: int | None = None
    entries: int | None = None
    problem: str | None = None

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        said = dataclasses.asdict(self)
        said.update(path=str(self.path), written=iso(self.written), bytes=said.pop("nbytes"))
        return said

    def cells(self) -> list[Cell]:
        """For people."""
        counts = [number(n) if n is None else f"{n:,}" for n in (self.names, self.rows)]
        entries = "" if self.entries is None else f"{self.entries:,}"
        return [
            plain(str(self.path)),
            *counts,
            entries,
            f"{self.segments:,}",
            size(self.nbytes),
            age(self.written),
            Text(self.state, style=style_of(self.state)),
        ]


def run(arguments: Ls, screen: Screen) -> int:
    """Carry out ``sawlog ls``."""
    if not arguments.path.is_dir():
        raise _no_folder(arguments.path)
    paths = sorted(find(arguments.path, screen))
    found: list[Listed] = []
    with screen.progress("looking") as progress:
        for done, path in enumerate(paths, 1):
            if (listed := look(path)) is not None:
                found.append(listed)
            if progress is not None:
                progress(done, len(paths))
    if arguments.json:
        screen.print_json([listed.to_json() for listed in found])
    elif found:
        screen.print(table(_COLUMNS, [listed.cells() for listed in found], screen.width))
    else:
        screen.remark(f"no stores under {plain(str(arguments.path))}")
    return DAMAGED if any(listed.state == "damaged" for listed in found) else OK


def _no_folder(path: Path) -> Exception:
    what = "a file" if path.exists() else "not there"
    return StoreNotFoundError(f"{path} is {what}. Hint: give a folder, and ls searches it.")


def find(folder: Path, screen: Screen) -> Iterator[Path]:
    """The folders of all stores under ``folder``; a store is not searched for others."""

    def refused(error: OSError) -> None:
        screen.remark(f"note: {error.filename} was not searched: {error.strerror}")

    for here, below, files in os.walk(folder, onerror=refused):
        if _is_store(Path(here), below, files):
            below.clear()
            yield Path(here)


def _is_store(folder: Path, below: list[str], files: list[str]) -> bool:
    if {"schema", "segments", "writers"} <= set(below):  # perhaps without its store.json
        return True
    if "store.json" not in files:
        return False
    try:
        return b'"sawlog-store"' in Folder(folder).disk.read("store.json", MOST_JSON)
    except OSError:
        return True


def look(path: Path) -> Listed | None:
    """What the headers of a store tell; None if it is no store, or no longer there."""
    try:
        with sawlog.store.open(path) as reader:
            rows, entries = _counts(reader)
            seen = activity(path)
            segments, names = len(reader.segments), len(reader.names)
            return Listed(
                path, seen.state, seen.written, segments, reader.nbytes, names, rows, entries
            )
    except (ForeignStoreError, StoreNotFoundError):
        return None
    except (SawlogError, OSError) as error:
        return _broken(path, error)


def _counts(reader: sawlog.store.Reader) -> tuple[int, int]:
    """Rows of tables and entries of series, as they were written."""
    rows = entries = 0
    for segment in reader.segments:
        for chunk in segment.chunks:
            if isinstance(chunk, TableChunk):
                rows += chunk.rows
            else:
                entries += chunk.rows
    return rows, entries


def _broken(path: Path, error: Exception) -> Listed:
    state = {DamagedStoreError: "damaged", NewerStoreError: "newer"}.get(type(error), "unreadable")
    sizes = _sizes(Folder(path))
    said = str(error).partition(" Hint:")[0]
    return Listed(path, state, activity(path).written, len(sizes), sum(sizes), problem=said)


def _sizes(folder: Folder) -> list[int]:
    """The bytes of each segment that is there."""
    try:
        names = [name for name in folder.names("segments") if parse_name(name)]
    except SawlogError:
        return []
    sizes = []
    for name in names:
        with contextlib.suppress(OSError):
            sizes.append(folder.disk.status(f"segments/{name}").size)
    return sizes
