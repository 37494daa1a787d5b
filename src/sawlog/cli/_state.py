"""Whether somebody writes to a store, from ``writers/*.json`` alone."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from sawlog.errors import StoreError
from sawlog.store._layout import Folder
from sawlog.store._segment import parse_name
from sawlog.store._writer_notes import notes_of

_SILENCE = 600.0  # seconds without a publication after which a writer may be dead


@dataclasses.dataclass(frozen=True)
class Activity:
    """What the writers of a store last did: ``state``, and when."""

    state: str
    written: float | None


def activity(path: Path) -> Activity:
    """Look at the writers of the store at ``path``."""
    seen = sorted(_writers(path))
    if not seen:
        return Activity("empty" if _is_empty(path) else "unfinished", _time_of(path / "store.json"))
    last, state = seen[-1]
    if any(each == "open" and time.time() - when < _SILENCE for when, each in seen):
        return Activity("writing", last)
    return Activity("unfinished" if state == "open" else state, last)


def _writers(path: Path) -> list[tuple[float, str]]:
    """For each writer when it spoke last, and whether it is open, closed or failed."""
    notes = notes_of(Folder(path).disk).values()
    ended = {True: "failed", False: "closed"}
    return [(n.modified, ended[n.failed] if n.closed else "open") for n in notes]


def _is_empty(path: Path) -> bool:
    try:
        return not any(map(parse_name, Folder(path).names("segments")))
    except StoreError:
        return False


def _time_of(file: Path) -> float | None:
    try:
        return file.stat().st_mtime
    except OSError:
        return None


def style_of(state: str) -> str:
    """How a state is coloured."""
    return {"writing": "yellow", "closed": "green", "empty": "dim"}.get(state, "bold red")
