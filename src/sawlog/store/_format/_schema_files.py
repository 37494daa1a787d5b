"""The schema of a store as numbered files, to which any writer may add one."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from sawlog.errors import DamagedStoreError, SchemaError, StoreError
from sawlog.store._format import _parse
from sawlog.store._format._json_files import (
    from_json,
    raise_unless_damage,
    reason_of,
    sealed,
    write_error,
)
from sawlog.store._format._layout import MOST_JSON, Folder, complete_json
from sawlog.store._format._schema import Log, Schema, check_axes, names_of
from sawlog.store._format._schema_json import logs_from_json, logs_to_texts
from sawlog.store._gc_pause import paused_gc

_NAME = re.compile(r"([0-9]{8,19})\.json")
_MERGED = re.compile(r"00000001-([0-9]{8,19})\.json")
_MANY = 64  # files; fewer are not merged
_FEW = 100  # missing files that are reported one by one


class SchemaFiles:
    """The declared logs of a store; ``refresh`` reads what other writers declared."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._read = 0
        self.schema = Schema()

    def refresh(self, skip_damaged: bool = False) -> list[tuple[Path, str]]:
        """Read new files; return those that were skipped as damaged.

        Raises:
            DamagedStoreError: a file is missing, cut or changed.
        """
        numbers, last = self._listed()
        before = self._read
        problems = self._take_merged(last)
        if problems and not skip_damaged:
            self._read = before
            raise _damaged(*problems[0])
        for number in numbers:
            if number <= self._read:
                continue
            before = self._read
            found = self._skip_to(number) + self._take(number)
            if found and (last := self._listed()[1]) > before:  # merged since the listing
                self._read = before
                found = self._take_merged(last)
            problems += found
            if problems and not skip_damaged:
                self._read = before  # so that the next call raises the same error
                raise _damaged(*problems[0])
        while self._is_there(self._read + 1):  # listings of some disks lag behind
            problems += self._take(self._read + 1)
        return problems

    def _listed(self) -> tuple[list[int], int]:
        """Return the sorted numbers of the files, and the last number in a merged file, or 0."""
        try:
            names = self._folder.names("schema")
        except DamagedStoreError:
            if self._read:
                raise
            return [], 0  # the segments show whether any names are lost
        found = (_NAME.fullmatch(name) for name in names)
        numbers = (int(match[1]) for match in found if match and _name(int(match[1])) == match[0])
        return sorted(number for number in numbers if number), max(_merged_in(names), default=0)

    def _take_merged(self, last: int) -> list[tuple[Path, str]]:
        """Read the merged file with all names up to a number, if they are not known yet."""
        problems: list[tuple[Path, str]] = []
        while last > self._read and not problems:
            try:
                self._add(self._logs(_merged_name(last)))
                self._read = last
            except FileNotFoundError:  # merged again since the listing, or missing
                newer = self._listed()[1]
                if newer <= last:
                    problems = [(self._folder.schema / _merged_name(last), "missing")]
                last = newer
            except (OSError, _parse.Malformed, SchemaError) as error:
                path = self._folder.schema / _merged_name(last)
                raise_unless_damage(error, path)
                problems = [(path, f"cut or changed: {reason_of(error)}")]
        if problems:
            self._read = max(self._read, last)
        return problems

    def _skip_to(self, number: int) -> list[tuple[Path, str]]:
        """Skip missing numbers before this one."""
        problems: list[tuple[Path, str]] = []
        while self._read + 1 < number and self._is_there(self._read + 1):
            problems += self._take(self._read + 1)
        first, last = self._read + 1, number - 1
        self._read = last
        if last - first < _FEW:
            return [*problems, *((self._path(lost), "missing") for lost in range(first, number))]
        return [*problems, (self._path(first), f"missing, and all others up to {_name(last)}")]

    def _is_there(self, number: int) -> bool:
        try:
            self._folder.disk.status(f"schema/{_name(number)}")
        except OSError as error:
            raise_unless_damage(error, self._path(number))
            return False
        return True

    def _take(self, number: int) -> list[tuple[Path, str]]:
        problems: list[tuple[Path, str]] = []
        try:
            self._add(self._logs(_name(number)))
        except FileNotFoundError:
            problems = [(self._path(number), "missing")]
        except (OSError, _parse.Malformed, SchemaError) as error:
            raise_unless_damage(error, self._path(number))
            problems = [(self._path(number), f"cut or changed: {reason_of(error)}")]
        self._read = number  # last, so that it is repeated after an interrupt
        return problems

    def _add(self, logs: list[Log]) -> None:
        """Add logs; some may be known from before an interrupt, or from a signal handler."""
        while True:
            find, before = self.schema.find, len(self.schema)
            known: set[int] = set()
            if self.schema.has_any(names_of(logs)):
                known = {id(log) for log in logs if all(find(n) == log for n in log.names)}
            try:
                self.schema.add_all([log for log in logs if id(log) not in known])
            except SchemaError:
                if len(self.schema) == before:
                    raise
            else:
                return

    def _logs(self, name: str) -> list[Log]:
        said, sealed = from_json(complete_json(self._folder.disk, f"schema/{name}"))
        if not sealed:
            _parse.fail("it has lost its checksum")
        return logs_from_json(_parse.field(said, "add"))

    @property
    def next_path(self) -> Path:
        """The path of the next schema file."""
        return self._path(self._read + 1)

    def _path(self, number: int) -> Path:
        return self._folder.schema / _name(number)

    def declare(self, wanted: Callable[[Schema], list[Log]]) -> None:
        """Declare the logs that ``wanted(schema)`` returns; retry if another writer is faster.

        ``wanted`` is called again after each retry, and raises if what other writers declared does
        not match.
        """
        with paused_gc():
            self._declare(wanted)

    def _declare(self, wanted: Callable[[Schema], list[Log]]) -> None:
        while True:
            before = len(self.schema)
            logs = wanted(self.schema)
            if not logs:
                return
            try:
                self.schema.check(logs)
            except SchemaError:
                if len(self.schema) != before:  # a signal handler declared something
                    continue
                raise
            check_axes(logs)
            number = self._read + 1
            if _NAME.fullmatch(_name(number)) is None:
                raise _damaged(self._path(number), "beyond the last number of a schema")
            data = sealed('{\n "add": [\n  ' + ",\n  ".join(logs_to_texts(logs)) + "\n ],\n")
            try:
                done = self._folder.disk.put_new(f"schema/{_name(number)}", data)
            except OSError as error:
                raise write_error(error, "writing", self._path(number)) from error
            if done and not self._was_merged(number):
                self._add(logs)
                self._read = number
                return
            if done:
                self._folder.disk.delete(f"schema/{_name(number)}")
            self.refresh()

    def _was_merged(self, number: int) -> bool:
        """Return whether a number was free only because the files up to it were merged.

        Files are not merged while a writer is marked as such. This is for processes that could not
        mark the store. Numbers are removed from the first one on.
        """
        if number > 1 and self._is_there(number - 1):
            return False
        return self._listed()[1] >= number

    def merge(self) -> int:
        """Merge all names into one file, if there are many files; return how many were removed.

        The caller must hold the lease of the whole store. Readers may be open.

        Raises:
            DamagedStoreError: a file is missing, cut or changed; nothing was changed.
            OSError: the disk refuses.
        """
        numbers, last = self._listed()
        if len(numbers) < _MANY:
            return 0
        self.refresh()
        end = self._read
        if last < end:
            logs = list({id(log): log for log in self.schema.values()}.values())
            data = sealed('{\n "add": [\n  ' + ",\n  ".join(logs_to_texts(logs)) + "\n ],\n")
            if len(data) > MOST_JSON:
                return 0
            self._folder.disk.put_new(f"schema/{_merged_name(end)}", data)
            SchemaFiles(self._folder)._check_same(end, self.schema)
        older = [_merged_name(n) for n in _merged_in(self._folder.names("schema")) if n < end]
        removed = [*older, *[_name(number) for number in numbers if number <= end]]
        for name in removed:
            self._folder.disk.delete(f"schema/{name}")
        return len(removed)

    def _check_same(self, last: int, schema: Schema) -> None:
        """Check that a merged file has all names, before the others are removed."""
        problems = self._take_merged(last)
        if problems or dict(self.schema) != dict(schema):
            raise _damaged(self._folder.schema / _merged_name(last), "not what was written")


def _name(number: int) -> str:
    return f"{number:08d}.json"


def _merged_name(last: int) -> str:
    return f"{1:08d}-{last:08d}.json"


def _merged_in(names: Iterable[str]) -> list[int]:
    """Return the last numbers of merged files."""
    found = (_MERGED.fullmatch(name) for name in names)
    lasts = [(match[0], int(match[1])) for match in found if match]
    return [last for name, last in lasts if last and _merged_name(last) == name]


def merge_schema(folder: Folder) -> int:
    """Merge the schema files of a store, if there are many and no writer is open.

    Returns the number of removed files. A failure is ignored, because no names are lost.
    """
    with contextlib.suppress(StoreError, OSError):
        if len(SchemaFiles(folder)._listed()[0]) < _MANY:
            return 0
        lease = folder.disk.lease_all()
        if lease is not None:
            try:
                return SchemaFiles(folder).merge() if lease.certain else 0
            finally:
                lease.release()
    return 0


def _damaged(path: Path, what: str) -> DamagedStoreError:
    return DamagedStoreError(
        f"{path} is {what}. Hint: open(path, damaged='skip') reads the types from the segments.",
        what=what,
    )
