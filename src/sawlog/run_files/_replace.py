"""Replace a run: remove the stores of an earlier one, and nothing else."""

from __future__ import annotations

import contextlib
from pathlib import Path

from sawlog._atomic import discard
from sawlog.run_files._remembered import NAME as REMEMBERED
from sawlog.store._format._layout import is_store
from sawlog.store._maintenance._remove import foreign_files_error, replace_stores

_PARTS = {
    "logs": 1,
    "statistics": 4,
    "curvature": 2,
    "metrics": 0,
    "scores": 1,
    "data": 0,
}  # how deep below each stores can be


def replace_run(path: Path) -> None:
    """Remove the stores of a run, unless they were made by processes that started with this one.

    Raises:
        StoreExistsError: something else lies there; nothing was removed.
        StoreWriteError: one of the stores is being written.
    """
    doing = f"Replacing the run {path}"

    def find() -> list[Path]:
        stores, others = _stores(path)
        if others:
            raise foreign_files_error(others, doing)
        return stores

    for store in replace_stores(find, doing):
        _remove_empty(store, path)
    if not _stores(path)[0]:
        discard(path / REMEMBERED)


def _stores(path: Path) -> tuple[list[Path], list[Path]]:
    """The stores of a run, and all that is neither one nor a folder of theirs."""
    stores: list[Path] = []
    others: list[Path] = []

    def look(place: Path, depth: int) -> None:
        if place.is_symlink() or not place.is_dir():
            others.append(place)
        elif is_store(place):
            stores.append(place)
        elif _is_being_made(place):
            return
        elif depth:
            for child in _children(place):
                look(child, depth - 1)
        else:
            others.append(place)

    for part in _children(path):
        if part.name in _PARTS:
            look(part, _PARTS[part.name])
        elif part.name != REMEMBERED or part.is_symlink() or not part.is_file():
            others.append(part)
    return stores, others


def _is_being_made(path: Path) -> bool:
    """Whether a folder has nothing but the folders that a store begins with."""
    begun = {"schema", "segments", "writers", "tmp"}
    return all(child.name in begun and child.is_dir() for child in _children(path))


def _children(path: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(path.iterdir())
    return []


def _remove_empty(folder: Path, top: Path) -> None:
    """Remove the folder of a store that was, and those above it that are empty now."""
    while folder != top:
        with contextlib.suppress(OSError):
            folder.rmdir()
        folder = folder.parent
