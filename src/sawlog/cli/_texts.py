"""``--text``: read the texts of examples from a file of JSON lines, CSV, Parquet or plain lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sawlog.errors import ArgumentError
from sawlog.example_data import rows_of_file


def texts_of(path: Path, ids: Iterable[Any]) -> dict[str, str]:
    """Return the texts of examples by id; ids are compared as text.

    Raises:
        ArgumentError: the file does not exist, is not in the format of its suffix, or has no field
            ``text``.
    """
    wanted = set(map(str, ids))
    found: dict[str, str] = {}
    for place, (_, row) in enumerate(rows_of_file(path)):
        name, text = _named_text(path, place, row)
        if name in wanted:
            found.setdefault(name, text)
            if len(found) == len(wanted):
                break
    return found


def _named_text(path: Path, place: int, row: Any) -> tuple[str, str]:
    if isinstance(row, str):
        return str(place), row
    if isinstance(row, Mapping) and "text" in row:
        return str(row.get("id", place)), str(row["text"])
    fields = list(row) if isinstance(row, Mapping) else []
    listed = f"; its fields are: {', '.join(map(str, fields[:8]))}" if fields else ""
    raise ArgumentError(
        f"{path} has no field 'text'{listed}. Hint: name the field of texts 'text', and the field "
        "of ids 'id'."
    )
