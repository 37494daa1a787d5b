"""What a store contains right now: the segments that count, and what is damaged or missing."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sawlog.errors import ArgumentError, DamagedStoreError
from sawlog.store._ids import Texts
from sawlog.store._layout import Folder, Identity, SchemaFiles, check_choice
from sawlog.store._schema import Column, Log, Schema, Series, Table
from sawlog.store._segment import Segment, file_name, ids_name, parse_name, step_name, tensors_of

_PATIENCE = (0.0, 0.01, 0.03, 0.1)  # seconds before looking again for what seems missing


@dataclasses.dataclass(frozen=True)
class Problem:
    """A file that is not as it was published."""

    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


class Catalog:
    """The segments of a store in order; ``refresh`` looks again."""

    def __init__(
        self, folder: Folder, identity: Identity, damaged: str = "error", look: bool = True
    ) -> None:
        check_choice("damaged", damaged, ("error", "skip"))
        self._folder, self._identity, self._skip = folder, identity, damaged == "skip"
        self._schema = SchemaFiles(folder)
        self._loaded: dict[str, Segment] = {}
        self._broken: dict[str, Problem] = {}
        self._schema_problems: list[tuple[Path, str]] = []
        self.segments: list[Segment] = []
        self.problems: list[Problem] = []
        self.lost_chunks: list[dict[str, Any]] = []
        self._partly: dict[str, Problem] = {}
        self._by_log: dict[str, list[tuple[Segment, dict[str, Any]]]] = {}
        self.progress: Callable[[int, int], None] | None = None
        if look:
            self.refresh()

    @property
    def schema(self) -> Schema:
        """Every declared name."""
        return self._schema.schema

    @property
    def clock(self) -> int:
        """The greatest clock of any segment."""
        return max((segment.order[0] for segment in self._loaded.values()), default=0)

    def declare(self, wanted: Callable[[Schema], list[Log]]) -> None:
        """Add names to the schema; see :meth:`SchemaFiles.declare`."""
        self._schema.declare(wanted)

    # -- looking ----------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Look at the folder again; says whether there is anything new.

        Raises:
            DamagedStoreError: files are damaged or missing, unless those are to be skipped.
        """
        before = [segment.name for segment in self.segments]
        for wait in _PATIENCE:
            time.sleep(wait)
            missing = self._look()
            if not missing:
                break
        self._schema_problems += self._schema.refresh(self._skip)
        self._schema_problems += self._fit_schema()
        self._by_log = _by_log(self.segments)
        self.problems = [
            *(Problem(self._relative(path), what) for path, what in self._schema_problems),
            *self._broken.values(),
            *(self._partly[s.name] for s in self.segments if s.name in self._partly),
            *(Problem(f"segments/{name}", "missing") for name in missing),
        ]
        if self.problems and not self._skip:
            raise damaged_store(self._folder.path, self.problems)
        return [segment.name for segment in self.segments] != before

    def _relative(self, path: Path) -> str:
        return str(path.relative_to(self._folder.path))

    def _look(self) -> list[str]:
        """List the folder, load what is new; returns the names of missing segments."""
        told = self._told()  # first: a segment that a writer told of is there when we list
        names = {n: parsed for n in self._listing() if (parsed := parse_name(n)) is not None}
        new = [n for n in names if n not in self._loaded and n not in self._broken]
        for done, name in enumerate(sorted(new), 1):
            if not self._load(name):
                del names[name]  # compacted away since the listing, or else it is missing
            if self.progress is not None:
                self.progress(done, len(new))
        self._loaded = {name: s for name, s in self._loaded.items() if name in names}
        self._broken = {name: p for name, p in self._broken.items() if name in names}
        replaced = Ranges(segment.replaces for segment in self._loaded.values())
        live = [s for s in self._loaded.values() if not replaced.has(s.writer, s.sequence)]
        self.segments = sorted(live, key=lambda segment: segment.order)
        self._broken = {n: p for n, p in self._broken.items() if not replaced.has(*names[n])}
        for writer, last in replaced.last().items():
            told[writer] = max(told.get(writer, 0), last)
        for writer, sequence in names.values():
            told[writer] = max(told.get(writer, 0), sequence)
        present = set(names.values())
        return [
            file_name(writer, sequence)
            for writer, last in sorted(told.items())
            for sequence in range(1, last + 1)
            if (writer, sequence) not in present and not replaced.has(writer, sequence)
        ]

    def _listing(self) -> list[str]:
        try:
            return os.listdir(self._folder.segments)
        except FileNotFoundError:
            return []

    def _told(self) -> dict[str, int]:
        """How many segments each writer says it published."""
        told: dict[str, int] = {}
        for path in self._folder.writers.glob("*.json"):
            try:
                told[path.stem] = int(json.loads(path.read_bytes())["published"])
            except (OSError, ValueError, KeyError, TypeError):
                continue  # only a help: what it says is in the segments too
        return told

    @property
    def failed(self) -> bool:
        """Whether the last writer to say something said that its program failed."""
        told: list[tuple[int, bool]] = []
        for path in self._folder.writers.glob("*.json"):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                said = json.loads(path.read_bytes())
                told.append((path.stat().st_mtime_ns, said.get("failed") is True))
        return max(told, default=(0, False))[1]

    def _load(self, name: str) -> bool:
        """Read the header of a segment; says whether the file is there."""
        try:
            segment = Segment(self._folder.segments / name, trusting=not self._skip)
        except FileNotFoundError:
            return False
        except DamagedStoreError as error:
            self._broken[name] = Problem(f"segments/{name}", error.what)
            return True
        if segment.store != self._identity.id and self._identity.id:
            self._broken[name] = Problem(f"segments/{name}", "belongs to another store")
            return True
        if self._skip and (faults := segment.faults()):
            self._leave_out(segment, faults)
        self._loaded[name] = segment
        return True

    def _leave_out(self, segment: Segment, faults: dict[str, str]) -> None:
        """Keep the chunks of a segment that are intact."""
        what = "; ".join(dict.fromkeys(faults.values()))
        self._partly[segment.name] = Problem(f"segments/{segment.name}", what)
        intact = [c for c in segment.chunks if not set(tensors_of(c)) & set(faults)]
        self.lost_chunks += [chunk for chunk in segment.chunks if chunk not in intact]
        segment.chunks = intact

    def _fit_schema(self) -> list[tuple[Path, str]]:
        """Set segments aside that do not fit the schema; where it is damaged, learn from them."""
        lost: list[tuple[Path, str]] = []
        for segment in list(self.segments):
            for log in (log_of(segment, chunk) for chunk in segment.chunks):
                known = [name for name in log.names if name in self.schema]
                if not known:  # a name is declared before it is written, so a schema file is gone
                    if not self._schema_problems:
                        lost = [(self._schema.next_path, "missing")]
                    self.schema.add(log)
                elif self.schema[known[0]] != log:
                    problem = Problem(f"segments/{segment.name}", "does not fit the schema")
                    self._broken[segment.name] = problem
                    self._loaded.pop(segment.name, None)
                    self.segments = [s for s in self.segments if s is not segment]
                    break
        return lost

    # -- asking -----------------------------------------------------------------------------------

    def chunks(self, name: str) -> list[tuple[Segment, dict[str, Any]]]:
        """The chunks of a table (by its first name) or series, in order."""
        return self._by_log.get(name, [])

    def table(self, name: str | None) -> Table:
        """The table that has ``name``, or the only one.

        Raises:
            UnknownNameError: there is no such name.
            ArgumentError: there are several tables, or none, or the name is of a series.
        """
        tables = self.schema.tables
        if name is None:
            if len(tables) == 1:
                return tables[0]
            listed = ", ".join(repr(table.names[0]) for table in tables)
            raise ArgumentError(
                f"{self._folder.path} has several tables: give one of the names {listed}."
                if tables
                else f"{self._folder.path} has no rows with ids; its entries are read with "
                "reader.entries(name)."
            )
        log = self.schema[name]
        if isinstance(log, Series):
            raise ArgumentError(
                f"{name!r} has entries with steps, not rows with ids. Hint: reader.entries(name)"
            )
        return log

    def ids(
        self, table: Table, without: Collection[str] = (), writer: str | None = None
    ) -> Iterator[tuple[str, np.ndarray | list[str]]]:
        """The ids of a table, segment by segment, without some of them and those of a writer."""
        for segment, chunk in self.chunks(table.names[0]):
            if segment.name not in without and segment.writer != writer:
                ids = stored_ids(segment, chunk)
                yield segment.name, ids.take() if isinstance(ids, Texts) else ids


def _by_log(segments: list[Segment]) -> dict[str, list[tuple[Segment, dict[str, Any]]]]:
    found: dict[str, list[tuple[Segment, dict[str, Any]]]] = {}
    for segment in segments:
        for chunk in segment.chunks:
            name = chunk["table"][0] if "table" in chunk else chunk["series"]
            found.setdefault(name, []).append((segment, chunk))
    return found


def stored_ids(segment: Segment, chunk: dict[str, Any]) -> np.ndarray | Texts:
    """The ids of a chunk, checked, and copied: they are kept, and must not keep a file open."""
    names = chunk["table"]
    if chunk["ids"] == "int":
        return segment.values(ids_name(names)).copy()
    parts = [segment.values(ids_name(names, part)).copy() for part in ("text", "ends", "hash")]
    return Texts(*parts)


def log_of(segment: Segment, chunk: dict[str, Any]) -> Log:
    """The table or series that a chunk is a part of, by the types in the segment."""

    def column(tensor: str, name: str) -> Column:
        placed = segment.tensors[tensor]
        return Column(name, placed.dtype, placed.shape[1:])

    if "table" in chunk:
        return Table(tuple(column(name, name) for name in chunk["table"]), chunk["ids"])
    name = chunk["series"]
    steps = tuple(column(step_name(axis, name), axis) for axis in chunk["steps"])
    return Series(column(name, name), steps)


def damaged_store(path: Path, problems: list[Problem]) -> DamagedStoreError:
    """The error that lists what is wrong with a store."""
    listed = "".join(f"\n  {problem}" for problem in problems[:10])
    more = f"\n  and {len(problems) - 10} more" if len(problems) > 10 else ""
    return DamagedStoreError(
        f"{path} has {len(problems)} damaged or missing files:{listed}{more}\n"
        "All others are readable. Hint: sawlog verify PATH says what is lost; open(path, "
        "damaged='skip') reads the rest; sawlog.store.repair(path) gives the lost files up."
    )


class Ranges:
    """Which sequences of which writers were replaced."""

    def __init__(self, parts: Iterable[dict[str, list[list[int]]]]) -> None:
        self._by_writer: dict[str, list[list[int]]] = {}
        for part in parts:
            for writer, ranges in part.items():
                self._by_writer.setdefault(writer, []).extend(ranges)

    def has(self, writer: str, sequence: int) -> bool:
        """Whether a segment was replaced."""
        return any(a <= sequence <= b for a, b in self._by_writer.get(writer, ()))

    def last(self) -> dict[str, int]:
        """The greatest replaced sequence of each writer."""
        return {writer: max(b for _, b in ranges) for writer, ranges in self._by_writer.items()}

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, int]]) -> dict[str, list[list[int]]]:
        """Ranges as a segment describes them.

        >>> Ranges.of([("a", 2), ("a", 1), ("b", 1), ("a", 4)])
        {'a': [[1, 2], [4, 4]], 'b': [[1, 1]]}
        """
        out: dict[str, list[list[int]]] = {}
        for writer, sequence in sorted(pairs):
            ranges = out.setdefault(writer, [])
            if ranges and ranges[-1][1] == sequence - 1:
                ranges[-1][1] = sequence
            else:
                ranges.append([sequence, sequence])
        return out
