"""``--text``: read the texts of examples from a file of JSON lines, CSV, or plain lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sawlog.errors import ArgumentError

_JSON, _CSV = (".jsonl", ".ndjson", ".json"), (".csv", ".tsv")
_MOST = 1 << 30  # characters of a CSV field; texts can be longer than csv's default


def texts_of(path: Path, ids: Iterable[Any]) -> dict[str, str]:
    """Return the texts of examples by id; ids are compared as text.

    Raises:
        ArgumentError: the file is not in the format of its suffix, or has no field ``text``.
    """
    wanted = set(map(str, ids))
    found: dict[str, str] = {}
    with path.open(encoding="utf-8", errors="replace", newline="") as lines:
        for name, text in _pairs(path, lines):
            if name in wanted:
                found.setdefault(name, text)
                if len(found) == len(wanted):
                    break
    return found


def _pairs(path: Path, lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    kind = path.suffix.lower()
    if kind in _JSON:
        return _of_json(path, lines)
    if kind in _CSV:
        return _of_csv(path, lines, "\t" if kind == ".tsv" else ",")
    return ((str(number), line.rstrip("\r\n")) for number, line in enumerate(lines))


def _of_json(path: Path, lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    filled = (line for line in lines if line.strip())
    for number, line in enumerate(filled):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ArgumentError(
                f"{path} is not a file of JSON lines: example {number} (from 0 on): {error}. Hint: "
                'write one object a line, such as {"id": 7, "text": "..."}.'
            ) from None
        if isinstance(record, str):
            yield str(number), record
        elif isinstance(record, dict) and "text" in record:
            yield str(record.get("id", number)), str(record["text"])
        else:
            raise _no_text(path, list(record) if isinstance(record, dict) else [])


def _of_csv(path: Path, lines: Iterable[str], delimiter: str) -> Iterator[tuple[str, str]]:
    csv.field_size_limit(_MOST)
    rows = csv.DictReader(lines, delimiter=delimiter)
    try:
        if "text" not in (rows.fieldnames or ()):
            raise _no_text(path, list(rows.fieldnames or ()))
        for number, row in enumerate(rows):
            yield str(row.get("id", number)), row["text"] or ""
    except csv.Error as error:
        raise ArgumentError(f"{path}, line {rows.line_num}, is not CSV: {error}.") from None


def _no_text(path: Path, fields: list[str]) -> ArgumentError:
    listed = f"; its fields are: {', '.join(map(str, fields[:8]))}" if fields else ""
    return ArgumentError(
        f"{path} has no field 'text'{listed}. Hint: name the field of texts 'text', and the field "
        "of ids 'id'."
    )
