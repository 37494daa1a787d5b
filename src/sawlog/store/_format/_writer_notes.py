"""``writers/*.json``: the progress of each writer. A file that cannot be read is ignored."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import NamedTuple

from sawlog.errors import StorePermissionError
from sawlog.store._disk import Disk
from sawlog.store._format import _parse
from sawlog.store._format._json_files import raise_unless_damage

FOLDER = "writers"
_NAME = re.compile(r"([a-z0-9]{1,32})\.json")
_MOST = 1 << 16  # bytes
MOST_ERROR = 1_000  # characters of what is said about a failure


class WriterNote(NamedTuple):
    """The last report of a writer, and its time in seconds since 1970.

    ``error`` says what stopped a program that failed; it may be empty.
    """

    published: int
    closed: bool
    failed: bool
    modified: float
    error: str = ""

    def to_json(self) -> bytes:
        """Return the contents of the file (FORMAT.md, section 5)."""
        said = {"published": self.published, "closed": self.closed}
        why = {"error": self.error} if self.error else {}
        return json.dumps({**said, "failed": True, **why} if self.failed else said).encode()


def file_of(writer: str) -> str:
    """Return the name of a writer's file."""
    return f"{FOLDER}/{writer}.json"


def notes_of(disk: Disk) -> dict[str, WriterNote]:
    """Read the reports of all writers; skip files that cannot be read."""
    try:
        names = disk.list(FOLDER)
    except OSError as error:
        _ignore(error, FOLDER)
        return {}
    matches = [match for name in names if (match := _NAME.fullmatch(name))]
    found = {match[1]: _note(disk, match[0]) for match in matches}
    return {writer: note for writer, note in found.items() if note is not None}


def _note(disk: Disk, name: str) -> WriterNote | None:
    try:
        with disk.open(f"{FOLDER}/{name}") as blob:
            said = _parse.load(blob.read(0, _MOST))
            published = _parse.integer(_parse.field(said, "published"), "'published'")
            closed, failed = said.get("closed") is True, said.get("failed") is True
            error = said.get("error")
            text = error[:MOST_ERROR] if failed and isinstance(error, str) else ""
            return WriterNote(published, closed, failed, blob.status.modified, text)
    except _parse.Malformed:
        return None
    except OSError as error:
        _ignore(error, f"{FOLDER}/{name}")
        return None


def _ignore(error: OSError, name: str) -> None:
    """Ignore a file that is missing, odd or forbidden, but not a system that fails."""
    with contextlib.suppress(StorePermissionError):
        raise_unless_damage(error, Path(name))
