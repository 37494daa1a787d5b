"""Stores: logs on disk that survive anything.

>>> import tempfile, numpy as np, sawlog.store
>>> path = tempfile.mkdtemp() + "/run"
>>> with sawlog.store.create(path) as writer:
...     writer.log({"loss": 0.5}, step=0)
...     _ = writer.append([10, 11], {"grad": np.ones((2, 3), np.float32)})
>>> reader = sawlog.store.open(path)
>>> reader.entries("loss").values, reader.gather([11])["grad"]
(array([0.5]), array([[1., 1., 1.]], dtype=float32))

A store is a folder of safetensors files; FORMAT.md, beside this file, says exactly of what kind.
Nothing here needs jax or torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, overload

from sawlog.errors import ArgumentError, StoreExistsError
from sawlog.store._blocks import Block as Block
from sawlog.store._catalog import Catalog
from sawlog.store._catalog import Problem as Problem
from sawlog.store._compact import Compaction as Compaction
from sawlog.store._compact import compact as compact
from sawlog.store._dataset import RowDataset as RowDataset
from sawlog.store._files import check_json, explained
from sawlog.store._layout import (
    Config,
    Folder,
    check_choice,
    declare_store,
    identity_of,
    is_store,
)
from sawlog.store._reader import Reader as Reader
from sawlog.store._removal import InUse, replace_stores
from sawlog.store._repair import repair as repair
from sawlog.store._schema import Column as Column
from sawlog.store._schema import Log, Schema
from sawlog.store._schema import Series as Series
from sawlog.store._schema import Table as Table
from sawlog.store._unmade import Unmade as Unmade
from sawlog.store._verify import Report as Report
from sawlog.store._verify import salvaged_identity
from sawlog.store._verify import verify as verify
from sawlog.store._views._export import export as export
from sawlog.store._writer import Writer as Writer

__all__ = [
    "Block",
    "Column",
    "Compaction",
    "Problem",
    "Reader",
    "Report",
    "RowDataset",
    "Series",
    "Table",
    "Unmade",
    "Writer",
    "compact",
    "create",
    "export",
    "open",
    "repair",
    "verify",
]


def create(
    path: str | os.PathLike[str],
    *,
    schema: Iterable[Table | Series] | None = None,
    duplicates: str = "error",
    nan: str = "allow",
    exists: str = "error",
    meta: Mapping[str, Any] | None = None,
    **options: Any,
) -> Writer:
    """Make a store and return its writer.

    Args:
        path: its folder; parents are made as needed.
        schema: tables and series with their names, dtypes and shapes. With it no other names are
            taken; without it the first write of a name fixes its type.
        duplicates: what a second row with the same id means: ``"error"``, keep the ``"first"``,
            or ``"replace"`` it.
        nan: whether values that are not numbers are taken: ``"allow"``, ``"warn"``, ``"error"``.
        exists: what to do if a store is there: ``"error"``, ``"append"`` to it (its own policies
            hold), or ``"replace"`` it. Processes that start together all use ``"append"``.
        meta: notes that JSON can hold, kept in ``store.json``.
        options: as for :func:`open` in append mode.

    Raises:
        StoreExistsError, StorePermissionError, StoreFullError, ForeignStoreError.
    """
    check_choice("exists", exists, ("error", "append", "replace"))
    if not isinstance(meta or {}, Mapping):
        raise ArgumentError(f"meta is a dict of notes, not {meta!r:.80}")
    notes = dict(meta or {})
    check_json(notes, "meta")
    logs = None if schema is None else list(schema)
    config = Config(duplicates, nan, logs is not None)
    folder = Folder(Path(path))
    _clear_the_way(folder.path, exists)
    folder.make()
    made = declare_store(folder, config, notes)
    if not made and exists == "error":
        raise _exists(folder.path)
    if logs is not None:
        _declare(folder, logs)
    return _open_writer(folder, "error", options)


def _clear_the_way(path: Path, exists: str) -> None:
    if not is_store(path):
        disk = Folder(path).disk
        if disk.occupied() and (not disk.exists() or disk.list()):
            _refuse_foreign(path)
    elif exists == "error":
        raise _exists(path)
    elif exists == "replace":
        replace_stores(lambda: [path] if is_store(path) else [], f"Replacing {path}")


def _refuse_foreign(path: Path) -> None:
    """A folder with other things in it is left alone, unless a store is just being made there."""
    ours = {"schema", "segments", "writers", "tmp", "store.json"}
    disk = Folder(path).disk
    if disk.exists() and set(disk.list()) <= ours:
        return
    raise StoreExistsError(
        f"{path} exists and is not a sawlog store. Hint: give a folder that is new or empty."
    )


def _exists(path: Path) -> StoreExistsError:
    return StoreExistsError(
        f"There is a store at {path} already. Hint: exists='append' goes on with it, "
        "exists='replace' deletes it first; sawlog show PATH says what is in it."
    )


def _declare(folder: Folder, logs: list[Log]) -> None:
    catalog = Catalog(folder, identity_of(folder))

    def wanted(schema: Schema) -> list[Log]:
        return [log for log in logs if not all(n in schema and schema[n] == log for n in log.names)]

    catalog.declare(wanted)


@overload
def open(path: str | os.PathLike[str], mode: Literal["read"] = ..., **options: Any) -> Reader: ...
@overload
def open(path: str | os.PathLike[str], mode: Literal["append"], **options: Any) -> Writer: ...
def open(
    path: str | os.PathLike[str],
    mode: Literal["read", "append"] = "read",
    *,
    damaged: str = "error",
    duplicates: str | None = None,
    **options: Any,
) -> Reader | Writer:
    """Open a store to read it, or to go on writing.

    Args:
        path: its folder.
        mode: ``"read"`` gives a :class:`Reader`, ``"append"`` a :class:`Writer`.
        damaged: with ``"skip"``, files that are damaged or missing are left out;
            ``reader.problems`` says which. Otherwise they are an error.
        duplicates: for reading, which row of an id counts, if not as the store says.
        options: for appending. ``segment_bytes``: how large a segment grows before it is published
            (32 MiB). ``queue``: how many may wait for the disk before the program waits (2).
            ``interval``: seconds after which anything pending is published by itself (1), or None;
            later where publishing would take more than a twentieth of the time, at most after 30.
            ``merge``: whether small segments are merged as they come (True).

    Raises:
        StoreNotFoundError, ForeignStoreError, NewerStoreError, DamagedStoreError,
        StorePermissionError.
    """
    check_choice("mode", mode, ("read", "append"))
    folder = Folder(Path(path))
    if mode == "append":
        return _open_writer(folder, damaged, options)
    if options:
        raise TypeError(f"open(path) for reading has no option {', '.join(options)}")
    return _open_reader(folder.path, damaged, duplicates)


def _open_reader(path: str | Path, damaged: str, duplicates: str | None) -> Reader:
    folder = Folder(Path(path))
    identity = salvaged_identity(folder) if damaged == "skip" else identity_of(folder)
    return Reader(folder, identity, damaged=damaged, duplicates=duplicates)


def _open_writer(folder: Folder, damaged: str, options: dict[str, Any]) -> Writer:
    identity = identity_of(folder)
    if not folder.disk.writable():
        error = PermissionError(13, "the folder is read-only")
        raise explained(error, "opening for appending", folder.path)
    in_use = InUse(folder)
    try:
        identity = identity_of(folder)  # it may just have been replaced
        InUse.written.add(identity.id)
        folder.make()
        catalog = Catalog(folder, identity, damaged)
        return Writer(folder, identity, catalog, in_use=in_use, **options)
    except BaseException:
        in_use.release()
        raise
