"""``--out``: write results as a table to a file, CSV or Parquet by its suffix."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sawlog import store
from sawlog._atomic import replacing
from sawlog._optional import require
from sawlog._text import guarded
from sawlog._validate import refuse
from sawlog.errors import StoreError, StoreExistsError

SUFFIXES = (".csv", ".parquet")


def is_sheet(path: Path) -> bool:
    """Return whether a path has the suffix of a table."""
    return path.suffix.lower() in SUFFIXES


def check(path: Path | None, overwrite: bool) -> None:
    """Check, before anything is computed, that results can be written to a path.

    Raises:
        StoreExistsError: the path exists, and may not be replaced.
        MissingPackageError: a package that Parquet needs is not installed.
    """
    if path is None:
        return
    if is_sheet(path) and path.suffix.lower() == ".parquet":
        require("pyarrow", "arrow", "--out with a .parquet file")
    if not path.exists():
        return
    if not overwrite:
        raise StoreExistsError(f"{path} exists. Hint: --overwrite replaces it.")
    if path.is_dir() if is_sheet(path) else not _is_scores(path):
        what = "a folder" if is_sheet(path) else "not a folder of scores"
        raise StoreExistsError(f"{path} is {what}, and is not replaced. Hint: use another --out.")


def _is_scores(path: Path) -> bool:
    try:
        with store.open(path) as reader:
            return "scores" in reader.meta
    except (StoreError, OSError):
        return False


def write(path: Path, columns: Mapping[str, Any]) -> None:
    """Write columns of equal length; the file appears when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        if path.suffix.lower() == ".parquet":
            arrow: Any = require("pyarrow", "arrow", "--out with a .parquet file")
            parquet: Any = require("pyarrow.parquet", "arrow", "--out with a .parquet file")
            rows = arrow.table({n: arrow.array(v) for n, v in columns.items()})
            parquet.write_table(rows, file.aside)
        else:
            _write_csv(file.aside, columns)


def _write_csv(path: Path, columns: Mapping[str, Any]) -> None:
    lists = [v.tolist() if isinstance(v, np.ndarray) else v for v in columns.values()]
    plain = [[guarded(x) if isinstance(x, str) else x for x in column] for column in lists]
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(map(guarded, columns))
        rows.writerows(zip(*plain, strict=True))


def check_suffix(path: Path | None) -> None:
    """Raise an ArgumentError unless a path has the suffix of a table."""
    if path is not None and not is_sheet(path):
        refuse("--out", "a .csv or .parquet file", str(path))
