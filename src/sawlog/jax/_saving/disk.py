"""Save and load logdicts, and the sink that writes the logs of one run to a store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sawlog import sinks, store
from sawlog.errors import ArgumentError, ForeignStoreError
from sawlog.jax._logdict.logdict import logdict
from sawlog.jax._saving.metadata import SaveCompatibility, SeriesMetadata
from sawlog.jax._saving.records import from_records, to_records
from sawlog.records import Records

StrPath = str | os.PathLike[str]


def save(
    path: Any,
    logs: Any,
    *,
    exists: str = "error",
    meta: Mapping[str, Any] | None = None,
) -> None:
    """Save logs as a store; :func:`load` returns them bit for bit.

    Args:
        path: the folder to create.
        logs: a :class:`sawlog.logdict`, or a dict of arrays with a leading entry axis. ``path``
            and ``logs`` may be given in either order.
        exists: what to do with an existing store: ``"error"``, ``"append"``, after which loading
            returns the concatenation of both, or ``"replace"``.
        meta: your own metadata, which JSON must be able to hold; read it with
            ``sawlog.store.open(path).meta``.

    Raises:
        ArgumentError: the logs are traced.
        LogValueError: a value has a type that cannot be saved.
        StoreExistsError: the store exists, and ``exists`` is ``"error"``.
        LogMismatchError, SchemaError: the logs cannot be appended to the existing ones.

    >>> import tempfile, jax.numpy as jnp, sawlog
    >>> folder = tempfile.mkdtemp() + "/run"
    >>> sawlog.save(folder, sawlog.logdict({"x": jnp.arange(2.0)}))
    >>> sawlog.save(folder, sawlog.logdict({"x": jnp.arange(3.0)}), exists="append")
    >>> print(sawlog.load(folder)["x"])
    [0. 1. 0. 1. 2.]
    """
    if isinstance(path, Mapping):
        path, logs = logs, path
    for given, what, kinds in ((path, "a path", (str, os.PathLike)), (logs, "logs", Mapping)):
        if not isinstance(given, kinds):
            raise ArgumentError(
                f"save takes a path and logs; got {type(given).__name__} instead of {what}. "
                'Hint: sawlog.save("runs/1", logs)'
            )
    records = to_records(logs)  # before the store is opened: it may fail, and "replace" deletes
    sink = LogSink(path, exists=exists, meta=meta, interval=None)
    try:
        sink.write(records)
    finally:
        sink.close()


def load(path: StrPath) -> logdict:
    """Load the logs that :func:`save` or a logger wrote, as numpy arrays.

    From a store that another program wrote, this loads every series.

    Raises:
        StoreNotFoundError: the path does not exist.
        ForeignStoreError: the path is not a store; for a folder of runs, the message lists them.
        DamagedStoreError: files of the store are missing or changed.
        ArgumentError: the store holds only rows by example id.
    """
    try:
        reader = store.open(path)
    except ForeignStoreError as error:
        raise _with_runs(error, Path(path)) from error
    with reader:
        names = [series.column.name for series in reader.schema.series]
        if not names and reader.names:
            raise ArgumentError(
                f"The store at {path} has rows by example id ({', '.join(reader.names)}) and no "
                "logs with entries. Hint: sawlog.store.open(path) reads rows."
            )
        return from_records(reader.records(names), {name: reader.attrs(name) for name in names})


def _with_runs(error: ForeignStoreError, path: Path) -> ForeignStoreError:
    """Return the error, or one that lists the stores in subfolders."""
    runs = sorted(found.parent.name for found in path.glob("*/store.json"))
    if not runs:
        return error
    listed = ", ".join(runs[:8]) + (", ..." if len(runs) > 8 else "")
    return ForeignStoreError(
        f"{path} is not a store, but the folder of {len(runs)} runs: {listed}. "
        f"Hint: sawlog.load({str(path / runs[0])!r})"
    )


class LogSink(sinks.StoreSink):
    """Write logs of JAX programs to a store; each name must keep one pytree structure.

    Raises:
        StoreExistsError: the run exists and ``exists`` forbids appending, or it was started with
            other metadata.
        LogMismatchError: from ``write``, if entries cannot be appended to the existing ones.
    """

    def __init__(self, path: StrPath, *, exists: str = "append", **options: Any) -> None:
        super().__init__(path, exists=exists, **options)
        self._compatibility = SaveCompatibility()
        self._last: dict[str, Mapping[str, Any]] = {}  # attributes already checked
        if exists == "append" and self._writer.schema:
            try:
                self._read_existing()
            except BaseException:
                self._writer.close()
                raise

    def _read_existing(self) -> None:
        with store.open(self.path) as reader:
            for series in reader.schema.series:
                for _, attrs in reader.attrs(series.column.name):
                    metadata = SeriesMetadata.from_attrs(attrs)
                    self._compatibility.add(series.column.name, metadata)

    def _write(self, records: Records) -> None:
        new = {
            name: SeriesMetadata.from_attrs(entries.attrs)
            for name, entries in records.items()
            if self._last.get(name) is not entries.attrs
        }
        for name, metadata in new.items():
            self._compatibility.check(name, metadata)
        super()._write(records)
        for name, metadata in new.items():
            self._compatibility.add(name, metadata)
            self._last[name] = records[name].attrs
