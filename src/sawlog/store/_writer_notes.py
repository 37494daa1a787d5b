"""``writers/*.json``: how far each writer got. Only a help: a note that cannot be read is none."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from sawlog.store import _parse
from sawlog.store._disk import Disk

FOLDER = "writers"
_NAME = re.compile(r"([a-z0-9]{1,32})\.json")
_MOST = 1 << 16  # bytes


class WriterNote(NamedTuple):
    """What a writer said last, and when, in seconds since 1970."""

    published: int
    closed: bool
    failed: bool
    modified: float

    def to_json(self) -> bytes:
        """As in FORMAT.md."""
        said = {"published": self.published, "closed": self.closed}
        return json.dumps({**said, "failed": True} if self.failed else said).encode()


def file_of(writer: str) -> str:
    """The name of the file of a writer's note."""
    return f"{FOLDER}/{writer}.json"


def notes_of(disk: Disk) -> dict[str, WriterNote]:
    """The notes of all writers that can be read."""
    try:
        names = disk.list(FOLDER)
    except OSError:
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
            return WriterNote(published, closed, failed, blob.status.modified)
    except (OSError, _parse.Malformed):
        return None
