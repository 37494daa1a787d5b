"""``Reader``: a snapshot of a store, read through memory maps and checked against checksums."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sawlog import _validate
from sawlog._lifecycle import CloseOnExit
from sawlog._turn import Turn
from sawlog.errors import ArgumentError, StoreClosedError
from sawlog.records import Entries, Records
from sawlog.store._format import _ids
from sawlog.store._format._chunks import Chunk, TableChunk, step_name
from sawlog.store._format._layout import POLICIES, Config, Folder, Identity
from sawlog.store._format._schema import Column, Schema, Series, Table
from sawlog.store._format._segment import Segment
from sawlog.store._maintenance._verify import Progress, VerifyReport, verify
from sawlog.store._reading._blocks import RowBlock, scan
from sawlog.store._reading._catalog import Catalog, Problem
from sawlog.store._reading._dataset import RowDataset
from sawlog.store._reading._join_chunks import joined, merged_attrs, merged_mask
from sawlog.store._reading._table_index import TableIndex


def _joined(tensor: str, chunks: Sequence[tuple[Segment, Chunk]], column: Column) -> np.ndarray:
    """Return a tensor over all these chunks: a view of the file if there is only one."""
    if len(chunks) == 1:
        return chunks[0][0].values(tensor)
    if chunks:
        return joined(chunks, tensor)
    return np.empty((0, *column.shape), column.dtype)


class Reader(CloseOnExit):
    """Reads a store. Created by :func:`sawlog.store.open`.

    A reader shows the store as it was when opened, or at the last :meth:`refresh`, while other
    processes write and compact. Arrays are read-only views of the files where possible. All data is
    checked against its checksum before it is returned; an error names the damaged file.
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
            _validate.one_of("duplicates", duplicates, POLICIES["duplicates"])
        self._folder, self._identity, self._damaged = folder, identity, damaged
        self._own_policy = duplicates
        self._turn = Turn()
        self._closed = False
        self._catalog_now = Catalog(folder, identity, damaged)
        self._indices: tuple[list[Segment], dict[str, TableIndex]] = ([], {})

    # -- the store --------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The folder of the store."""
        return self._folder.path

    @property
    def id(self) -> str:
        """The random id that the store was given when it was created."""
        return self._identity.id

    @property
    def created(self) -> str:
        """When the store was created, in ISO 8601."""
        return self._identity.created

    @property
    def meta(self) -> dict[str, Any]:
        """The ``meta`` that the store was created with."""
        return self._identity.meta

    @property
    def config(self) -> Config:
        """The policies of the store."""
        return self._identity.config

    @property
    def schema(self) -> Schema:
        """The table or series of every name."""
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
        """Whether the writer that was active last reported that its program failed."""
        return self._catalog.failed

    @property
    def problems(self) -> list[Problem]:
        """The damaged and missing files that were skipped."""
        return list(self._catalog.problems)

    @property
    def nbytes(self) -> int:
        """The size of all segments on disk, in bytes."""
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
        """Return the number of rows or entries of a name."""
        log = self.schema[name]
        if isinstance(log, Table) and (keep := self._indexed(log).keep) is not None:
            return int(keep.sum())
        return sum(chunk.rows for _, chunk in self._chunks(log))

    def refresh(self) -> bool:
        """Read what was published since; return whether anything is new.

        If it raises, the reader still shows what it showed before.

        Raises:
            StoreNotFoundError: the store is gone, or another one has its path.
            DamagedStoreError: files are damaged or missing.
        """
        with self._turn.taken():
            return self._catalog.refresh()

    def _chunks(self, log: Table | Series) -> list[tuple[Segment, Chunk]]:
        return self._catalog.chunks(log.names[0])

    # -- rows -------------------------------------------------------------------------------------

    def _indexed(self, table: Table) -> TableIndex:
        """Return the chunks and the id index of a table, both of the current snapshot."""
        with self._turn.taken():
            catalog, key = self._catalog, table.names[0]
            segments, found = self._indices
            if segments is not catalog.segments:
                segments, found = catalog.segments, {}
                self._indices = (segments, found)
            if key not in found:
                chunks = [(s, c) for s, c in catalog.chunks(key) if isinstance(c, TableChunk)]
                policy = self._own_policy or self.config.duplicates
                found[key] = TableIndex.of(table, chunks, policy)
            return found[key]

    def ids(self, name: str | None = None) -> Any:
        """Return the example ids of a table in the order written: int64 array or strings.

        Raises:
            ArgumentError: the store has several tables, and ``name`` is None.
            DuplicateIdError: an id is stored twice, and the policy is ``"error"``.
        """
        return self._indexed(self._catalog.table(name)).ids()

    def gather(self, ids: Any, names: str | Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """Return the rows of these ids, in this order; an id may occur more than once.

        Raises:
            UnknownIdError: some ids are not stored.
            UnknownNameError: the store has no such name.
        """
        wanted = _ids.normalize_ids(ids)
        out: dict[str, np.ndarray] = {}
        for table, own in self._by_table(names):
            indexed = self._indexed(table)
            columns = {name: self.schema.column(name) for name in own}
            out.update(indexed.take(columns, indexed.find(wanted, self.path)))
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
                f"{who} reads names of one table; got names of {len(groups)}: {listed}. "
                "Hint: read one table, and gather(ids, names) from the other."
            )
        return groups[0]

    def blocks(
        self,
        names: str | Iterable[str] | None = None,
        *,
        budget: int = 64 << 20,
        rows: int | None = None,
        read_ahead: bool = True,
        part: tuple[int, int] = (0, 1),
    ) -> Iterator[RowBlock]:
        """Iterate over all rows of a table in order, in blocks of ids and values.

        Values are views of the files. A block that is kept takes no memory until it is read again.

        Args:
            names: names of one table; all of its names if None.
            budget: memory in bytes, for the rows that are read together and those that are read
                ahead.
            rows: number of rows of a block at most; as many as have 4 MB if None. The budget and
                the sizes of the files can make blocks smaller.
            read_ahead: read and check the next rows in a thread.
            part: ``(i, n)`` selects the i-th of ``n`` parts, for several processes. Each file is in
                exactly one part, and the parts in order give all rows in order.

        Raises:
            ArgumentError: the names are of several tables, or ``part`` is not within ``n``.
        """
        if budget < 1:
            _validate.refuse("budget", "a positive number of bytes", budget)
        if rows is not None and rows < 1:
            _validate.refuse("rows", "a positive number of rows, or None", rows)
        number, parts = part
        if not 0 <= number < parts:
            _validate.refuse("part", "(i, n) with i from 0 to n - 1", part)
        table, own = self._of_one_table(names, "blocks()")

        def unread() -> Iterator[Any]:  # the table is indexed when the first block is read
            yield from self._indexed(table).unread_rows(own, int(budget), rows, number, parts)

        return scan(unread(), read_ahead)

    def dataset(
        self, names: str | Iterable[str] | None = None, *, torch: bool = False
    ) -> RowDataset:
        """Return the rows of a table as a map-style dataset for torch's ``DataLoader``.

        With ``torch=True`` values are tensors, bfloat16 and float8 included. Otherwise they are
        numpy arrays, which the loader converts when it collates.
        """
        table, own = self._of_one_table(names, "dataset()")
        return RowDataset(self, table.names[0], tuple(own), torch)

    # -- entries ----------------------------------------------------------------------------------

    def read(self, name: str) -> np.ndarray:
        """Return all rows or values of a name as one array: a view if one file holds them all."""
        log, column = self.schema[name], self.schema.column(name)
        if not isinstance(log, Table):
            return _joined(name, self._chunks(log), column)
        indexed = self._indexed(log)
        rows = _joined(name, indexed.chunks, column)
        return rows if indexed.keep is None else rows[indexed.keep]

    def entries(self, name: str) -> Entries:
        """Return all entries of a series: values, steps, mask, and the attrs of the first entry.

        Raises:
            UnknownNameError: the store has no such name.
            ArgumentError: the name is of a table.
        """
        log = self.schema[name]
        if isinstance(log, Table):
            raise ArgumentError(
                f"{name!r} has rows with ids, not entries with steps. "
                "Hint: reader.gather(ids), reader.blocks() or reader.read(name)"
            )
        chunks = self._chunks(log)  # once, so that all parts are of the same snapshot
        values = _joined(name, chunks, log.column)
        steps = {s.name: _joined(step_name(s.name, name), chunks, s) for s in log.steps}
        runs = merged_attrs(chunk for _, chunk in chunks)
        return Entries(values, steps, merged_mask(name, chunks), runs[0][1] if runs else {})

    def attrs(self, name: str) -> list[tuple[int, dict[str, Any]]]:
        """Return the attrs of a series as runs ``(number of entries, attrs)``, in order."""
        return merged_attrs(chunk for _, chunk in self._chunks(self.schema[name]))

    def records(self, names: Iterable[str] | None = None) -> Records:
        """Return the entries of these series, or of all."""
        chosen = [series.column.name for series in self.schema.series] if names is None else names
        return Records({name: self.entries(name) for name in chosen})

    # -- other formats ----------------------------------------------------------------------------

    def to_arrow(self, names: str | Iterable[str] | None = None, *, long: bool = False) -> Any:
        """Return entries, or the rows of a table, as a ``pyarrow.Table``."""
        from sawlog.store._views import _frames

        return _frames.to_arrow(self, names, long=long)

    def to_pandas(self, names: str | Iterable[str] | None = None, *, long: bool = False) -> Any:
        """Return entries, or the rows of a table, as a ``pandas.DataFrame``."""
        from sawlog.store._views import _frames

        return _frames.to_pandas(self, names, long=long)

    def to_polars(self, names: str | Iterable[str] | None = None, *, long: bool = False) -> Any:
        """Return entries, or the rows of a table, as a ``polars.DataFrame``."""
        from sawlog.store._views import _frames

        return _frames.to_polars(self, names, long=long)

    def export(self, target: str | os.PathLike[str], **options: Any) -> list[Path]:
        """Write logs in another format; see :func:`sawlog.store.export`."""
        from sawlog.store._views._export import export

        return export(self, target, **options)

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Check every file of the store as it is now; see :func:`sawlog.store.verify`."""
        return verify(self.path, progress)

    # -- closing ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Release the files. Arrays that were returned stay valid."""
        self._closed = True
        self._indices = ([], {})

    def __reduce__(self) -> Any:
        from sawlog.store import _open_reader

        return _open_reader, (str(self.path), self._damaged, self._own_policy)
