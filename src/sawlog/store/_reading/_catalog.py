"""The contents of a store at one moment: segments that count, damaged and missing files."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import numpy as np

from sawlog import _validate
from sawlog.errors import (
    ArgumentError,
    DamagedStoreError,
    StoreError,
    StoreNotFoundError,
)
from sawlog.store._format._chunks import Chunk, TableChunk
from sawlog.store._format._header import file_name, parse_name
from sawlog.store._format._layout import IDENTITY, Folder, Identity, identity_of
from sawlog.store._format._schema import Log, Schema, Series, Table
from sawlog.store._format._schema_check import all_match_schema, log_of, schema_mismatch
from sawlog.store._format._schema_files import SchemaFiles
from sawlog.store._format._segment import RemovedSegmentError, Segment
from sawlog.store._format._sequence_ranges import Ranges
from sawlog.store._format._writer_notes import notes_of
from sawlog.store._gc_pause import paused_gc
from sawlog.store._reading._stored_ids import id_faults, ids_of

_PATIENCE = (0.0, 0.01, 0.03, 0.1)  # seconds before listing again for missing segments
_LOOKS = 100  # listings at most, however much other processes change
_FEW = 100  # missing segments, or chunks, that are handled one by one


@dataclasses.dataclass(frozen=True)
class Problem:
    """A file that is not as it was published."""

    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


class Catalog:
    """The segments of a store in order; ``refresh`` lists the folder again."""

    def __init__(
        self, folder: Folder, identity: Identity, damaged: str = "error", look: bool = True
    ) -> None:
        _validate.one_of("damaged", damaged, ("error", "skip"))
        self._folder, self._identity, self._skip = folder, identity, damaged == "skip"
        self._looked = False
        self._identity_key: tuple[int, ...] = ()  # of the store.json that was read last
        self._schema = SchemaFiles(folder)
        self._loaded: dict[str, Segment] = {}
        self._broken: dict[str, Problem] = {}
        self._partly: dict[str, Problem] = {}
        self._fitted: set[str] = set()
        self._schema_problems: list[tuple[Path, str]] = []
        self._by_log: dict[str, list[tuple[Segment, Chunk]]] | None = None
        self.segments: list[Segment] = []
        self.replaced: list[Segment] = []  # existing files that do not count
        self.missing = Ranges()
        self.problems: list[Problem] = []
        self.lost_chunks: list[Chunk] = []
        self.progress: Callable[[int, int], None] | None = None
        if look:
            self.refresh()

    @property
    def schema(self) -> Schema:
        """Every declared name, with its table or series."""
        return self._schema.schema

    @property
    def clock(self) -> int:
        """The greatest clock of any segment."""
        return max((segment.order[0] for segment in self._loaded.values()), default=0)

    @property
    def broken(self) -> list[str]:
        """The names of segments that cannot be read at all."""
        return list(self._broken)

    @property
    def partly(self) -> list[str]:
        """The names of segments that count, and of which only some chunks can be read."""
        return [segment.name for segment in self.segments if segment.name in self._partly]

    def declare(self, wanted: Callable[[Schema], list[Log]]) -> None:
        """Add names to the schema; see :meth:`SchemaFiles.declare`."""
        self._schema.declare(wanted)

    # -- refreshing -------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """List the folder again; return whether anything is new.

        The catalog changes in one step at the end, and not at all if an exception is raised.

        Raises:
            StoreNotFoundError: the store is gone.
            DamagedStoreError: files are damaged or missing, and are not to be skipped.
        """
        with paused_gc():
            trial = self._copy()
            try:
                changed = trial._refresh()
            except StoreError:
                trial._check_same_store()
                raise
            trial._check_same_store()
            if not changed:
                trial.segments, trial._by_log = self.segments, self._by_log
            self.__dict__ = trial.__dict__
        return changed

    def _check_same_store(self) -> None:
        """Check that no other store has the path; one that is missing or damaged does not count."""
        found = ""
        if not self._looked:  # store.json was read a moment ago
            self._looked = True
            return
        with contextlib.suppress(StoreError, OSError):
            key = self._folder.disk.status(IDENTITY).key
            if key == self._identity_key:
                return
            found = identity_of(self._folder).id
            self._identity_key = key
        if found and self._identity.id and found != self._identity.id:
            self._identity_key = ()
            raise StoreNotFoundError(
                f"The store at {self._folder.path} was removed or replaced by another one after it "
                "was opened. Hint: open it again to read the new one."
            )

    def _copy(self) -> Catalog:
        """Return a copy to change. The schema is shared, because names are only added."""
        trial = copy.copy(self)
        trial._loaded, trial._broken = dict(self._loaded), dict(self._broken)
        trial._partly, trial._fitted = dict(self._partly), set(self._fitted)
        trial._schema_problems = list(self._schema_problems)
        trial.lost_chunks = list(self.lost_chunks)
        return trial

    def _refresh(self) -> bool:
        before = [segment.name for segment in self.segments]
        self._look_until_settled()
        self._schema_problems += self._schema.refresh(self._skip)
        self._schema_problems += self._fit_schema()
        self._by_log = None
        self.problems = [
            *(Problem(self._relative(path), what) for path, what in self._schema_problems),
            *self._broken.values(),
            *(self._partly[s.name] for s in self.segments if s.name in self._partly),
            *_named(self.missing),
        ]
        if self.problems and not self._skip:
            raise damaged_store(self._folder.path, self.problems)
        return [segment.name for segment in self.segments] != before

    def _look_until_settled(self) -> None:
        """List again while segments seem missing: other processes publish and merge."""
        self._look()
        waits, looks = iter(_PATIENCE), 0
        while self.missing and looks < _LOOKS and (wait := next(waits, None)) is not None:
            time.sleep(wait)
            before, looks = self.missing.to_json(), looks + 1
            self._look()
            if self.missing.to_json() != before:  # another process is at work
                waits = iter(_PATIENCE)

    def _relative(self, path: Path) -> str:
        return str(path.relative_to(self._folder.path))

    def _look(self) -> None:
        """List the folder, load new segments, and find missing ones."""
        notes = notes_of(self._folder.disk)  # first, so that a reported segment is then listed
        names = self._load_new()
        self._loaded = {name: s for name, s in self._loaded.items() if name in names}
        self._broken = {name: p for name, p in self._broken.items() if name in names}
        replaced = Ranges.union(s.replaces for s in self._loaded.values())
        self.segments, self.replaced = [], []
        for segment in self._loaded.values():
            counts = not replaced.has(segment.writer, segment.sequence)
            (self.segments if counts else self.replaced).append(segment)
        self.segments.sort(key=lambda segment: segment.order)
        self._broken = {n: p for n, p in self._broken.items() if not replaced.has(*names[n])}
        self._check_replaced()
        there = Ranges.union([Ranges.of(names.values()), replaced])
        last = there.last()
        for writer, note in notes.items():
            last[writer] = max(last.get(writer, 0), note.published)
        self.missing = there.gaps(last)

    def _load_new(self) -> dict[str, tuple[str, int]]:
        """Load new segments; return all that exist."""
        listed = self._folder.names("segments")
        names = {name: parsed for name in listed if (parsed := parse_name(name)) is not None}
        new = [n for n in names if n not in self._loaded and n not in self._broken]
        for done, name in enumerate(sorted(new), 1):
            if not self._load(name):
                del names[name]  # compacted since the listing, or missing
            if self.progress is not None:
                self.progress(done, len(new))
        return names

    def _check_replaced(self) -> None:
        """Check that a replacement also lists what its parts replaced (FORMAT.md, 5.1)."""
        covered = Ranges.union(segment.replaces for segment in self.segments)
        for segment in self.replaced:
            if not covered.has(segment.writer, segment.sequence):
                what = "replaced only by segments that do not count themselves"
                self._broken[segment.name] = Problem(f"segments/{segment.name}", what)

    @property
    def failed(self) -> bool:
        """Whether the last writer to report has reported that its program failed."""
        told = [(note.modified, note.failed) for note in notes_of(self._folder.disk).values()]
        return max(told, default=(0.0, False))[1]

    def _load(self, name: str) -> bool:
        """Read the header of a segment; return whether the file exists."""
        try:
            segment = Segment(self._folder.disk, name, trusting=not self._skip)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except DamagedStoreError as error:
            self._broken[name] = Problem(f"segments/{name}", error.what)
            return True
        if segment.store != self._identity.id and self._identity.id:
            self._broken[name] = Problem(f"segments/{name}", "belongs to another store")
            return True
        try:
            faults = _faults(segment) if self._skip else {}
        except RemovedSegmentError:
            return False
        if faults:
            self._leave_out(segment, faults)
        self._loaded[name] = segment
        return True

    def _leave_out(self, segment: Segment, faults: dict[str, str]) -> None:
        """Keep only the intact chunks of a segment."""
        what = "; ".join(dict.fromkeys(faults.values()))
        self._partly[segment.name] = Problem(f"segments/{segment.name}", what)
        intact = [chunk for chunk in segment.chunks if not faults.keys() & set(chunk.tensors)]
        self.lost_chunks += [chunk for chunk in segment.chunks if chunk not in intact]
        segment.chunks = intact

    def _fit_schema(self) -> list[tuple[Path, str]]:
        """Exclude segments that do not match the schema; if it is damaged, restore it from them."""
        lost: list[tuple[Path, str]] = []
        misfits: set[str] = set()
        kinds: dict[int, tuple[Chunk, ...]] = {}  # whose chunks all match
        for segment in self.segments:
            if segment.name in self._fitted:
                continue
            if kinds.get(id(segment.kind)) is segment.kind:
                self._fitted.add(segment.name)
                continue
            if len(segment.chunks) > _FEW and all_match_schema(self.schema, segment):
                self._fitted.add(segment.name)
                kinds[id(segment.kind)] = segment.kind
                continue
            for chunk in segment.chunks:
                known = [name for name in chunk.names if name in self.schema]
                if not known:  # names are declared first, so a schema file is missing
                    what = self._learn(segment, chunk)
                    if what is None and not self._schema_problems:
                        lost = [(self._schema.next_path, "missing")]
                else:
                    what = schema_mismatch(self.schema[known[0]], segment, chunk)
                if what is not None:
                    misfits.add(segment.name)
                    self._broken[segment.name] = Problem(f"segments/{segment.name}", what)
                    break
            else:
                self._fitted.add(segment.name)
                if len(segment.chunks) == len(segment.kind):
                    kinds[id(segment.kind)] = segment.kind
        if misfits:
            self.segments = [s for s in self.segments if s.name not in misfits]
            self._loaded = {n: s for n, s in self._loaded.items() if n not in misfits}
        return lost

    def _learn(self, segment: Segment, chunk: Chunk) -> str | None:
        """Take the type of a log from a segment; return what is wrong, or None."""
        try:
            self.schema.add(log_of(segment, chunk))
        except ValueError as error:
            return f"has invalid names: {error}"
        return None

    # -- contents ---------------------------------------------------------------------------------

    def chunks(self, name: str) -> list[tuple[Segment, Chunk]]:
        """Return the chunks of a table (by its first name) or series, in order."""
        if self._by_log is None:
            with paused_gc():
                self._by_log = self._grouped()
        return self._by_log.get(name, [])

    def _grouped(self) -> dict[str, list[tuple[Segment, Chunk]]]:
        found: dict[str, list[tuple[Segment, Chunk]]] = {}
        for segment in self.segments:
            for chunk in segment.chunks:
                found.setdefault(chunk.first, []).append((segment, chunk))
        return found

    def table(self, name: str | None) -> Table:
        """Return the table that has ``name``, or the only one.

        Raises:
            UnknownNameError: the store has no such name.
            ArgumentError: the store has several tables, or no table, or the name is of a series.
        """
        if name is None:
            return self._only_table()
        log = self.schema[name]
        if isinstance(log, Series):
            raise ArgumentError(
                f"{name!r} has entries with steps, not rows with ids. Hint: reader.entries(name)"
            )
        return log

    def _only_table(self) -> Table:
        tables = self.schema.tables
        if len(tables) == 1:
            return tables[0]
        listed = ", ".join(repr(table.names[0]) for table in tables)
        raise ArgumentError(
            f"{self._folder.path} has several tables: pass one of the names {listed}."
            if tables
            else f"{self._folder.path} has no rows with ids. Hint: read entries with "
            "reader.entries(name)."
        )

    def ids(
        self, table: Table, without: Collection[str] = (), writer: str | None = None
    ) -> Iterator[tuple[str, np.ndarray | list[str]]]:
        """Yield the ids of a table by segment, except some segments and those of one writer."""
        for segment, chunk in self.chunks(table.names[0]):
            if segment.name not in without and segment.writer != writer:
                assert isinstance(chunk, TableChunk)
                yield segment.name, ids_of(segment, chunk)


def _faults(segment: Segment) -> dict[str, str]:
    """Check every tensor; return what is wrong, by tensor."""
    faults = segment.faults()
    for chunk in segment.chunks:
        if isinstance(chunk, TableChunk) and not faults.keys() & set(chunk.tensors):
            what = id_faults(segment, chunk)
            if what is not None:
                faults[chunk.tensors[-1]] = what
    return faults


def _named(missing: Ranges) -> list[Problem]:
    """Return missing segments as problems; long ranges become one."""
    found: list[Problem] = []
    for writer, first, last in missing:
        if last - first < _FEW and len(found) < 10 * _FEW:
            found += [_lost(file_name(writer, n), "missing") for n in range(first, last + 1)]
        else:
            what = f"missing, and all others up to {file_name(writer, last)}"
            found.append(_lost(file_name(writer, first), what))
    return found


def _lost(name: str, what: str) -> Problem:
    return Problem(f"segments/{name}", what)


def damaged_store(path: Path, problems: list[Problem]) -> DamagedStoreError:
    """Return the error that lists the problems of a store."""
    listed = "".join(f"\n  {problem}" for problem in problems[:10])
    more = f"\n  and {len(problems) - 10} more" if len(problems) > 10 else ""
    return DamagedStoreError(
        f"{path} has {len(problems)} damaged or missing files:{listed}{more}\n"
        "All others are readable. Hint: sawlog verify PATH lists what is lost; open(path, "
        "damaged='skip') reads the rest; sawlog.store.repair(path) removes the damaged files."
    )
