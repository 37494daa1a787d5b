"""Replace a run: remove the stores of an earlier run, and nothing else."""

from __future__ import annotations

import contextlib
from pathlib import Path

from sawlog._atomic import discard
from sawlog.run_files._saved_options import NAME as OPTIONS
from sawlog.store._format._layout import is_store
from sawlog.store._maintenance._remove import foreign_files_error, replace_stores

# The folders of a run, and the depth at which stores are inside each.
_PARTS = {"logs": 1, "statistics": 4, "curvature": 2, "metrics": 0, "scores": 1, "data": 0}


def replace_run(path: Path, *, for_all: bool = False) -> None:
    """Remove the stores of a run, except those that processes of this job created.

    Args:
        path: the folder of the run.
        for_all: whether this process does it for all others of its job, which wait for it; then
            all stores are removed.

    Raises:
        StoreExistsError: the folder contains other files; nothing was removed.
        StoreWriteError: one of the stores is being written.
    """
    doing = f"Replacing the run {path}"

    def find() -> list[Path]:
        stores, others = _stores(path)
        if others:
            raise foreign_files_error(others, doing)
        return stores

    for store in replace_stores(find, doing, for_all=for_all):
        _remove_empty(store, path)
    if not _stores(path)[0]:
        discard(path / OPTIONS)


def _stores(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the stores of a run, and all paths that are neither a store nor contain one."""
    stores: list[Path] = []
    others: list[Path] = []

    def visit(place: Path, depth: int) -> None:
        if place.is_symlink() or not place.is_dir():
            others.append(place)
        elif is_store(place):
            stores.append(place)
        elif _is_being_created(place):
            return
        elif depth:
            for child in _children(place):
                visit(child, depth - 1)
        else:
            others.append(place)

    for part in _children(path):
        if part.name in _PARTS:
            visit(part, _PARTS[part.name])
        elif part.name != OPTIONS or part.is_symlink() or not part.is_file():
            others.append(part)
    return stores, others


def _is_being_created(path: Path) -> bool:
    """Return whether a folder contains only the empty parts of a store that is being created."""
    parts = {"schema", "segments", "writers", "tmp"}
    return all(child.name in parts and child.is_dir() for child in _children(path))


def _children(path: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(path.iterdir())
    return []


def _remove_empty(folder: Path, top: Path) -> None:
    """Remove the folder of a removed store, and the folders above it that are empty now."""
    while folder != top:
        with contextlib.suppress(OSError):
            folder.rmdir()
        folder = folder.parent
