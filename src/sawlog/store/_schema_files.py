"""The schema of a store as a list of numbered files, to which anybody may add one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from sawlog.errors import DamagedStoreError, SchemaError
from sawlog.store import _parse
from sawlog.store._files import explained, from_json, sealed
from sawlog.store._layout import Folder, complete_json
from sawlog.store._many import many_objects
from sawlog.store._schema import Log, Schema, check_axes, logs_from_json, logs_to_texts

_NAME = re.compile(r"(\d{8,19})\.json")
_FEW = 100  # missing files that are named one by one


class SchemaFiles:
    """Every declared log of a store; ``refresh`` reads what others declared."""

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
        for number in self._numbers():
            before = self._read
            problems += self._skip_to(number)
            problems += self._take(number)
            if problems and not skip_damaged:
                self._read = before  # so that asking again is the same error again
                raise _damaged(*problems[0])
        while self._is_there(self._read + 1):  # some listings lag behind
            problems += self._take(self._read + 1)
        return problems

    def _numbers(self) -> list[int]:
        """The numbers there are and were not read, sorted."""
        try:
            names = self._folder.names("schema")
        except DamagedStoreError:
            if self._read:
                raise
            return []  # whether any names are lost the segments tell
        found = (_NAME.fullmatch(name) for name in names)
        numbers = (int(match[1]) for match in found if match and _name(int(match[1])) == match[0])
        return sorted(number for number in numbers if number > self._read)

    def _skip_to(self, number: int) -> list[tuple[Path, str]]:
        """Step over the numbers before this one that are not there."""
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
        except OSError:
            return False
        return True

    def _take(self, number: int) -> list[tuple[Path, str]]:
        problems: list[tuple[Path, str]] = []
        try:
            self._add(self._logs(number))
        except FileNotFoundError:
            problems = [(self._path(number), "missing")]
        except (OSError, _parse.Malformed, SchemaError) as error:
            problems = [(self._path(number), f"cut or changed: {error}")]
        self._read = number  # last: stopped before, it is done again
        return problems

    def _add(self, logs: list[Log]) -> None:
        """Take in logs; some may have been taken in before an exception came, or meanwhile."""
        while True:
            find, before = self.schema.find, len(self.schema)
            known: set[int] = set()
            if self.schema.has_any([name for log in logs for name in log.names]):
                known = {id(log) for log in logs if all(find(n) == log for n in log.names)}
            try:
                self.schema.add_all([log for log in logs if id(log) not in known])
            except SchemaError:
                if len(self.schema) == before:
                    raise
            else:
                return

    def _logs(self, number: int) -> list[Log]:
        said, sealed = from_json(complete_json(self._folder.disk, f"schema/{_name(number)}"))
        if not sealed:
            _parse.fail("it has lost its checksum")
        return logs_from_json(_parse.field(said, "add"))

    @property
    def next_path(self) -> Path:
        """The file that the next names will be declared in."""
        return self._path(self._read + 1)

    def _path(self, number: int) -> Path:
        return self._folder.schema / _name(number)

    def declare(self, wanted: Callable[[Schema], list[Log]]) -> None:
        """Add what ``wanted`` says is not there yet, as often as others get ahead.

        ``wanted`` is asked again after each miss, and raises where what others declared
        in the meantime does not fit.
        """
        with many_objects():
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
                if len(self.schema) != before:  # a signal handler declared something meanwhile
                    continue
                raise
            check_axes(logs)
            number = self._read + 1
            data = sealed('{\n "add": [\n  ' + ",\n  ".join(logs_to_texts(logs)) + "\n ],\n")
            try:
                done = self._folder.disk.put_new(f"schema/{_name(number)}", data)
            except OSError as error:
                raise explained(error, "writing", self._path(number)) from error
            if done:
                self._add(logs)
                self._read = number
                return
            self.refresh()


def _name(number: int) -> str:
    return f"{number:08d}.json"


def _damaged(path: Path, what: str) -> DamagedStoreError:
    return DamagedStoreError(
        f"{path} is {what}. Hint: open(path, damaged='skip') takes the types from the segments "
        "instead.",
        what=what,
    )
