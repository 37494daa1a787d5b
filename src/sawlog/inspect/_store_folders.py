"""The stores below a part of a run, and files of a run; links are not followed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sawlog.errors import StorePermissionError
from sawlog.inspect._overview import _is_store
from sawlog.run_files._saved_options import NAME as RUN_FILE
from sawlog.store._format._loose_json import read_loose_json


def unsearched(error: OSError) -> StorePermissionError | None:
    """Return what to raise if a search must be complete; None for a folder that is gone by now."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return None
    return StorePermissionError(
        f"{error.filename} was not searched: {error.strerror}. Hint: check who owns it, or name "
        "the runs that are meant."
    )


def must_search(error: OSError) -> None:
    """Raise what stopped a search, as the ``on_error`` of `find_runs` and `find_stores`.

    Raises:
        StorePermissionError: the folder is there, and cannot be read.
    """
    if (problem := unsearched(error)) is not None:
        raise problem from error


def stores_under(folder: Path) -> list[Path]:
    """Return the stores at and below a folder, sorted; none if the folder is a link."""
    found: list[Path] = []
    if folder.is_symlink():
        return found
    for here, below, files in os.walk(folder):
        if _is_store(Path(here), below, files):
            below.clear()
            found.append(Path(here))
    return sorted(found)


def run_file(folder: Path) -> Any:
    """Return what ``run.json`` of a capture run says; None if the run has no such file.

    Raises:
        OSError, ValueError: the file cannot be read, or is not JSON.
    """
    try:
        return read_loose_json(folder, RUN_FILE)
    except OSError:
        if (folder / RUN_FILE).is_symlink() or not (folder / RUN_FILE).is_file():
            return None
        raise
