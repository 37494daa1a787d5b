"""The stores of rows in the folder of a run: one for each kind of rows that it logged."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from sawlog.errors import ArgumentError, StoreNotFoundError
from sawlog.inspect._overview import find_stores

_FIND = "Hint: sawlog ls FOLDER lists the stores under a folder."


def row_stores(path: str | os.PathLike[str]) -> list[Path]:
    """Return the stores of rows of the run at ``path``; a store is returned as it is.

    Raises:
        StoreNotFoundError: the folder has neither a store nor a run with rows.
    """
    folder = Path(path)
    if not folder.is_dir():
        what = "is a file, not a run or store" if folder.exists() else "does not exist"
        raise StoreNotFoundError(f"{folder} {what}. {_FIND}")
    if (folder / "store.json").exists():
        return [folder]
    logs = folder if folder.name == "logs" else folder / "logs"
    found = sorted(each.parent for each in logs.glob("*/store.json"))
    if found:
        return found
    if (folder / "statistics").is_dir():
        raise StoreNotFoundError(
            f"The run at {folder} has statistics, and no rows of examples. Hint: run over the data "
            'with run.setup(save="grad").'
        )
    inside = list(itertools.islice(find_stores(folder), 1))
    if inside:
        raise StoreNotFoundError(
            f"{folder} is not a run or store; some are below it. Hint: name one of them, such as "
            f"{inside[0]}; sawlog ls {folder} lists all."
        )
    raise StoreNotFoundError(f"There is no run and no store at {folder}. {_FIND}")


def row_store(path: str | os.PathLike[str]) -> Path:
    """Return the only store of rows of the run at ``path``.

    Raises:
        StoreNotFoundError: the folder has neither a store nor a run with rows.
        ArgumentError: the run has several stores of rows.
    """
    return _only(Path(path), row_stores(path))


def matching_row_stores(train: Path, queries: Path) -> tuple[Path, Path]:
    """Return a store of rows of each of two runs: the ones of the same name, if one has several.

    Raises:
        StoreNotFoundError: a folder has neither a store nor a run with rows.
        ArgumentError: the names do not decide which store is meant.
    """
    ours, theirs = row_stores(train), row_stores(queries)
    if len(ours) > 1 or len(theirs) > 1:
        shared = {each.name for each in ours} & {each.name for each in theirs}
        ours, theirs = ([e for e in both if e.name in shared] or both for both in (ours, theirs))
    return _only(train, ours), _only(queries, theirs)


def _only(path: Path, found: list[Path]) -> Path:
    if len(found) == 1:
        return found[0]
    listed = ", ".join(each.name for each in found)
    raise ArgumentError(
        f"The run at {path} has rows of several kinds: {listed}. Hint: give one of them, such as "
        f"{found[0]}."
    )
