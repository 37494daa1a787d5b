"""Whether somebody writes to a store, from ``writers/*.json`` alone."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

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
    found = []
    for file in (path / "writers").glob("*.json"):
        try:
            said = json.loads(file.read_bytes())
            ended = "failed" if said.get("failed") is True else "closed"
            found.append((file.stat().st_mtime, ended if said["closed"] is True else "open"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # only a help, as the format says
    return found


def _is_empty(path: Path) -> bool:
    return not any((path / "segments").glob("*.safetensors"))


def _time_of(file: Path) -> float | None:
    try:
        return file.stat().st_mtime
    except OSError:
        return None


def style_of(state: str) -> str:
    """How a state is coloured."""
    return {"writing": "yellow", "closed": "green", "empty": "dim"}.get(state, "bold red")
