"""Folders that were given in place of the store inside them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sawlog._paths import natural_order
from sawlog.errors import StoreNotFoundError
from sawlog.inspect import find_stores

_LISTED = 4
_FIRST = ("logs", "metrics")  # of a run: what people ask for most


def one_store(path: Path) -> Path:
    """Return the store at ``path``, or the only one below it.

    A path without any store is returned as it is: opening it says what is wrong.

    Raises:
        StoreNotFoundError: several stores are below the folder.
    """
    found = _below(path)
    if len(found) < 2:
        return found[0] if found else path
    found.sort(key=lambda each: each.relative_to(path).parts[0] not in _FIRST)
    listed = ", ".join(str(each.relative_to(path)) for each in found[:_LISTED])
    more = f" and {len(found) - _LISTED:,} more" if len(found) > _LISTED else ""
    raise StoreNotFoundError(
        f"{path} has {len(found):,} stores in it: {listed}{more}. Hint: name one of them, such as "
        f"{found[0]}; sawlog ls {path} lists all."
    )


def all_stores(paths: Iterable[Path]) -> list[Path]:
    """Return the stores at and below some paths; a path without any is returned as it is."""
    return list(dict.fromkeys(store for path in paths for store in _below(path) or [path]))


def _below(path: Path) -> list[Path]:
    return sorted(find_stores(path), key=natural_order) if path.is_dir() else []
