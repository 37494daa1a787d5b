"""``export``: logs for other programs, as Parquet, Arrow, safetensors, CSV or JSON lines."""

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
Write = Callable[[Path], None]  # writes the file that is to have another name once it is complete
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
    """Write logs in a format that other programs read; returns the files.

    - ``.safetensors``: everything in one file, every dtype as it is, see ``_plain.py``.
    - ``.parquet``, ``.arrow``, ``.feather``, ``.csv``, ``.jsonl``: one table in one file. Rows with
      ids have a column ``id`` and one for each name. Entries are put side by side: columns for
      the step axes and for each name, a row for all entries with the same steps, null where a
      name has none or its entry is masked. With ``long=True`` they are one below the other
      instead, in columns ``name``, the step axes, ``value``, and ``shape`` where shapes differ. A
      column of ours whose name a log has is called ``sawlog.id`` and so on.

    Names that make several tables need a folder as the target, with ``format``: each then has
    its own file, called as the first name of a table, or ``entries.<step axes>``.

    Parquet and Arrow hold axes as lists of fixed size, one inside the other; bfloat16 and float8 as
    float32, which is exact; complex numbers and structured types as structs; missing dates (NaT) as
    null. What the type was is in the metadata of the field, as JSON under ``sawlog``. CSV and
    JSON lines are described in ``_text.py``.

    A file is there when it is complete, and not before. However large the store is, memory stays
    at about ``budget`` (Parquet: twice that) and what the ids and steps take.

    Args:
        source: a store, or a reader of one.
        target: a file whose suffix says the format; or a folder, which is a path that is one, that
            ends with a slash, or that has no suffix.
        names: some names; all if None. Names without entries then go only with others that have
            their step axes.
        format: one of ``parquet``, ``arrow``, ``feather``, ``safetensors``, ``csv``, ``jsonl``.
        long: put entries one below the other.
        overwrite: replace files that are there.
        progress: called with the bytes that are done and those there are.
        budget: bytes of memory.

    Raises:
        ArgumentError: the names do not make one table, or the format cannot hold them.
        UnknownNameError: a name is not there.
        StoreExistsError: a file is there already.
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
        raise ArgumentError(f"budget is a number of bytes, not {budget!r}")
    path, kind, is_folder = _target(target, format)
    with _reading(source) as reader:
        _check_outside(reader, path)
        tell = _Progress(progress)
        if kind == "safetensors":
            if long:
                raise ArgumentError("long=True is for tables, and .safetensors holds tensors.")
            plain = path / "store.safetensors" if is_folder else path
            notes = _notes(reader)

            def write(aside: Path) -> None:
                write_safetensors(reader, aside, names, notes, budget, tell.bytes)

            return _publish({plain: write}, overwrite)
        sheets = sheets_of(reader, names, long)
        if is_folder:
            files = _file_names(sheets, kind)
        else:
            hint = f"; or give a folder as the target, with format={kind!r}: one file for each"
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
        """To be told how many rows of a sheet were written."""
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


# -- where to -------------------------------------------------------------------------------------


def _target(target: str | os.PathLike[str], format: str | None) -> tuple[Path, str, bool]:
    """The path, the format, and whether the path is a folder."""
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
            f"{path} is inside the store {reader.path}, which has its own files only. "
            "Hint: choose a target beside it."
        )


def _file_names(sheets: list[Sheet], kind: str) -> dict[str, Sheet]:
    """A file for each sheet, called so that any disk takes it."""
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
    """Write all files aside; when every one is complete, give them their names."""
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
        return StoreExistsError(f"{path} is a folder, and a file was to be written there.")
    return StoreExistsError(
        f"{path} exists already. Hint: overwrite=True replaces it once the new one is complete."
    )


@contextlib.contextmanager
def _explaining(path: Path) -> Iterator[None]:
    """Errors of the disk as ours. Those of reading the store pass."""
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
            "nothing incomplete was left. Hint: see how full that disk is, and who may write there."
        ) from error
