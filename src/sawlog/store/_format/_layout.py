"""The folder of a store: its paths, and ``store.json``."""

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
_PATIENCE = 0.3  # seconds to wait for a file that is being written
_LOOKS = 100  # at a path where other processes create and replace stores


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
    """The paths of a store, and the disk with its files."""

    path: Path

    def __post_init__(self) -> None:
        try:
            bad = b"\0" in os.fsencode(self.path)
        except UnicodeEncodeError:
            bad = True
        if bad:
            raise ArgumentError(f"{str(self.path)!r:.200} is not a valid path.")
        object.__setattr__(self, "path", absolute(self.path))

    @functools.cached_property
    def disk(self) -> LocalDisk:
        """Access to the files, by names relative to the store."""
        return LocalDisk(self.path)

    @property
    def identity(self) -> Path:
        """The path of ``store.json``."""
        return self.path / IDENTITY

    @property
    def schema(self) -> Path:
        """The folder of schema files."""
        return self.path / "schema"

    @property
    def segments(self) -> Path:
        """The folder of segments."""
        return self.path / "segments"

    @property
    def writers(self) -> Path:
        """The folder with the progress of each writer."""
        return self.path / "writers"

    def make(self) -> None:
        """Create the folders of a new store; an existing store must have them.

        Raises:
            DamagedStoreError: the store exists without its segments.
            StorePermissionError, StoreFullError, StoreWriteError: the folders cannot be created.
        """
        if is_store(self.path):
            self.check()
        self.make_all()

    def make_all(self) -> None:
        """Create missing folders, also in a store that has lost some."""
        try:
            self.disk.make(FOLDERS)
        except OSError as error:
            raise write_error(error, "creating the store", self.path, new=True) from error

    def check(self) -> None:
        """Check that the store has its segments; one without them is damaged, not empty.

        Raises:
            StoreNotFoundError, DamagedStoreError: see :meth:`names`.
        """
        self.names("segments")

    def names(self, folder: str) -> list[str]:
        """List one of the folders.

        Raises:
            StoreNotFoundError: the whole store is gone.
            DamagedStoreError: the folder is missing, or is not a folder.
            StorePermissionError, StoreReadError: the folder cannot be read.
        """
        try:
            return self.disk.list(folder)
        except FileNotFoundError as error:
            if not self.disk.exists():
                raise store_gone(self.path) from error
            raise self._lost(folder, "missing") from error
        except NotADirectoryError as error:
            raise self._lost(folder, "not a folder") from error
        except OSError as error:
            reason = read_error(error, self.path / folder)
            if reason is not error:
                raise reason from error
            raise self._lost(folder, error.strerror or str(error)) from error

    def _lost(self, folder: str, what: str) -> DamagedStoreError:
        return DamagedStoreError(
            f"{self.path / folder} is damaged: {what}. Hint: check that the disk is mounted and "
            "that all of the store was copied; sawlog repair removes what is damaged.",
            what=f"{folder}/: {what}",
        )


def store_gone(path: Path) -> StoreNotFoundError:
    """Return the error for a store that no longer exists."""
    return StoreNotFoundError(
        f"The store at {path} is gone. Hint: check that its disk is mounted, and that the folder "
        "was not moved."
    )


@dataclasses.dataclass(frozen=True)
class Identity:
    """The contents of ``store.json``."""

    id: str
    created: str
    config: Config
    meta: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value (FORMAT.md, section 2)."""
        said = {"format": FORMAT, "version": VERSION, "id": self.id, "created": self.created}
        return {**said, "config": dataclasses.asdict(self.config), "meta": self.meta}

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> Identity:
        """Parse the JSON value (FORMAT.md, section 2).

        Raises:
            Malformed: the value is invalid.
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
    """Publish ``store.json`` unless it exists; return whether this call published it."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    said = Identity(new_name(32), now, config, meta).to_json()
    try:
        return folder.disk.put_new(IDENTITY, to_json(said))
    except OSError as error:
        raise write_error(error, "creating", folder.identity, new=True) from error


def is_store(path: str | os.PathLike[str]) -> bool:
    """Return whether a store of any version exists at ``path``."""
    try:
        LocalDisk(path).status(IDENTITY)
    except OSError:
        return False
    return True


def identity_of(folder: Folder) -> Identity:
    """Read ``store.json``.

    Raises:
        StoreNotFoundError: no store exists at this path, or not yet.
        ForeignStoreError: the path is something else.
        NewerStoreError: the version is newer than this sawlog.
        DamagedStoreError: the file was cut or changed.
        StorePermissionError, StoreReadError: the file cannot be read.
    """
    for _ in range(_LOOKS):
        try:
            return _read_identity(folder)
        except StoreNotFoundError:
            raise  # it is a FileNotFoundError as well
        except (FileNotFoundError, NotADirectoryError) as error:
            problem = _not_a_store(folder)
            if problem is not None:
                raise problem from error
    return _read_identity(folder)


def _read_identity(folder: Folder) -> Identity:
    try:
        said, sealed = from_json(complete_json(folder.disk, IDENTITY))
        return _identity(folder, said, sealed)
    except (FileNotFoundError, NotADirectoryError):
        raise
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
            f"{folder.path} is not a sawlog store: its store.json has the format "
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
    """Return the error for a damaged JSON file."""
    return DamagedStoreError(
        f"{path} is damaged: {what}. Hint: sawlog verify shows what is readable; "
        "open(path, damaged='skip') reads the rest.",
        what=what,
    )


def _not_a_store(folder: Folder) -> Exception | None:
    """Return the error for a path without ``store.json``; None if there is one by now."""
    path, there = folder.path, set(_names_in(folder.disk))
    if IDENTITY in there:  # another process has created or replaced the store since
        return None
    if not folder.disk.exists():
        if folder.disk.occupied():
            return ForeignStoreError(
                f"{path} is a file, not a sawlog store. Hint: pass a folder with a store.json."
            )
        return StoreNotFoundError(
            f"There is no store at {path}. Hint: sawlog.store.create(path) creates one; "
            "sawlog ls FOLDER lists the stores below a folder."
        )
    if "segments" not in there:
        return ForeignStoreError(
            f"{path} is a folder without store.json, not a sawlog store. "
            "Hint: pass the folder that contains store.json."
        )
    if not any(_names_in(folder.disk, name) for name in ("schema", "segments", "writers")):
        return StoreNotFoundError(
            f"There is no store at {path} yet: another process is creating one, or stopped before "
            "it was done. Hint: sawlog.store.create(path, exists='append') creates or continues it."
        )
    if IDENTITY in _names_in(folder.disk):
        return None
    return DamagedStoreError(
        f"{path / IDENTITY} is missing, though the folder looks like a store. "
        "Hint: open(path, damaged='skip') reads the segments; sawlog repair writes it again."
    )


def _names_in(disk: Disk, folder: str = "") -> list[str]:
    try:
        return disk.list(folder)
    except OSError:
        return []


def complete_json(disk: Disk, name: str) -> bytes:
    """Read a JSON file; wait briefly for one that is being written (disks without links)."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        data = disk.read(name, MOST_JSON)
        if data.rstrip().endswith(b"}") or time.monotonic() > deadline:
            return data
        if abs(time.time() - disk.status(name).modified) > _PATIENCE:
            return data
        time.sleep(0.01)
