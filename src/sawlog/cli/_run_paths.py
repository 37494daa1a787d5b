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

    See :func:`named_runs` for the names and the errors.
    """
    return named_runs(paths)[1]


def named_runs(paths: Iterable[Path]) -> tuple[Path, dict[str, Path]]:
    """Return the folder that holds runs, and the runs by their path below it.

    It is the folder that was given, or the parent of a run that was given; of several, the deepest
    folder that holds all of them.

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
    return root, {path.relative_to(root).as_posix(): path for path in found}
