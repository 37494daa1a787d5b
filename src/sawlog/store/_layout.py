"""The folder of a store: where its files lie, what ``store.json`` says, and the schema files."""

from __future__ import annotations

import dataclasses
import datetime
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sawlog.errors import (
    ArgumentError,
    DamagedStoreError,
    ForeignStoreError,
    NewerStoreError,
    StoreNotFoundError,
)
from sawlog.store._files import explained, from_json, new_name, publish_new, to_json
from sawlog.store._schema import Log, Schema, log_from_json
from sawlog.store._segment import REPLACED, VERSION

FORMAT = "sawlog-store"
POLICIES = {"duplicates": ("error", "first", "replace"), "nan": ("allow", "warn", "error")}
_SCHEMA_FILE = re.compile(r"\d{8,}\.json")


@dataclasses.dataclass(frozen=True)
class Config:
    """The policies of a store, chosen when it is created."""

    duplicates: str = "error"
    nan: str = "allow"
    fixed: bool = False

    def __post_init__(self) -> None:
        for option, choices in POLICIES.items():
            check_choice(option, getattr(self, option), choices)


def check_choice(option: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a value that an option does not have.

    Raises:
        ArgumentError: listing those it has.
    """
    if value not in (choices := tuple(choices)):
        listed = ", ".join(map(repr, choices))
        raise ArgumentError(f"{option} is one of {listed}, not {value!r}")


@dataclasses.dataclass(frozen=True)
class Folder:
    """The paths of a store."""

    path: Path

    @property
    def identity(self) -> Path:
        """What this is."""
        return self.path / "store.json"

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

    @property
    def replaced(self) -> Path:
        """Segments that were compacted away, for those who still read them."""
        return self.path / REPLACED

    @property
    def tmp(self) -> Path:
        """Files that have no name yet."""
        return self.path / "tmp"

    def make(self) -> None:
        """Create the folders.

        Raises:
            StorePermissionError, StoreFullError, StoreWriteError: they cannot be created.
        """
        try:
            for folder in (self.schema, self.segments, self.writers, self.tmp):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explained(error, "creating the store", self.path) from error


@dataclasses.dataclass(frozen=True)
class Identity:
    """What ``store.json`` says."""

    id: str
    created: str
    config: Config
    meta: dict[str, Any]


def declare_store(folder: Folder, config: Config, meta: dict[str, Any]) -> bool:
    """Publish ``store.json`` unless there is one; say whether this did it."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    said = {"format": FORMAT, "version": VERSION, "id": new_name(32), "created": now}
    said.update(config=dataclasses.asdict(config), meta=meta)
    try:
        return publish_new(to_json(said), folder.identity, folder.tmp)
    except OSError as error:
        raise explained(error, "creating", folder.identity) from error


def is_store(path: Path) -> bool:
    """Whether a store is at ``path``, of whatever version."""
    return (path / "store.json").is_file()


def identity_of(folder: Folder) -> Identity:
    """What ``store.json`` says.

    Raises:
        StoreNotFoundError: there is nothing at this path.
        ForeignStoreError: there is something else.
        NewerStoreError: the version is one this sawlog does not know.
        DamagedStoreError: the file was cut or changed.
    """
    try:
        said = complete_json(folder.identity)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _not_a_store(folder.path) from error
    if said.get("format") != FORMAT:
        raise ForeignStoreError(
            f"{folder.path} is no sawlog store: its store.json says format {said.get('format')!r}."
        )
    version = said.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise NewerStoreError(
            f"{folder.path} has version {version!r} of the format, and this sawlog knows "
            f"{VERSION}. Hint: pip install --upgrade sawlog"
        )
    if "unchecked" in said:
        raise DamagedStoreError(f"{folder.identity} has lost its checksum.")
    known = {field.name for field in dataclasses.fields(Config)}
    config = Config(**{k: v for k, v in said["config"].items() if k in known})
    return Identity(said["id"], said["created"], config, said["meta"])


def _not_a_store(path: Path) -> Exception:
    if not path.exists():
        return StoreNotFoundError(
            f"There is no store at {path}. Hint: sawlog.store.create(path) makes one; "
            "sawlog ls FOLDER lists those under a folder."
        )
    if path.is_dir() and (path / "segments").is_dir():
        return DamagedStoreError(
            f"{path / 'store.json'} is missing, though the folder looks like a store. "
            "Hint: open(path, damaged='skip') reads the segments; sawlog repair makes it anew."
        )
    what = "a folder without store.json" if path.is_dir() else "a file"
    return ForeignStoreError(
        f"{path} is {what}, not a sawlog store. Hint: give the folder that has a store.json."
    )


def complete_json(path: Path) -> dict[str, Any]:
    """A JSON file, waiting a little for one that is just being written (disks without links)."""
    while True:
        data = path.read_bytes()
        if data.endswith(b"}\n") or time.time() - path.stat().st_mtime > 0.2:
            return from_json(data, path)
        time.sleep(0.01)


class SchemaFiles:
    """The schema of a store as a list of numbered files, to which anybody may add one."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._read = 0
        self.schema = Schema()

    def refresh(self, skip_damaged: bool = False) -> list[tuple[Path, str]]:
        """Read what was added since; returns the files that were skipped as damaged.

        Raises:
            DamagedStoreError: a file is missing, cut or changed.
        """
        problems: list[tuple[Path, str]] = []
        last = self._last()
        while True:
            path = self._path(self._read + 1)
            try:
                said = complete_json(path)
                for log in map(log_from_json, said["add"]):
                    self.schema.add(log)
            except FileNotFoundError:
                if self._read >= last:
                    return problems
                problems.append((path, "missing"))
            except DamagedStoreError:
                problems.append((path, "cut or changed"))
            if problems and not skip_damaged:
                raise DamagedStoreError(
                    f"{path} is {problems[-1][1]}. Hint: open(path, damaged='skip') takes the "
                    "types from the segments instead."
                )
            self._read += 1

    def _last(self) -> int:
        """The greatest number there is."""
        try:
            names = os.listdir(self._folder.schema)
        except FileNotFoundError:
            return 0
        return max((int(n[:-5]) for n in names if _SCHEMA_FILE.fullmatch(n)), default=0)

    @property
    def next_path(self) -> Path:
        """The file that the next names will be declared in."""
        return self._path(self._read + 1)

    def _path(self, number: int) -> Path:
        return self._folder.schema / f"{number:08d}.json"

    def declare(self, wanted: Callable[[Schema], list[Log]]) -> None:
        """Add what ``wanted`` says is not there yet, as often as others get ahead.

        ``wanted`` is asked again after each miss, and raises where what others declared
        in the meantime does not fit.
        """
        while True:
            logs = wanted(self.schema)
            if not logs:
                return
            trial = Schema(dict.fromkeys(self.schema[name] for name in self.schema))
            for log in logs:
                trial.add(log)
            path = self._path(self._read + 1)
            data = to_json({"add": [log.to_json() for log in logs]})
            try:
                done = publish_new(data, path, self._folder.tmp)
            except OSError as error:
                raise explained(error, "writing", path) from error
            if done:
                self._read += 1
                self.schema = trial
                return
            self.refresh()
