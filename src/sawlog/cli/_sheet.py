"""``--out``: results as a table in a file, CSV or Parquet by its suffix."""

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
from sawlog.errors import ArgumentError, StoreError, StoreExistsError

SUFFIXES = (".csv", ".parquet")


def is_sheet(path: Path) -> bool:
    """Whether a path is that of a table."""
    return path.suffix.lower() in SUFFIXES


def check(path: Path | None, overwrite: bool) -> None:
    """Look before anything is computed whether results can go there.

    Raises:
        StoreExistsError: something is there that they would replace.
        MissingPackageError: what Parquet needs is not installed.
    """
    if path is None:
        return
    if is_sheet(path) and path.suffix.lower() == ".parquet":
        require("pyarrow", "arrow", "--out with a .parquet file")
    if not path.exists():
        return
    if not overwrite:
        raise StoreExistsError(f"{path} is there already. Hint: --overwrite replaces it.")
    if path.is_dir() if is_sheet(path) else not _is_scores(path):
        what = "a folder" if is_sheet(path) else "something else than scores"
        raise StoreExistsError(f"{path} is {what}, and is not replaced. Hint: another --out.")


def _is_scores(path: Path) -> bool:
    try:
        with store.open(path) as reader:
            return "scores" in reader.meta
    except (StoreError, OSError):
        return False


def write(path: Path, columns: Mapping[str, Any]) -> None:
    """Write columns of one length; the file is there when it is complete, and not before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        if path.suffix.lower() == ".parquet":
            arrow: Any = require("pyarrow", "arrow", "--out with a .parquet file")
            parquet: Any = require("pyarrow.parquet", "arrow", "--out with a .parquet file")
            made = arrow.table({n: arrow.array(v) for n, v in columns.items()})
            parquet.write_table(made, file.aside)
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
    """Raise an ArgumentError for what is no table."""
    if path is not None and not is_sheet(path):
        raise ArgumentError(f"--out is a .csv or .parquet file, not {path}.")
