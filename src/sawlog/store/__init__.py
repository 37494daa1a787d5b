"""Stores: logs on disk that survive crashes.

>>> import tempfile, numpy as np, sawlog.store
>>> path = tempfile.mkdtemp() + "/run"
>>> with sawlog.store.create(path) as writer:
...     writer.log({"loss": 0.5}, step=0)
...     _ = writer.append([10, 11], {"grad": np.ones((2, 3), np.float32)})
>>> reader = sawlog.store.open(path)
>>> reader.entries("loss").values, reader.gather([11])["grad"]
(array([0.5]), array([[1., 1., 1.]], dtype=float32))

A store is a folder of safetensors files; FORMAT.md, beside this file, specifies them. Nothing here
needs jax or torch.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, overload

from sawlog import _validate
from sawlog.errors import StoreExistsError
from sawlog.store._format._json_files import check_json, write_error
from sawlog.store._format._layout import (
    FOLDERS,
    Config,
    Folder,
    declare_store,
    identity_of,
    is_store,
)
from sawlog.store._format._schema import Column as Column
from sawlog.store._format._schema import Log, Schema
from sawlog.store._format._schema import Series as Series
from sawlog.store._format._schema import Table as Table
from sawlog.store._maintenance._compact import Compaction as Compaction
from sawlog.store._maintenance._compact import compact as compact
from sawlog.store._maintenance._remove import InUse, replace_stores
from sawlog.store._maintenance._repair import repair as repair
from sawlog.store._maintenance._verify import VerifyReport as VerifyReport
from sawlog.store._maintenance._verify import salvaged_identity
from sawlog.store._maintenance._verify import verify as verify
from sawlog.store._reading._blocks import RowBlock as RowBlock
from sawlog.store._reading._catalog import Catalog
from sawlog.store._reading._catalog import Problem as Problem
from sawlog.store._reading._dataset import RowDataset as RowDataset
from sawlog.store._reading._reader import Reader as Reader
from sawlog.store._views._export import export as export
from sawlog.store._writing._deferred_rows import DeferredRows as DeferredRows
from sawlog.store._writing._writer import Writer as Writer

_LOOKS = 3  # at a folder that may become a store

__all__ = [
    "Column",
    "Compaction",
    "DeferredRows",
    "Problem",
    "Reader",
    "RowBlock",
    "RowDataset",
    "Series",
    "Table",
    "VerifyReport",
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
    """Create a store and return its writer.

    Args:
        path: the folder of the store; parents are created as needed.
        schema: tables and series with their names, dtypes and shapes. The store then refuses other
            names. Without a schema, the first write of a name fixes its type.
        duplicates: what to do with a second row of the same id: ``"error"`` refuses it,
            ``"first"`` keeps the first row, ``"replace"`` keeps the last.
        nan: what to do with NaN values: ``"allow"``, ``"warn"`` or ``"error"``.
        exists: what to do if the store exists: ``"error"``, ``"append"`` to it (its own policies
            apply), or ``"replace"`` it. Processes that start together all use ``"append"``.
        meta: a dict of JSON values, saved in ``store.json``.
        options: options of the writer, see :func:`open`.

    Raises:
        StoreExistsError: the store exists, or the folder contains other files.
        StorePermissionError, StoreFullError, StoreWriteError: the disk refuses.
        ForeignStoreError: ``store.json`` is not that of a sawlog store.
    """
    _validate.one_of("exists", exists, ("error", "append", "replace"))
    if not isinstance(meta or {}, Mapping):
        _validate.refuse("meta", "a dict of JSON values", meta)
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
        # Other processes may finish creating it, or replace it, between two looks.
        if all(_is_foreign(path) and not is_store(path) for _ in range(_LOOKS)):
            raise StoreExistsError(
                f"{path} exists and is not a sawlog store. Hint: choose a new or empty folder."
            )
    elif exists == "error":
        raise _exists(path)
    elif exists == "replace":
        replace_stores(lambda: [path] if is_store(path) else [], f"Replacing {path}")


def _is_foreign(path: Path) -> bool:
    """Return whether a path is neither free, nor an empty folder, nor a store in creation."""
    disk = Folder(path).disk
    try:
        return disk.occupied() and (not disk.exists() or not {*FOLDERS}.issuperset(disk.list()))
    except OSError as error:
        raise write_error(error, "creating", path, new=True) from error


def _exists(path: Path) -> StoreExistsError:
    return StoreExistsError(
        f"A store exists at {path} already. Hint: exists='append' continues it, "
        "exists='replace' deletes it first; sawlog show PATH shows its contents."
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
    """Open a store for reading, or for appending.

    Args:
        path: the folder of the store.
        mode: ``"read"`` returns a :class:`Reader`, ``"append"`` a :class:`Writer`.
        damaged: ``"skip"`` leaves out files that are damaged or missing, and lists them in
            ``reader.problems``. ``"error"`` raises.
        duplicates: for reading: a policy that overrides that of the store.
        options: for appending:

            - ``segment_bytes`` (32 MiB): the size at which a segment is published.
            - ``queue`` (2): how many segments may wait for the disk before calls block.
            - ``interval`` (1): seconds after which pending data is published, or None. The interval
              grows, up to 30 seconds, if publishing would take more than 5% of the time.
            - ``merge`` (True): merge small segments in the background.

    Raises:
        StoreNotFoundError: no store exists at ``path``.
        ForeignStoreError: ``path`` is something else.
        NewerStoreError: the store was written in a newer version of the format.
        DamagedStoreError: files are damaged or missing.
        StorePermissionError: the store cannot be read, or not be written to.
        StoreReadError: the system failed to read a file, which may be intact.
    """
    _validate.one_of("mode", mode, ("read", "append"))
    folder = Folder(Path(path))
    if mode == "append":
        return _open_writer(folder, damaged, options)
    if options:
        raise TypeError(f"open(path) for reading does not take {', '.join(options)}")
    return _open_reader(folder.path, damaged, duplicates)


def _open_reader(path: str | Path, damaged: str, duplicates: str | None) -> Reader:
    folder = Folder(Path(path))
    identity = salvaged_identity(folder) if damaged == "skip" else identity_of(folder)
    return Reader(folder, identity, damaged=damaged, duplicates=duplicates)


def _open_writer(folder: Folder, damaged: str, options: dict[str, Any]) -> Writer:
    identity = identity_of(folder)
    if not folder.disk.writable():
        error = PermissionError(13, "the folder is read-only")
        raise write_error(error, "opening for appending", folder.path)
    in_use = InUse(folder)
    try:
        identity = identity_of(folder)  # again: another process may have replaced the store
        InUse.written.add(identity.id)
        folder.make()
        catalog = Catalog(folder, identity, damaged)
        return Writer(folder, identity, catalog, in_use=in_use, **options)
    except BaseException:
        in_use.release()
        raise


_OLD_NAMES = {"Block": RowBlock, "Report": VerifyReport, "Unmade": DeferredRows}


def __getattr__(name: str) -> Any:
    if name in _OLD_NAMES:
        new = _OLD_NAMES[name]
        warnings.warn(
            f"sawlog.store.{name} is deprecated: it is called sawlog.store.{new.__name__}.",
            DeprecationWarning,
            stacklevel=2,
        )
        return new
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
