"""Examples in files: JSON lines, CSV, Parquet, plain lines, and folders of images."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sawlog import _csv
from sawlog._optional import require
from sawlog.errors import ArgumentError

JSON_LINES, SHEETS = (".jsonl", ".ndjson", ".json"), (".csv", ".tsv")
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")


def rows_of_file(path: Path) -> Iterator[tuple[Any, Any]]:
    """Yield ``(id or None, example)`` for each example of a file, or image of a folder.

    A line of JSON is what it says, a line of CSV or a row of Parquet is a dict, and a line of a
    text file is a text. Only images have ids of their own: their paths in the folder.

    Raises:
        ArgumentError: the path does not exist, the file is not in the format of its suffix, or the
            folder has no images.
    """
    if path.is_dir():
        return _of_folder(path)
    if not path.is_file():
        raise ArgumentError(f"{path} does not exist. Hint: give a file, or a folder of images.")
    kind = path.suffix.lower()
    if kind == ".parquet":
        return _of_parquet(path)
    return _of_lines(path, kind)


def _of_lines(path: Path, kind: str) -> Iterator[tuple[Any, Any]]:
    with path.open(encoding=_encoding_of(path), errors="replace", newline="") as lines:
        if kind in JSON_LINES:
            yield from _of_json(path, lines)
        elif kind in SHEETS:
            yield from _of_csv(path, lines, "\t" if kind == ".tsv" else ",")
        elif kind in (".txt", ""):
            for line in lines:
                yield None, line.rstrip("\r\n")
        else:
            raise ArgumentError(
                f"{path} has an unknown suffix. Hint: use .jsonl, .csv, .tsv, .parquet or .txt, or "
                "a folder of images."
            )


def _encoding_of(path: Path) -> str:
    """Return UTF-8, without the mark that some programs put first, or UTF-16 if its mark is there.

    As a part of the first column's name, such a mark would hide the column of ids.
    """
    with path.open("rb") as file:
        return (
            "utf-16" if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
        )


def _of_json(path: Path, lines: Iterable[str]) -> Iterator[tuple[Any, Any]]:
    filled = (line for line in lines if line.strip())
    for number, line in enumerate(filled):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ArgumentError(
                f"{path} is not a file of JSON lines: example {number} (from 0 on): {error}. Hint: "
                'write one object a line, such as {"id": 7, "text": "..."}.'
            ) from None
        yield None, record


def _of_csv(path: Path, lines: Iterable[str], delimiter: str) -> Iterator[tuple[Any, Any]]:
    rows = _csv.read_table(lines, delimiter)
    try:
        _check_header(rows.fieldnames or [], delimiter)
        for row in rows:
            extra = row.pop(None, None)
            if extra:
                raise _csv.Error(f"a row has {len(extra)} more fields than the header")
            yield None, {name: _number(value or "") for name, value in row.items()}
    except _csv.Error as error:
        raise ArgumentError(f"{path}, line {rows.line_num}, is not CSV: {error}.") from None


def _check_header(names: Sequence[str], delimiter: str) -> None:
    """Refuse columns of one name, and a header with other separators: ids would not be found."""
    twice = [name for name in dict.fromkeys(names) if list(names).count(name) > 1]
    if twice:
        raise _csv.Error(f"several columns have the name {twice[0]!r}. Hint: rename them")
    other = next((each for each in ";\t," if each != delimiter and each in "".join(names)), None)
    if len(names) == 1 and other:
        raise _csv.Error(
            f"the header has one column, {names[0]!r}. Hint: separate columns by {delimiter!r}"
        )


def _number(text: str) -> Any:
    """Return an integer as an int, so that it matches integer ids; anything else as text.

    >>> _number("7"), _number("007"), _number("7.5"), _number("")
    (7, '007', '7.5', '')
    """
    plain = text.removeprefix("-")
    if plain.isascii() and plain.isdigit() and len(plain) < 19 and str(int(plain)) == plain:
        return int(text)
    return text


def _of_parquet(path: Path) -> Iterator[tuple[Any, Any]]:
    arrow: Any = require("pyarrow", "arrow", "A .parquet file of examples")
    parquet: Any = require("pyarrow.parquet", "arrow", "A .parquet file of examples")
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(1000):
                for row in batch.to_pylist():
                    yield None, row
    except (arrow.ArrowException, OSError) as error:
        raise ArgumentError(f"{path} cannot be read as Parquet: {error}.") from None


def _of_folder(path: Path) -> Iterator[tuple[Any, Any]]:
    files = sorted(f for f in path.rglob("*") if f.suffix.lower() in IMAGES and f.is_file())
    if not files:
        raise ArgumentError(f"The folder {path} has no images ({', '.join(IMAGES)}).")
    images: Any = require("PIL.Image", "report", "A folder of images")
    for file in files:
        try:
            with images.open(file) as opened:
                picture = opened.copy()
        except Exception as error:  # of many kinds, by the format of the file
            raise ArgumentError(f"{file} cannot be read as an image: {error}.") from None
        yield file.relative_to(path).as_posix(), picture
