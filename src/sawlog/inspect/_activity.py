"""``WriterActivity``: whether a store is being written, by ``writers/*.json`` alone."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

from sawlog.errors import StoreError
from sawlog.store._format._header import parse_name
from sawlog.store._format._layout import Folder
from sawlog.store._format._writer_notes import notes_of

_SILENCE = 600.0  # seconds after which a writer that published nothing may be dead


@dataclasses.dataclass(frozen=True)
class WriterActivity:
    """What the writers of a store did last.

    Args:
        state: ``"writing"`` (a writer is open and published within the last ten minutes),
            ``"closed"``, ``"failed"`` (the last writer was closed after an error),
            ``"unfinished"`` (the last writer was not closed, and is silent) or ``"empty"``.
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
    if any(each == "open" and time.time() - when < _SILENCE for when, each, _ in seen):
        return WriterActivity("writing", last)
    return WriterActivity("unfinished" if state == "open" else state, last, error or None)


def _writers(path: Path) -> list[tuple[float, str, str]]:
    """Return for each writer when it published last, whether it is open, closed or failed, why."""
    notes = notes_of(Folder(path).disk).values()
    ended = {True: "failed", False: "closed"}
    return [(n.modified, ended[n.failed] if n.closed else "open", n.error) for n in notes]


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
