"""Logdicts on disk: ``save``, ``load``, and the sink that writes one run into a store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sawlog import sinks, store
from sawlog.errors import ArgumentError, ForeignStoreError
from sawlog.jax._logdict.logdict import logdict
from sawlog.jax._saving.metadata import Kinds, Notes
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
    """Save logs as a store; :func:`load` gives them back bit for bit.

    Args:
        path: the folder to make.
        logs: a :class:`sawlog.logdict`, or a dict of arrays with their entries in front. The two
            may also be given the other way round.
        exists: what to do if there is a store already: ``"error"``, ``"append"`` to it, so that
            loading gives the sum of both, or ``"replace"`` it.
        meta: notes of your own that JSON can hold, ``sawlog.store.open(path).meta``.

    Raises:
        ArgumentError: the logs are traced.
        LogValueError: a value is of a kind that cannot be saved.
        StoreExistsError: there is a store, and ``exists`` is ``"error"``.
        LogMismatchError, SchemaError: the logs do not go with those that are there.

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
                f"save takes a path and logs, and got {type(given).__name__} instead of {what}. "
                'Hint: sawlog.save("runs/1", logs)'
            )
    records = to_records(logs)  # first, so that nothing is replaced by what cannot be saved
    sink = LogSink(path, exists=exists, meta=meta, interval=None)
    try:
        sink.write(records)
    finally:
        sink.close()


def load(path: StrPath) -> logdict:
    """The logs that :func:`save` or a logger wrote, with numpy arrays.

    Of a store that other programs wrote, this gives every series.

    Raises:
        StoreNotFoundError: there is nothing.
        ForeignStoreError: there is something else; where it is a folder of runs, names these.
        DamagedStoreError: files of it are missing or changed.
        ArgumentError: the store has rows by example id and nothing else.
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
    """The error, or one that says where there are stores below."""
    runs = sorted(found.parent.name for found in path.glob("*/store.json"))
    if not runs:
        return error
    listed = ", ".join(runs[:8]) + (", ..." if len(runs) > 8 else "")
    return ForeignStoreError(
        f"{path} is not a store, but the folder of {len(runs)} runs: {listed}. "
        f"Hint: sawlog.load({str(path / runs[0])!r})"
    )


class LogSink(sinks.StoreSink):
    """A store of logs of JAX programs: entries of one name must also be of one kind of pytree.

    Raises:
        StoreExistsError: the run exists and may not be appended to, or was started otherwise.
        LogMismatchError: from ``write``, where entries do not go with those that are there.
    """

    def __init__(self, path: StrPath, *, exists: str = "append", **options: Any) -> None:
        super().__init__(path, exists=exists, **options)
        self._kinds = Kinds()
        self._last: dict[str, Mapping[str, Any]] = {}  # what was checked needs no second look
        if exists == "append" and self._writer.schema:
            try:
                self._look()
            except BaseException:
                self._writer.close()
                raise

    def _look(self) -> None:
        with store.open(self.path) as reader:
            for series in reader.schema.series:
                for _, attrs in reader.attrs(series.column.name):
                    self._kinds.add(series.column.name, Notes.from_attrs(attrs))

    def _write(self, records: Records) -> None:
        new = {
            name: Notes.from_attrs(entries.attrs)
            for name, entries in records.items()
            if self._last.get(name) is not entries.attrs
        }
        for name, notes in new.items():
            self._kinds.check(name, notes)
        super()._write(records)
        for name, notes in new.items():
            self._kinds.add(name, notes)
            self._last[name] = records[name].attrs
