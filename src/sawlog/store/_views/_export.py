"""``export``: write logs as Parquet, Arrow, safetensors, CSV or JSON lines."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sawlog import _validate
from sawlog._atomic import AsideFile
from sawlog.errors import ArgumentError, StoreError, StoreExistsError
from sawlog.store._format._json_files import write_error
from sawlog.store._views._cells import Sheet
from sawlog.store._views._plain import write_safetensors
from sawlog.store._views._sheets import only_sheet, sheets_of
from sawlog.store._views._tabular import write_arrow, write_parquet
from sawlog.store._views._text import write_csv, write_jsonl

if TYPE_CHECKING:
    from sawlog.store._reading._reader import Reader

Progress = Callable[[int, int], None]
Write = Callable[[Path], None]  # writes a file, which is renamed when it is complete
FORMATS = ("parquet", "arrow", "feather", "safetensors", "csv", "jsonl")
_SUFFIXES = {".ipc": "arrow", ".ndjson": "jsonl", **{f".{name}": name for name in FORMATS}}


def export(
    source: Reader | str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    names: str | Iterable[str] | None = None,
    format: str | None = None,
    long: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    budget: int = 64 << 20,
) -> list[Path]:
    """Write logs in a format that other programs read; return the files.

    - ``.safetensors``: everything in one file, with all dtypes preserved, see ``_plain.py``.
    - ``.parquet``, ``.arrow``, ``.feather``, ``.csv``, ``.jsonl``: one table in one file. Rows with
      ids have a column ``id`` and one for each name. Entries are side by side: columns for the step
      axes and for each name, and a row for all entries with the same steps. A cell is null if a
      name has no entry there, or a masked one; so are the steps of lanes that did not log. With
      ``long=True`` entries are one below the other, in columns ``name``, the step axes, ``value``,
      and ``shape`` if shapes differ. If a log has the name of such a column, the column is called
      ``sawlog.id`` and so on.

    Names that form several tables need a folder as the target, and ``format``. Each table then has
    a file, named after the first name of the table, or ``entries.<step axes>``.

    Parquet and Arrow store axes as nested lists of fixed size, bfloat16 and float8 as float32
    (which is exact), complex numbers and structured types as structs, and NaT as null. The metadata
    of each field has its original type, as JSON under ``sawlog``. CSV and JSON lines are described
    in ``_text.py``.

    Files appear when they are complete. Memory is about ``budget`` (Parquet: twice that), plus the
    ids and steps, however large the store is.

    Args:
        source: a store, or a reader of one.
        target: a file whose suffix determines the format; or a folder: an existing one, or a path
            that ends with a slash or has no suffix.
        names: the names to export; all if None. Names without entries are then exported only
            beside others with the same step axes.
        format: one of ``parquet``, ``arrow``, ``feather``, ``safetensors``, ``csv``, ``jsonl``.
        long: put entries one below the other.
        overwrite: replace existing files.
        progress: called with the bytes written, and the total.
        budget: memory in bytes.

    Raises:
        ArgumentError: the names do not form one table, or the format cannot represent them.
        UnknownNameError: the store has no such name.
        StoreExistsError: a file exists.
        MissingPackageError: the format needs a package that is not installed.
        StoreFullError, StorePermissionError, StoreWriteError: the disk refuses.

    >>> import tempfile, sawlog.store
    >>> folder = tempfile.mkdtemp()
    >>> with sawlog.store.create(f"{folder}/run") as writer:
    ...     writer.log({"loss": 0.5}, step=0)
    ...     writer.log({"loss": 0.25, "accuracy": 0.9}, step=1)
    >>> [path] = export(f"{folder}/run", f"{folder}/run.csv")
    >>> print(path.read_text())
    step,loss,accuracy
    0,0.5,
    1,0.25,0.9
    <BLANKLINE>
    """
    if budget < 1:
        _validate.refuse("budget", "a positive number of bytes", budget)
    path, kind, is_folder = _target(target, format)
    with _reading(source) as reader:
        _check_outside(reader, path)
        tell = _Progress(progress)
        if kind == "safetensors":
            if long:
                raise ArgumentError(
                    "long=True is for tables, and .safetensors holds tensors. Hint: a .parquet or "
                    ".csv file, or long=False."
                )
            plain = path / "store.safetensors" if is_folder else path
            notes = _notes(reader)

            def write(aside: Path) -> None:
                write_safetensors(reader, aside, names, notes, budget, tell.bytes)

            return _publish({plain: write}, overwrite)
        sheets = sheets_of(reader, names, long)
        if is_folder:
            files = _file_names(sheets, kind)
        else:
            hint = f"; or pass a folder as the target, with format={kind!r}: one file for each"
            files = {path.name: only_sheet(sheets, hint)}
        tell.total = sum(sheet.nbytes for sheet in sheets)
        home = path if is_folder else path.parent
        writes = {home / n: _write(reader, sheet, kind, budget, tell) for n, sheet in files.items()}
        return _publish(writes, overwrite)


@contextlib.contextmanager
def _reading(source: Reader | str | os.PathLike[str]) -> Iterator[Reader]:
    if not isinstance(source, (str, os.PathLike)):
        yield source
        return
    from sawlog.store import _open_reader

    with _open_reader(Path(source), "error", None) as reader:
        yield reader


def _notes(reader: Reader) -> dict[str, Any]:
    return {"store": reader.id, "created": reader.created, "meta": reader.meta}


class _Progress:
    """Counts bytes over all files."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress, self._before, self.total = progress, 0, 0

    def bytes(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)

    def rows(self, sheet: Sheet) -> Callable[[int], None]:
        """Return a callback that takes the number of written rows of a sheet."""
        written, before = 0, self._before
        self._before += sheet.nbytes

        def tell(rows: int) -> None:
            nonlocal written
            written += rows
            self.bytes(before + sheet.nbytes * written // max(1, sheet.rows), self.total)

        return tell


def _write(reader: Reader, sheet: Sheet, kind: str, budget: int, tell: _Progress) -> Write:
    rows = tell.rows(sheet)
    if kind == "csv":
        return lambda path: write_csv(sheet, path, budget, rows)
    if kind == "jsonl":
        return lambda path: write_jsonl(sheet, path, budget, rows)
    write = write_parquet if kind == "parquet" else write_arrow
    return lambda path: write(sheet, path, _notes(reader), budget, rows)


# -- targets --------------------------------------------------------------------------------------


def _target(target: str | os.PathLike[str], format: str | None) -> tuple[Path, str, bool]:
    """Return the path, the format, and whether the path is a folder."""
    if format is not None:
        _validate.one_of("format", format, FORMATS)
    text, path = os.fspath(target), Path(target)
    is_folder = path.is_dir() or text.endswith(("/", os.sep)) or not path.suffix
    kind = format or (None if is_folder else _SUFFIXES.get(path.suffix.lower()))
    if kind is None:
        listed = ", ".join(f".{name}" for name in FORMATS)
        raise ArgumentError(
            f"The target {text!r} does not say a format. Hint: a file that ends with one of "
            f"{listed}; or a folder, with format='parquet' or another."
        )
    return path, kind, is_folder


def _check_outside(reader: Reader, path: Path) -> None:
    store = reader.path.resolve()
    if path.resolve() == store or store in path.resolve().parents:
        raise ArgumentError(
            f"{path} is inside the store {reader.path}, whose folder must not contain other files. "
            "Hint: choose a target beside it."
        )


def _file_names(sheets: list[Sheet], kind: str) -> dict[str, Sheet]:
    """Return a file name for each sheet that is valid on any disk."""
    files: dict[str, Sheet] = {}
    for sheet in sheets:
        stem = re.sub(r"[^\w.-]+", "-", sheet.name).strip("-.") or "table"
        taken, number, name = {known.lower() for known in files}, 1, f"{stem}.{kind}"
        while name.lower() in taken:
            number += 1
            name = f"{stem}-{number}.{kind}"
        files[name] = sheet
    return files


def _publish(writes: dict[Path, Write], overwrite: bool) -> list[Path]:
    """Write all files under temporary names; rename them when all are complete."""
    for path in writes:
        if path.is_dir() or (path.exists() and not overwrite):
            raise _exists(path)
    files: dict[Path, AsideFile] = {}
    try:
        for path, write in writes.items():
            with _explaining(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                files[path] = file = AsideFile(path)
                write(file.aside)
                file.sync()
        for path, file in files.items():
            with _explaining(path):
                _commit(file, overwrite)
    finally:
        for file in files.values():
            file.discard()
    return list(writes)


def _commit(file: AsideFile, overwrite: bool) -> None:
    try:
        file.commit(replace=overwrite)
    except FileExistsError as error:
        raise _exists(file.path) from error


def _exists(path: Path) -> StoreExistsError:
    if path.is_dir():
        return StoreExistsError(
            f"{path} is a folder, not a file. Hint: give the path of a new file."
        )
    return StoreExistsError(
        f"{path} exists already. Hint: overwrite=True replaces it once the new one is complete."
    )


@contextlib.contextmanager
def _explaining(path: Path) -> Iterator[None]:
    """Convert errors of the target disk to store errors; those of reading the store pass."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        ours = error.filename is None or Path(error.filename).name.startswith(f".{path.name[:100]}")
        parents = {str(parent) for parent in path.parents}
        if not ours and str(error.filename) not in parents:
            raise
        kind = type(write_error(error, "exporting to", path))
        raise kind(
            f"Exporting to {path} failed: {error.strerror or error}. The store is untouched, and "
            "no incomplete file was left. Hint: check the free space and the permissions."
        ) from error
