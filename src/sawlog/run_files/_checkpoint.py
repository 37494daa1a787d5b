"""Statistics on disk: one part for each process, of which the newest state counts.

A state is a store that is written aside and renamed, so a complete one always exists. It has the
ids of the examples in the statistics, so that a resumed run knows which are missing. Parts are
added when they are read: processes do not wait for each other, and a program that resumes after a
kill starts a new part.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sawlog import store
from sawlog._atomic import new_folder
from sawlog.errors import DamagedStoreError, DuplicateIdError, StoreError, StoreNotFoundError
from sawlog.records import Entries, Records
from sawlog.run_files._statistics import added
from sawlog.store._format import _parse
from sawlog.store._format._store_notes import parsing
from sawlog.store._maintenance._remove import remove_store

COUNTED = "counted"
_TRIES = 20

Arrays = dict[str, tuple[np.ndarray, int]]


@dataclasses.dataclass(frozen=True)
class Saved:
    """Statistics that were saved.

    Args:
        arrays: by name, each with its count.
        ids: the examples that are in them; None if there are none.
        about: metadata.
    """

    arrays: Arrays
    ids: np.ndarray | None
    about: Any


def save(
    folder: Path, arrays: Mapping[str, tuple[np.ndarray, int]], ids: np.ndarray, meta: Any
) -> None:
    """Write a part, then remove its older states."""
    folder.mkdir(parents=True, exist_ok=True)
    older = _states(folder)
    number = int(older[-1].name) + 1 if older else 1
    entries = {
        name: Entries(np.asarray(array)[None], attrs={"count": count})
        for name, (array, count) in arrays.items()
    }
    with (
        new_folder(folder / f"{number:08d}") as aside,
        store.create(aside, meta={"about": meta}, interval=None) as writer,
    ):
        if entries:
            writer.write(Records(entries))
        if len(ids):
            writer.append(ids, {COUNTED: np.ones(len(ids), np.uint8)})
    for path in older:
        with contextlib.suppress(StoreError, OSError):  # an older state does not count
            remove_store(path)


def load(folder: Path) -> Saved | None:
    """Return the newest state of a part; None if it has no state."""
    for tries in range(_TRIES):
        states = _states(folder)
        if not states:
            return None
        try:
            return _read(states[-1])
        except (StoreNotFoundError, DamagedStoreError, FileNotFoundError):
            if _states(folder)[-1:] == states[-1:] or tries == _TRIES - 1:
                raise
            time.sleep(0.01)  # another process has just replaced it
    raise AssertionError


def _read(path: Path) -> Saved:
    with store.open(path) as reader:
        arrays = {}
        with parsing(path, "counts"):
            for series in reader.schema.series:
                name = series.column.name
                ((_, attrs),) = reader.attrs(name)
                count = _parse.integer(attrs["count"], "'count'")
                arrays[name] = (np.array(reader.read(name)[0]), count)
            about = _parse.mapping(reader.meta["about"], "'about'")
        ids = np.asarray(reader.ids(COUNTED)) if COUNTED in reader.names else None
        return Saved(arrays, ids, about)


def load_parts(folder: Path) -> Iterator[Saved]:
    """Yield the parts of all processes, sorted by name."""
    for path in sorted(folder.glob("part-*")):
        found = load(path) if path.is_dir() else None
        if found is not None:
            yield found


def joined(parts: Iterable[Saved], where: Path) -> Saved | None:
    """Return the sum of all parts, with the metadata of the last; None if there are no parts.

    Raises:
        DuplicateIdError: an example is in two of them.
    """
    arrays: Arrays = {}
    named: list[np.ndarray] = []
    about = None
    for part in parts:
        arrays, about = added(arrays, part.arrays), part.about
        named += [] if part.ids is None else [part.ids]
    if about is None:
        return None
    ids = np.concatenate(named) if named else None
    if ids is not None:
        unique, counts = np.unique(ids, return_counts=True)
        if len(unique) < len(ids):
            twice = unique[counts > 1]
            some = ", ".join(map(repr, twice[:5].tolist()))
            raise DuplicateIdError(
                f"{len(twice)} examples are in the statistics of two processes at {where}, such as "
                f"{some}, and would count twice. "
                "Hint: give each process different examples, or initialize torch.distributed "
                "before the run, and measure again with exists='replace'."
            )
    return Saved(arrays, ids, about)


def _states(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("[0-9]*") if path.is_dir())
