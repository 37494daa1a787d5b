"""``Reader``: a snapshot of a store, through memory maps, every value checked first."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from sawlog._turn import Turn
from sawlog.errors import ArgumentError, SchemaError, StoreClosedError, UnknownIdError
from sawlog.records import Entries, Records
from sawlog.store import _ids
from sawlog.store._blocks import Block, Piece, rows_within, scan
from sawlog.store._catalog import Catalog, Problem
from sawlog.store._chunks import Chunk, TableChunk
from sawlog.store._dataset import RowDataset
from sawlog.store._layout import Config, Folder, Identity, check_choice
from sawlog.store._merge import joined, merged_attrs, merged_mask
from sawlog.store._schema import Column, Schema, Series, Table
from sawlog.store._segment import Segment, step_name
from sawlog.store._stored_ids import ids_of, stored_ids
from sawlog.store._verify import Progress, Report, verify

T = TypeVar("T")
_WORTH_THREADS = 8 << 20  # bytes


def for_each(work: Callable[[T], None], items: Iterable[T], nbytes: int) -> None:
    """Do the work for every item, in threads where there is enough of it."""
    if nbytes < _WORTH_THREADS:
        for item in items:
            work(item)
        return
    threads = min(4, os.cpu_count() or 1)
    with concurrent.futures.ThreadPoolExecutor(threads, "sawlog-gather") as pool:
        for done in [pool.submit(work, item) for item in items]:
            done.result()


def _joined(tensor: str, chunks: Sequence[tuple[Segment, Chunk]], column: Column) -> np.ndarray:
    """A tensor of all these chunks: a view of the file where there is one of them."""
    if len(chunks) == 1:
        return chunks[0][0].values(tensor)
    if chunks:
        return joined(chunks, tensor)
    return np.empty((0, *column.shape), column.dtype)


@dataclasses.dataclass(frozen=True)
class Indexed:
    """The chunks of a table, and where in them each id is."""

    chunks: list[tuple[Segment, TableChunk]]
    index: _ids.Index


class Reader:
    """Reads a store. Made by :func:`sawlog.store.open`.

    It shows the store as it was when opened, or at the last :meth:`refresh`, while others may go
    on writing and compacting. Arrays are read-only views of the files where possible. What is
    returned was checked against its checksum; a damaged file is an error that names it.
    """

    def __init__(
        self,
        folder: Folder,
        identity: Identity,
        *,
        damaged: str = "error",
        duplicates: str | None = None,
    ) -> None:
        if duplicates is not None:
            check_choice("duplicates", duplicates, ("error", "first", "replace"))
        self._folder, self._identity, self._damaged = folder, identity, damaged
        self._own_policy = duplicates
        self._turn = Turn()
        self._closed = False
        self._catalog_now = Catalog(folder, identity, damaged)
        self._indices: tuple[list[Segment], dict[str, Indexed]] = ([], {})

    # -- what there is ----------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The folder of the store."""
        return self._folder.path

    @property
    def id(self) -> str:
        """The name that the store was given when it was created."""
        return self._identity.id

    @property
    def created(self) -> str:
        """When it was created, as ISO 8601."""
        return self._identity.created

    @property
    def meta(self) -> dict[str, Any]:
        """What was noted when it was created."""
        return self._identity.meta

    @property
    def config(self) -> Config:
        """Its policies."""
        return self._identity.config

    @property
    def schema(self) -> Schema:
        """Every name with its table or series."""
        return self._catalog.schema

    @property
    def names(self) -> tuple[str, ...]:
        """Every name."""
        return tuple(self.schema)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments in order."""
        return tuple(self._catalog.segments)

    @property
    def failed(self) -> bool:
        """Whether the writer that was at work last ended by saying that its program failed."""
        return self._catalog.failed

    @property
    def problems(self) -> list[Problem]:
        """What was left out because it is damaged or missing."""
        return list(self._catalog.problems)

    @property
    def nbytes(self) -> int:
        """The size of all segments on disk."""
        return sum(segment.nbytes for segment in self.segments)

    @property
    def _catalog(self) -> Catalog:
        if self._closed:
            raise StoreClosedError(f"This reader of {self.path} is closed. Hint: open it again.")
        return self._catalog_now

    def __repr__(self) -> str:
        return (
            f"Reader({str(self.path)!r}, {len(self.schema)} names, {len(self.segments)} segments)"
        )

    def count(self, name: str) -> int:
        """How many rows or entries a name has."""
        log = self.schema[name]
        if isinstance(log, Table) and (dropped := self._indexed(log).index.superseded) is not None:
            return int((~dropped).sum())
        return sum(chunk.rows for _, chunk in self._chunks(log))

    def refresh(self) -> bool:
        """Take in what was published since; says whether there is anything new.

        Where it raises, the reader shows what it showed before.
        """
        with self._turn.taken():
            return self._catalog.refresh()

    def _chunks(self, log: Table | Series) -> list[tuple[Segment, Chunk]]:
        return self._catalog.chunks(log.names[0])

    # -- rows -------------------------------------------------------------------------------------

    def _indexed(self, table: Table) -> Indexed:
        """The chunks of a table with the index of their ids: of the same moment, always."""
        with self._turn.taken():
            catalog, key = self._catalog, table.names[0]
            segments, found = self._indices
            if segments is not catalog.segments:
                segments, found = catalog.segments, {}
                self._indices = (segments, found)
            if key not in found:
                chunks = [(s, c) for s, c in catalog.chunks(key) if isinstance(c, TableChunk)]
                ids = [stored_ids(segment, chunk) for segment, chunk in chunks]
                policy = self._own_policy or self.config.duplicates
                found[key] = Indexed(chunks, _ids.Index(ids, policy, repr(key)))
            return found[key]

    def ids(self, name: str | None = None) -> Any:
        """The example ids of a table in the order they were written: int64 array or strings.

        Raises:
            ArgumentError: there are several tables and no name was given.
            DuplicateIdError: ids are there twice and the store refuses that.
        """
        table = self._catalog.table(name)
        indexed = self._indexed(table)
        parts = [ids_of(segment, chunk) for segment, chunk in indexed.chunks]
        dropped = indexed.index.superseded
        keep = None if dropped is None else ~dropped
        if table.ids == "str":
            texts = [text for part in parts for text in part]
            return texts if keep is None else [t for t, k in zip(texts, keep, strict=True) if k]
        whole = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        return whole if keep is None else whole[keep]

    def gather(self, ids: Any, names: str | Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """The rows of these ids, in this order; an id may be asked for twice.

        Raises:
            UnknownIdError: ids are not there.
            UnknownNameError: a name is not there.
        """
        wanted = _ids.normal(ids)
        out: dict[str, np.ndarray] = {}
        for table, own in self._by_table(names):
            indexed = self._indexed(table)
            rows = self._find(table, indexed.index, wanted)
            out.update(self._take(indexed, own, rows))
        return out

    def _by_table(self, names: str | Iterable[str] | None) -> list[tuple[Table, list[str]]]:
        if names is None:
            table = self._catalog.table(None)
            return [(table, list(table.names))]
        groups: dict[Table, list[str]] = {}
        for name in [names] if isinstance(names, str) else names:
            groups.setdefault(self._catalog.table(name), []).append(name)
        return list(groups.items())

    def _of_one_table(self, names: str | Iterable[str] | None, who: str) -> tuple[Table, list[str]]:
        groups = self._by_table(names)
        if len(groups) != 1:
            listed = " and ".join(", ".join(map(repr, own)) for _, own in groups) or "none"
            raise ArgumentError(
                f"{who} reads the names of one table, and these are not: {listed}. "
                "Hint: go through one table, and gather(ids, names) from the other."
            )
        return groups[0]

    def _find(self, table: Table, index: _ids.Index, wanted: np.ndarray | list[str]) -> np.ndarray:
        if len(wanted) and _ids.kind_of(wanted) != table.ids:
            raise SchemaError(
                f"{table.names[0]!r} has ids of the kind {table.ids!r}, and these are not: "
                f"{_ids.some(wanted)}."
            )
        rows = index.find(wanted if len(wanted) else np.zeros(0, np.int64))
        lost = np.flatnonzero(rows < 0)
        if len(lost):
            raise UnknownIdError(
                f"{self.path} has no {table.names[0]!r} for {len(lost)} of {len(rows)} ids: "
                f"{_ids.some([wanted[i] for i in lost[:6]])}. Hint: reader.ids() lists those there "
                "are; refresh() takes in what was published since."
            )
        return rows

    def _take(
        self, indexed: Indexed, names: Sequence[str], rows: np.ndarray
    ) -> dict[str, np.ndarray]:
        chunks, index = indexed.chunks, indexed.index
        columns = {name: self.schema.column(name) for name in names}
        out = {n: np.empty((len(rows), *c.shape), c.dtype) for n, c in columns.items()}

        def copy(part: tuple[int, np.ndarray, np.ndarray]) -> None:
            number, where, own = part
            for name, array in out.items():
                array[where] = chunks[number][0].take(name, own)

        for_each(copy, index.split(rows), sum(array.nbytes for array in out.values()))
        return out

    def blocks(
        self,
        names: str | Iterable[str] | None = None,
        *,
        budget: int = 64 << 20,
        read_ahead: bool = True,
        part: tuple[int, int] = (0, 1),
    ) -> Iterator[Block]:
        """All rows of a table in order, in blocks of ids and values.

        ``budget`` bounds the memory, in bytes: of the block at hand and the one that is read ahead.
        Values are views of the files: keeping one is free of charge until it is looked at again.
        ``names`` are all of one table. ``part=(i, n)`` gives the i-th of ``n`` parts, for several
        processes: a file is in one of them as a whole, and the parts, one after the other, are all
        rows in order.

        Raises:
            ArgumentError: the names are of several tables.
        """
        if budget < 1:
            raise ArgumentError(f"budget is a number of bytes, not {budget!r}")
        place, parts = part
        if not 0 <= place < parts:
            raise ArgumentError(f"part=(i, n) has i from 0 to n - 1, not {part!r}")
        table, own = self._of_one_table(names, "blocks()")
        return scan(self._pieces(table, tuple(own), int(budget), place, parts), read_ahead)

    def _pieces(
        self, table: Table, names: tuple[str, ...], budget: int, place: int, parts: int
    ) -> Iterator[Piece]:
        indexed = self._indexed(table)
        index, chunks = indexed.index, indexed.chunks
        for number, (segment, chunk) in enumerate(chunks):
            if number * parts // len(chunks) != place:
                continue
            ids, first = stored_ids(segment, chunk), int(index.starts[number])
            step = rows_within(segment, names, budget)
            for start in range(0, chunk.rows, step):
                stop = min(chunk.rows, start + step)
                old = index.superseded
                old = None if old is None else old[first + start : first + stop]
                yield Piece(segment, ids, names, start, stop, old)

    def dataset(
        self, names: str | Iterable[str] | None = None, *, torch: bool = False
    ) -> RowDataset:
        """The rows of a table as a dataset for torch's ``DataLoader``: length, and row by number.

        With ``torch=True`` the values are tensors, bfloat16 and float8 included; otherwise numpy
        arrays, which the loader makes tensors of when it collates.
        """
        table, own = self._of_one_table(names, "dataset()")
        return RowDataset(self, table.names[0], tuple(own), torch)

    # -- entries ----------------------------------------------------------------------------------

    def read(self, name: str) -> np.ndarray:
        """All rows or values of a name as one array: a view of the file where one has them all."""
        log, column = self.schema[name], self.schema.column(name)
        if not isinstance(log, Table):
            return _joined(name, self._chunks(log), column)
        indexed = self._indexed(log)
        rows = _joined(name, indexed.chunks, column)
        dropped = indexed.index.superseded
        return rows if dropped is None else rows[~dropped]

    def entries(self, name: str) -> Entries:
        """All entries of a series: values, steps, mask; with the notes of the first of them.

        Raises:
            UnknownNameError: there is no such name.
            ArgumentError: it is the name of a table.
        """
        log = self.schema[name]
        if isinstance(log, Table):
            raise ArgumentError(
                f"{name!r} has rows with ids, not entries with steps. "
                "Hint: reader.gather(ids), reader.blocks() or reader.read(name)"
            )
        chunks = self._chunks(log)  # once: all of it is of the same moment
        values = _joined(name, chunks, log.column)
        steps = {s.name: _joined(step_name(s.name, name), chunks, s) for s in log.steps}
        runs = merged_attrs(chunk for _, chunk in chunks)
        return Entries(values, steps, merged_mask(name, chunks), runs[0][1] if runs else {})

    def attrs(self, name: str) -> list[tuple[int, dict[str, Any]]]:
        """The notes of a series: with the first so many entries, with the next, and so on."""
        return merged_attrs(chunk for _, chunk in self._chunks(self.schema[name]))

    def records(self, names: Iterable[str] | None = None) -> Records:
        """The entries of every series, or of those named."""
        chosen = [series.column.name for series in self.schema.series] if names is None else names
        return Records({name: self.entries(name) for name in chosen})

    # -- elsewhere -----------------------------------------------------------------------------

    def to_arrow(self, names: str | Iterable[str] | None = None, *, long: bool = False) -> Any:
        """Entries, or the rows of a table, as a ``pyarrow.Table``."""
        from sawlog.store._views import _frames

        return _frames.to_arrow(self, names, long=long)

    def to_pandas(self, names: str | Iterable[str] | None = None, *, long: bool = False) -> Any:
        """Entries, or the rows of a table, as a ``pandas.DataFrame``."""
        from sawlog.store._views import _frames

        return _frames.to_pandas(self, names, long=long)

    def to_polars(self, names: str | Iterable[str] | None = None, *, long: bool = False) -> Any:
        """Entries, or the rows of a table, as a ``polars.DataFrame``."""
        from sawlog.store._views import _frames

        return _frames.to_polars(self, names, long=long)

    def export(self, target: str | os.PathLike[str], **options: Any) -> list[Path]:
        """Write logs in another format; as :func:`sawlog.store.export`."""
        from sawlog.store._views._export import export

        return export(self, target, **options)

    def verify(self, progress: Progress | None = None) -> Report:
        """Check every file of the store as it is now; as :func:`sawlog.store.verify`."""
        return verify(self.path, progress)

    # -- life -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the files. Arrays that were returned stay valid."""
        self._closed = True
        self._indices = ([], {})

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        from sawlog.store import _open_reader

        return _open_reader, (str(self.path), self._damaged, self._own_policy)
