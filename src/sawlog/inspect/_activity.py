"""``WriterActivity``: whether a store is being written, by ``writers/*.json`` alone.

Nothing is written, and no writer is disturbed: a writer locks its own file before the file has its
name, and never waits for that lock.
"""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

from sawlog.errors import StoreError
from sawlog.store._format._header import parse_name
from sawlog.store._format._layout import Folder
from sawlog.store._format._writer_notes import notes_and_processes

_SILENCE = 600.0  # seconds after which a writer of another machine may be dead


@dataclasses.dataclass(frozen=True)
class WriterActivity:
    """What the writers of a store did last.

    Args:
        state: ``"writing"`` (a writer is open, and its process runs), ``"closed"``, ``"failed"``
            (the last writer was closed after an error), ``"unfinished"`` (the last writer was not
            closed, and its process ended) or ``"empty"``. Where it is not known whether a process
            runs, because it is on another machine, it counts as running until ten minutes after
            it published last.
        written: when a writer published last, in seconds since the epoch; None if unknown.
        error: what stopped the program, if it failed and said so.
    """

    state: str
    written: float | None
    error: str | None = None


def writer_activity(path: str | os.PathLike[str]) -> WriterActivity:
    """Return what the writers of the store at ``path`` did last."""
    folder = Path(path)
    seen = sorted(_writers(folder))
    if not seen:
        state = "empty" if _is_empty(folder) else "unfinished"
        return WriterActivity(state, _modified(folder / "store.json"))
    last, state, error = seen[-1]
    if any(each == "writing" for _, each, _ in seen):
        return WriterActivity("writing", last)
    return WriterActivity(state, last, error or None)


def _writers(path: Path) -> list[tuple[float, str, str]]:
    """Return for each writer when it published last, its state, and why it failed."""
    disk, ended = Folder(path).disk, {True: "failed", False: "closed"}
    found = []
    for note, running in notes_and_processes(disk).values():
        state = ended[note.failed]
        if not note.closed:
            if running is None:
                running = time.time() - note.modified < _SILENCE
            state = "writing" if running else "unfinished"
        found.append((note.modified, state, note.error))
    return found


def _is_empty(path: Path) -> bool:
    try:
        return not any(map(parse_name, Folder(path).names("segments")))
    except StoreError:
        return False


def _modified(file: Path) -> float | None:
    try:
        return file.stat().st_mtime
    except OSError:
        return None
