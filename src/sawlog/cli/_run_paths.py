"""Arguments that are runs, or folders with runs in them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from sawlog.errors import ArgumentError, StoreNotFoundError
from sawlog.inspect import find_runs
from sawlog.inspect._store_folders import must_search

_FIND = "Hint: sawlog ls FOLDER lists the stores under a folder."


def given_runs(paths: Iterable[Path]) -> dict[str, Path]:
    """Return the runs at and below these paths, by a name that tells them apart.

    Raises:
        ArgumentError: no path was given.
        StoreNotFoundError: a path does not exist, or has no run.
        StorePermissionError: a folder cannot be searched.
    """
    given = [path.absolute() for path in paths]
    if not given:
        raise ArgumentError(f"No run was given. {_FIND}")
    found: dict[Path, None] = {}
    for path in given:
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            raise StoreNotFoundError(f"{path} {what}. {_FIND}")
        runs = list(find_runs(path, must_search))
        if not runs:
            raise StoreNotFoundError(f"There is no run at {path}. {_FIND}")
        found.update(dict.fromkeys(runs))
    root = Path(os.path.commonpath([path if path not in found else path.parent for path in given]))
    return {path.relative_to(root).as_posix(): path for path in found}
