"""Statistics on disk: stores in a folder, of which the newest counts.

A store is made aside and renamed into place, so there is always one that is whole. It has the ids
of the examples that are in the statistics: a run that goes on knows which ones are still missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sawlog import store
from sawlog._atomic import new_folder
from sawlog.errors import StoreError
from sawlog.records import Entries, Records
from sawlog.store._removal import remove_store

COUNTED = "counted"


def save(
    folder: Path, arrays: Mapping[str, tuple[np.ndarray, int]], ids: np.ndarray, meta: Any
) -> None:
    """Write statistics, and then remove older ones."""
    folder.mkdir(parents=True, exist_ok=True)
    older = _saved(folder)
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
        with contextlib.suppress(StoreError, OSError):  # it stays, and does not count
            remove_store(path)


def load(folder: Path) -> tuple[dict[str, tuple[np.ndarray, int]], np.ndarray | None, Any] | None:
    """The newest statistics, the ids that are in them, and their notes; None if there are none."""
    saved = _saved(folder)
    if not saved:
        return None
    with store.open(saved[-1]) as reader:
        arrays = {}
        for series in reader.schema.series:
            name = series.column.name
            ((_, attrs),) = reader.attrs(name)
            arrays[name] = (np.array(reader.read(name)[0]), int(attrs["count"]))
        ids = np.asarray(reader.ids(COUNTED)) if COUNTED in reader.names else None
        return arrays, ids, reader.meta["about"]


def _saved(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("[0-9]*") if path.is_dir())
