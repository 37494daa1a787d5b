"""``writers/*.json``: the progress of each writer. A file that cannot be read is ignored.

The process of a writer holds a lock on its file, which the system releases when the process ends,
however it ends. On the same running system, a reader thus knows whether a writer is still there.
"""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from sawlog.errors import StorePermissionError
from sawlog.store._disk import Disk, Lease, system_id
from sawlog.store._format import _parse
from sawlog.store._format._json_files import raise_unless_damage

FOLDER = "writers"
_NAME = re.compile(r"([a-z0-9]{1,32})\.json")
_MOST = 1 << 16  # bytes
MOST_ERROR = 1_000  # characters of what is said about a failure
_LOOKS = 100  # at a file that its writer replaces all the time


class WriterNote(NamedTuple):
    """The last report of a writer, and its time in seconds since 1970.

    ``error`` says what stopped a program that failed; it may be empty. ``held`` is the system that
    knows whether the process of the writer holds the file, or None if the process does not.
    """

    published: int
    closed: bool
    failed: bool
    modified: float
    error: str = ""
    held: str | None = None

    def to_json(self) -> bytes:
        """Return the contents of the file (FORMAT.md, section 5)."""
        said: dict[str, Any] = {"published": self.published, "closed": self.closed}
        if self.failed:
            said |= {"failed": True, **({"error": self.error} if self.error else {})}
        return json.dumps(said if self.held is None else said | {"held": self.held}).encode()


def file_of(writer: str) -> str:
    """Return the name of a writer's file."""
    return f"{FOLDER}/{writer}.json"


def notes_of(disk: Disk) -> dict[str, WriterNote]:
    """Read the reports of all writers; skip files that cannot be read."""
    found = {writer: _note(disk, name) for writer, name in _files(disk)}
    return {writer: note for writer, note in found.items() if note is not None}


def _files(disk: Disk) -> list[tuple[str, str]]:
    """Return the writers with their file names."""
    try:
        names = disk.list(FOLDER)
    except OSError as error:
        _ignore(error, FOLDER)
        return []
    return [(match[1], match[0]) for name in names if (match := _NAME.fullmatch(name))]


def notes_and_processes(disk: Disk) -> dict[str, tuple[WriterNote, bool | None]]:
    """Read the reports of all writers, and whether the process of each that is not closed runs.

    None if that is unknown. It is known on the system where the writer runs or ran. From elsewhere,
    on a shared disk, only a lock that is held tells something.
    """
    found = {writer: _note_and_process(disk, name) for writer, name in _files(disk)}
    return {writer: each for writer, each in found.items() if each is not None}


def _note_and_process(disk: Disk, name: str) -> tuple[WriterNote, bool | None] | None:
    for _ in range(_LOOKS):
        opened = _opened(disk, name)
        if opened is None:
            return None
        note, held, is_last = opened
        if note.closed or note.held is None or held is not False:
            return note, held
        if is_last:
            return note, False if note.held and note.held == system_id() else None
    return note, None


class HeldNote:
    """The file of one writer, which its process holds until ``release``."""

    def __init__(self, disk: Disk, writer: str) -> None:
        self._disk, self._name = disk, file_of(writer)
        self._leases: list[Lease] = []  # more than one only after a failure

    def put(self, note: WriterNote, hold: bool) -> None:
        """Replace the file. Not synced, because losing a report is harmless."""
        held = note._replace(held=system_id()).to_json()
        if hold and self._disk.put_held(self._name, held, self._leases):
            self._release_all_but(1)
        else:
            self._disk.put(self._name, note.to_json(), durable=False)
            self.release()

    def release(self) -> None:
        """Release the file, as the end of the process would."""
        self._release_all_but(0)

    def _release_all_but(self, last: int) -> None:
        while len(self._leases) > last:
            self._leases[0].release()
            del self._leases[0]


def _note(disk: Disk, name: str) -> WriterNote | None:
    opened = _opened(disk, name, look=False)
    return None if opened is None else opened[0]


def _opened(
    disk: Disk, name: str, look: bool = True
) -> tuple[WriterNote, bool | None, bool] | None:
    """Read a report; return whether it is held, and whether it is still the last one after that."""
    try:
        with disk.open(f"{FOLDER}/{name}") as blob:
            said = _parse.load(blob.read(0, _MOST))
            published = _parse.integer(_parse.field(said, "published"), "'published'")
            closed, failed = said.get("closed") is True, said.get("failed") is True
            error, by = said.get("error"), said.get("held")
            text = error[:MOST_ERROR] if failed and isinstance(error, str) else ""
            note = WriterNote(
                *(published, closed, failed, blob.status.modified, text),
                by if isinstance(by, str) and not closed else None,
            )
            if not look or note.held is None:
                return note, None, True
            held = blob.held()
            # A writer replaces its file before it releases the old one.
            return note, held, disk.status(f"{FOLDER}/{name}").key == blob.status.key
    except _parse.Malformed:
        return None
    except OSError as failure:
        _ignore(failure, f"{FOLDER}/{name}")
        return None


def _ignore(error: OSError, name: str) -> None:
    """Ignore a file that is missing, odd or forbidden, but not a system that fails."""
    with contextlib.suppress(StorePermissionError):
        raise_unless_damage(error, Path(name))
