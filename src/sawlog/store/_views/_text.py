"""Sheets as text: CSV, and JSON lines.

Numbers have as many digits as their dtype needs to be read back exactly. In CSV the axes of a cell
become columns ``name[0]``, ``name[0,1]``, complex numbers and structured types become columns
``name.real`` and so on, and null is an empty field. Strings that a spreadsheet would evaluate as a
formula are prefixed with ``'``. In JSON lines axes are nested lists, structs are objects, null is
``null``, and NaN and infinities, which JSON lacks, are the strings ``"NaN"``, ``"Infinity"`` and
``"-Infinity"``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from sawlog._csv import cell, line
from sawlog.errors import ArgumentError
from sawlog.store._format._unicode import is_unicode
from sawlog.store._views._cells import TEXT, Cells, Field, Sheet
from sawlog.store._views._widen import widened

_MOST_COLUMNS = 1024
_ROWS = 10_000  # lines that are formatted at once
_REFUSED = "Hint: leave it out with names=[...], or export to .parquet."
_JSON_FLOATS = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


# -- items ----------------------------------------------------------------------------------------


def _words(values: np.ndarray, what: str) -> list[str]:
    """Format the items of an array ``[n]`` of numbers or times; ``NaT`` is empty."""
    values = widened(values)
    kind = values.dtype.kind
    if kind == "b":
        return ["true" if item else "false" for item in values.tolist()]
    if kind in "iu":
        return list(map(str, values.tolist()))
    if values.dtype == np.float64:
        return list(map(repr, values.tolist()))
    if kind == "f":
        return list(values.astype(str).tolist())
    if kind == "M":
        return [text if text != "NaT" else "" for text in np.datetime_as_string(values).tolist()]
    if kind == "m":
        return [str(item) if not np.isnat(item) else "" for item in values]
    raise ArgumentError(f"{what} has the dtype {values.dtype}, which has no text form. {_REFUSED}")


def _strings(values: np.ndarray, what: str) -> list[str]:
    if values.dtype.kind == "U" and not is_unicode(values):
        raise ArgumentError(
            f"{what} has text that is not valid Unicode. Hint: leave it out with names=[...], or "
            "export to .safetensors, which has its code points."
        )
    items = values.tolist()
    if values.dtype.kind != "S":
        return items
    try:
        return [item.decode() for item in items]
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{what} has bytes that are not UTF-8: {error}. {_REFUSED}") from error


def _is_text(dtype: np.dtype) -> bool:
    return dtype == TEXT or dtype.kind in "US"


def _parts(dtype: np.dtype) -> list[tuple[str, Callable[[np.ndarray], np.ndarray]]]:
    """Return the parts of a complex number or of a structured type."""
    if dtype.kind == "c":
        return [("real", lambda values: values.real), ("imag", lambda values: values.imag)]
    return [(n, lambda values, n=n: values[n]) for n in dtype.names or ()]  # type: ignore[misc]


# -- CSV ------------------------------------------------------------------------------------------


def write_csv(sheet: Sheet, path: Path, budget: int, tell: Callable[[int], None]) -> None:
    """Write a header, and a line for each row.

    Raises:
        ArgumentError: cells have different shapes or too many items, or a dtype cannot be written
            as text.
    """
    header = [title for field in sheet.fields for title in _titles(field)]
    twice = sorted({title for title in header if header.count(title) > 1})
    if twice:
        raise ArgumentError(
            f"Two columns would be called {twice[0]!r}: a name, and a part of another name. "
            "Hint: leave one out with names=[...], or export to .parquet."
        )
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(line(cell(title) for title in header))
        for batch in _small(sheet, budget):
            pairs = zip(sheet.fields, batch, strict=True)
            columns = [column for field, cells in pairs for column in _csv_columns(field, cells)]
            file.writelines(line(row) for row in zip(*columns, strict=True))
            tell(len(batch[0]))


def _titles(field: Field) -> list[str]:
    if field.shape is None:
        raise ArgumentError(
            "The values have different shapes, which CSV cannot represent. Hint: export to "
            ".jsonl or .parquet, or choose names of one shape with names=[...]."
        )
    columns = math.prod(field.shape)
    if columns > _MOST_COLUMNS:
        raise ArgumentError(
            f"{field.name!r} would become {columns} columns of CSV; at most {_MOST_COLUMNS} are "
            f"allowed. {_REFUSED}"
        )
    return _titles_of(field.name, field.dtype, field.shape)


def _titles_of(name: str, dtype: np.dtype, shape: tuple[int, ...]) -> list[str]:
    names = [name]
    if shape:
        names = [f"{name}[{','.join(map(str, index))}]" for index in np.ndindex(*shape)]
    if dtype.kind == "c":
        return [f"{each}.{part}" for each in names for part in ("real", "imag")]
    if not dtype.names:
        return names
    fields = [(each, part, dtype[part]) for each in names for part in dtype.names]
    return [t for each, p, own in fields for t in _titles_of(f"{each}.{p}", own.base, own.shape)]


def _csv_columns(field: Field, cells: Cells) -> Iterator[list[str]]:
    values, what = cells.values, repr(field.name)
    there = _there(cells)
    rows, items = len(cells), math.prod(values.shape[1:])
    values = values.reshape(rows, items)
    for number in range(items):
        seen = None if there is None else there.reshape(rows, items)[:, number]
        yield from _csv_column(values[:, number], seen, what)


def _csv_column(values: np.ndarray, seen: np.ndarray | None, what: str) -> Iterator[list[str]]:
    for _, part in (parts := _parts(values.dtype)):
        own = part(values)
        own = own.reshape(len(own), -1) if own.size else own.reshape(len(own), 0)
        for number in range(own.shape[1]):
            yield from _csv_column(own[:, number], seen, what)
    if parts:
        return
    if _is_text(values.dtype):
        column = [cell(text) for text in _strings(values, what)]
    else:
        column = _words(values, what)
        if widened(values).dtype.kind == "f":
            column = ["NaN" if word == "nan" else word for word in column]
    if seen is not None:
        column = [x if ok else "" for x, ok in zip(column, seen.tolist(), strict=True)]
    yield column


def _there(cells: Cells) -> np.ndarray | None:
    """Return for every item whether it is not null, or None if all are."""
    if cells.valid is None and cells.mask is None:
        return None
    there = np.ones(cells.values.shape, bool)
    for mask in (cells.valid, cells.mask):
        if mask is not None:
            there &= mask.reshape(mask.shape + (1,) * (there.ndim - mask.ndim))
    return there


# -- JSON lines -----------------------------------------------------------------------------------


def write_jsonl(sheet: Sheet, path: Path, budget: int, tell: Callable[[int], None]) -> None:
    """Write a JSON object for each row, one per line.

    Raises:
        ArgumentError: a dtype cannot be written as text.
    """
    shown = [(n, field) for n, field in enumerate(sheet.fields) if field.role != "shape"]
    keys = [json.dumps(field.name, ensure_ascii=False) + ": " for _, field in shown]
    with open(path, "w", encoding="utf-8", newline="") as file:
        for batch in _small(sheet, budget):
            columns = [_json_cells(batch[number], repr(field.name)) for number, field in shown]
            for row in zip(*columns, strict=True):
                pairs = (key + value for key, value in zip(keys, row, strict=True))
                file.write("{" + ", ".join(pairs) + "}\n")
            tell(len(batch[0]))


def _json_cells(cells: Cells, what: str) -> list[str]:
    texts = _json_nested(cells.values, cells.mask, what)
    if cells.valid is None:
        return texts
    return [x if ok else "null" for x, ok in zip(texts, cells.valid.tolist(), strict=True)]


def _json_nested(values: np.ndarray, mask: np.ndarray | None, what: str) -> list[str]:
    if mask is not None and mask.ndim == 1:
        whole = _json_nested(values, None, what)
        return [x if ok else "null" for x, ok in zip(whole, mask.tolist(), strict=True)]
    if values.ndim == 1:
        return _json_items(values, what)
    rows, size = values.shape[:2]
    inner = None if mask is None else mask.reshape(rows * size, *mask.shape[2:])
    flat = _json_nested(values.reshape(rows * size, *values.shape[2:]), inner, what)
    return ["[" + ", ".join(flat[i * size : (i + 1) * size]) + "]" for i in range(rows)]


def _json_items(values: np.ndarray, what: str) -> list[str]:
    parts = _parts(values.dtype)
    if parts:
        keys = [json.dumps(name, ensure_ascii=False) + ": " for name, _ in parts]
        texts = [_json_nested(part(values), None, what) for _, part in parts]
        rows = zip(*texts, strict=True)
        return ["{" + ", ".join(map("".join, zip(keys, row, strict=True))) + "}" for row in rows]
    if _is_text(values.dtype):
        return [json.dumps(text, ensure_ascii=False) for text in _strings(values, what)]
    words = _words(values, what)
    kind = widened(values).dtype.kind
    if kind == "f":
        return [_JSON_FLOATS.get(word, word) for word in words]
    if kind in "Mm":
        return [f'"{word}"' if word else "null" for word in words]
    return words


def _small(sheet: Sheet, budget: int) -> Iterator[Sequence[Cells]]:
    """Divide batches into small pieces, because text needs more memory than numbers."""
    for batch in sheet.batches(budget):
        rows = len(batch[0])
        for start in range(0, rows, _ROWS):
            yield [_cut(cells, slice(start, start + _ROWS)) for cells in batch]


def _cut(cells: Cells, rows: slice) -> Cells:
    arrays = (cells.values, cells.valid, cells.mask)
    return Cells(*(None if array is None else array[rows] for array in arrays))  # type: ignore[arg-type]
