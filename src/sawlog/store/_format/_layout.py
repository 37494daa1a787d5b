"""The folder of a store: where its files lie, and what ``store.json`` says."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import os
import time
from pathlib import Path
from typing import Any

from sawlog import _validate
from sawlog._atomic import new_name
from sawlog._paths import absolute
from sawlog.errors import (
    ArgumentError,
    DamagedStoreError,
    ForeignStoreError,
    NewerStoreError,
    StoreNotFoundError,
)
from sawlog.store._disk import Disk, LocalDisk
from sawlog.store._format import _parse
from sawlog.store._format._header import PLAIN as VERSION
from sawlog.store._format._json_files import BAD_PATH, from_json, read_error, to_json, write_error

FORMAT = "sawlog-store"
IDENTITY = "store.json"
POLICIES = {"duplicates": ("error", "first", "replace"), "nan": ("allow", "warn", "error")}
FOLDERS = ("schema", "segments", "writers", "tmp")
MOST_JSON = 1 << 28  # bytes of a JSON file
_PATIENCE = 0.3  # seconds for a file that is just being written


@dataclasses.dataclass(frozen=True)
class Config:
    """The policies of a store, chosen when it is created."""

    duplicates: str = "error"
    nan: str = "allow"
    fixed: bool = False

    def __post_init__(self) -> None:
        for option, choices in POLICIES.items():
            _validate.one_of(option, getattr(self, option), choices)


@dataclasses.dataclass(frozen=True)
class Folder:
    """The paths of a store, and the disk that has its files."""

    path: Path

    def __post_init__(self) -> None:
        try:
            bad = b"\0" in os.fsencode(self.path)
        except UnicodeEncodeError:
            bad = True
        if bad:
            raise ArgumentError(f"{str(self.path)!r:.200} is not a path that a file can have.")
        object.__setattr__(self, "path", absolute(self.path))

    @functools.cached_property
    def disk(self) -> LocalDisk:
        """Where the files are; names are relative to the store."""
        return LocalDisk(self.path)

    @property
    def identity(self) -> Path:
        """What this is."""
        return self.path / IDENTITY

    @property
    def schema(self) -> Path:
        """Which logs there are."""
        return self.path / "schema"

    @property
    def segments(self) -> Path:
        """The data."""
        return self.path / "segments"

    @property
    def writers(self) -> Path:
        """How far each writer got."""
        return self.path / "writers"

    def make(self) -> None:
        """Create the folders of a store that is new; those of one that is there must be there.

        Raises:
            DamagedStoreError: there is a store, and its segments are gone.
            StorePermissionError, StoreFullError, StoreWriteError: they cannot be created.
        """
        if is_store(self.path):
            self.check()
        self.make_all()

    def make_all(self) -> None:
        """Create what is not there of the folders, also in a store that has lost some."""
        try:
            self.disk.make(FOLDERS)
        except OSError as error:
            raise write_error(error, "creating the store", self.path) from error

    def check(self) -> None:
        """Refuse a store that is gone, or whose segments are: that is not an empty store.

        Raises:
            StoreNotFoundError, DamagedStoreError.
        """
        self.names("segments")

    def names(self, folder: str) -> list[str]:
        """The names in one of the folders.

        Raises:
            StoreNotFoundError: the whole store is gone.
            DamagedStoreError: the folder is missing, or something else.
            StorePermissionError: it cannot be read.
        """
        try:
            return self.disk.list(folder)
        except FileNotFoundError as error:
            if not self.disk.exists():
                raise store_gone(self.path) from error
            raise self._lost(folder, "missing") from error
        except NotADirectoryError as error:
            raise self._lost(folder, "no folder") from error
        except OSError as error:
            reason = read_error(error, self.path / folder)
            if reason is not error:
                raise reason from error
            raise self._lost(folder, error.strerror or str(error)) from error

    def _lost(self, folder: str, what: str) -> DamagedStoreError:
        return DamagedStoreError(
            f"{self.path / folder} is damaged: {what}. Hint: look whether the disk is mounted and "
            "whether all of the store was copied; sawlog repair gives up what is lost.",
            what=f"{folder}/: {what}",
        )


def store_gone(path: Path) -> StoreNotFoundError:
    """The error for a store that was there before."""
    return StoreNotFoundError(
        f"The store at {path} is gone. Hint: look whether its disk is mounted, and whether the "
        "folder was moved."
    )


@dataclasses.dataclass(frozen=True)
class Identity:
    """What ``store.json`` says."""

    id: str
    created: str
    config: Config
    meta: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """As in FORMAT.md."""
        said = {"format": FORMAT, "version": VERSION, "id": self.id, "created": self.created}
        return {**said, "config": dataclasses.asdict(self.config), "meta": self.meta}

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> Identity:
        """As in FORMAT.md.

        Raises:
            Malformed: it is something else.
        """
        config = _parse.mapping(_parse.field(said, "config"), "'config'")
        chosen = {
            option: _parse.choice(config.get(option, choices[0]), f"'{option}'", choices)
            for option, choices in POLICIES.items()
        }
        fixed = _parse.flag(config.get("fixed", False), "'fixed'")
        return cls(
            _parse.text(_parse.field(said, "id"), "'id'"),
            _parse.text(_parse.field(said, "created"), "'created'"),
            Config(**chosen, fixed=fixed),
            _parse.notes(_parse.field(said, "meta"), "'meta'"),
        )


def declare_store(folder: Folder, config: Config, meta: dict[str, Any]) -> bool:
    """Publish ``store.json`` unless there is one; say whether this did it."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    said = Identity(new_name(32), now, config, meta).to_json()
    try:
        return folder.disk.put_new(IDENTITY, to_json(said))
    except OSError as error:
        raise write_error(error, "creating", folder.identity) from error


def is_store(path: str | os.PathLike[str]) -> bool:
    """Whether a store is at ``path``, of whatever version."""
    try:
        LocalDisk(path).status(IDENTITY)
    except OSError:
        return False
    return True


def identity_of(folder: Folder) -> Identity:
    """What ``store.json`` says.

    Raises:
        StoreNotFoundError: there is nothing at this path, or nothing yet.
        ForeignStoreError: there is something else.
        NewerStoreError: the version is one this sawlog does not know.
        DamagedStoreError: the file was cut or changed.
    """
    try:
        said, sealed = from_json(complete_json(folder.disk, IDENTITY))
        return _identity(folder, said, sealed)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _not_a_store(folder) from error
    except OSError as error:
        if error.errno in BAD_PATH and not folder.disk.exists():
            raise StoreNotFoundError(
                f"No store exists at {str(folder.path)[:500]}: {error.strerror}. "
                "Hint: check the path."
            ) from error
        reason = read_error(error, folder.identity)
        if reason is not error:
            raise reason from error
        raise damaged_file(folder.identity, error.strerror or str(error)) from error
    except _parse.Malformed as error:
        raise damaged_file(folder.identity, str(error)) from error


def _identity(folder: Folder, said: dict[str, Any], sealed: bool) -> Identity:
    if not sealed and not {"format", "version"} & set(said):
        _parse.fail("it was cut or changed after it was written")
    if said.get("format") != FORMAT:
        raise ForeignStoreError(
            f"{folder.path} is no sawlog store: its store.json says format "
            f"{_parse.shown(said.get('format'))}."
        )
    version = _parse.integer(said.get("version"), "'version'", 1)
    if version > VERSION:
        raise NewerStoreError(
            f"{folder.path} has version {version} of the format, and this sawlog knows "
            f"{VERSION}. Hint: pip install --upgrade sawlog"
        )
    if not sealed:
        _parse.fail("it has lost its checksum")
    return Identity.from_json(said)


def damaged_file(path: Path, what: str) -> DamagedStoreError:
    """The error for a JSON file that is not what was written."""
    return DamagedStoreError(
        f"{path} is damaged: {what}. Hint: sawlog verify shows what is readable; "
        "open(path, damaged='skip') reads the rest.",
        what=what,
    )


def _not_a_store(folder: Folder) -> Exception:
    path, there = folder.path, set(_names_in(folder.disk))
    if not folder.disk.exists():
        if folder.disk.occupied():
            return ForeignStoreError(
                f"{path} is a file, not a sawlog store. Hint: give the folder with a store.json."
            )
        return StoreNotFoundError(
            f"There is no store at {path}. Hint: sawlog.store.create(path) makes one; "
            "sawlog ls FOLDER lists those under a folder."
        )
    if "segments" not in there:
        return ForeignStoreError(
            f"{path} is a folder without store.json, not a sawlog store. "
            "Hint: give the folder that has a store.json."
        )
    if not any(_names_in(folder.disk, name) for name in ("schema", "segments", "writers")):
        return StoreNotFoundError(
            f"There is no store at {path} yet: somebody is making one, or stopped before it was "
            "there. Hint: sawlog.store.create(path, exists='append') makes it, or goes on with it."
        )
    return DamagedStoreError(
        f"{path / IDENTITY} is missing, though the folder looks like a store. "
        "Hint: open(path, damaged='skip') reads the segments; sawlog repair makes it anew."
    )


def _names_in(disk: Disk, folder: str = "") -> list[str]:
    try:
        return disk.list(folder)
    except OSError:
        return []


def complete_json(disk: Disk, name: str) -> bytes:
    """A JSON file, waiting a little for one that is just being written (disks without links)."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        data = disk.read(name, MOST_JSON)
        if data.rstrip().endswith(b"}") or time.monotonic() > deadline:
            return data
        if abs(time.time() - disk.status(name).modified) > _PATIENCE:
            return data
        time.sleep(0.01)
