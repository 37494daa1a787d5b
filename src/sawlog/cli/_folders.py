"""Folders that were given in place of the store inside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from sawlog._paths import natural_order
from sawlog.errors import StoreNotFoundError
from sawlog.inspect import find_stores
from sawlog.inspect._store_folders import must_search

_LISTED = 4
_FIRST = ("logs", "metrics")  # of a run: what people ask for most


def one_store(path: Path) -> Path:
    """Return the store at ``path``, or the only one below it.

    A path without any store is returned as it is: opening it says what is wrong.

    Raises:
        StoreNotFoundError: several stores are below the folder.
        StorePermissionError: a folder cannot be searched.
    """
    found = _below(path, must_search)
    if len(found) < 2:
        return found[0] if found else path
    found.sort(key=lambda each: each.relative_to(path).parts[0] not in _FIRST)
    listed = ", ".join(str(each.relative_to(path)) for each in found[:_LISTED])
    more = f" and {len(found) - _LISTED:,} more" if len(found) > _LISTED else ""
    raise StoreNotFoundError(
        f"{path} has {len(found):,} stores in it: {listed}{more}. Hint: name one of them, such as "
        f"{found[0]}; sawlog ls {path} lists all."
    )


def all_stores(paths: Iterable[Path], on_error: Callable[[OSError], None]) -> list[Path]:
    """Return the stores at and below some paths; a path without any is returned as it is.

    Args:
        paths: stores, and folders with stores in them.
        on_error: called with the error of each folder below them that cannot be searched.
    """
    given = set(map(str, paths := list(paths)))

    def below_only(error: OSError) -> None:
        if error.filename not in given:  # to open it says what is wrong
            on_error(error)

    found = (store for path in paths for store in _below(path, below_only) or [path])
    return list(dict.fromkeys(found))


def _below(path: Path, on_error: Callable[[OSError], None]) -> list[Path]:
    return sorted(find_stores(path, on_error), key=natural_order) if path.is_dir() else []
