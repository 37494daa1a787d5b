"""``find_runs`` and ``run_summary``: the runs under a folder, without reading their data."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sawlog.store
from sawlog._format import iso
from sawlog._paths import absolute, natural_order
from sawlog.errors import SawlogError
from sawlog.inspect._coverage import Coverage, coverage_of
from sawlog.inspect._overview import StoreOverview, _is_store, store_overview
from sawlog.inspect._store_folders import run_file, stores_under
from sawlog.run_files._saved_options import NAME as RUN_FILE
from sawlog.store._format._json_files import reason_of
from sawlog.store._format._loose_json import read_loose_json

_PARTS = ("metrics", "logs", "statistics", "curvature", "scores", "data")
_STATES = ("damaged", "failed", "writing", "unfinished", "newer", "unreadable", "closed", "empty")


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """A run: one store of series, or the folder of a capture run with several stores.

    Args:
        path: its folder.
        kind: ``"store"`` or ``"capture"``.
        state: the most serious state of its stores, see :class:`StoreOverview`.
        created: when it was created, in ISO 8601; None if unknown.
        written: when something was written last, in seconds since the epoch; None if unknown.
        config: its configuration, nested values named like ``optimizer.lr``.
        stores: its stores by their path within the run; ``"."`` is the run itself.
        coverage: what a capture run watches; None for a store.
        problem: why it cannot be read; None if it can.
    """

    path: Path
    kind: str
    state: str
    created: str | None
    written: float | None
    config: dict[str, Any]
    stores: dict[str, StoreOverview]
    coverage: Coverage | None = None
    problem: str | None = None

    @property
    def nbytes(self) -> int:
        """The size of its stores in bytes."""
        return sum(store.nbytes for store in self.stores.values())

    def store_paths(self, part: str) -> list[Path]:
        """Return the paths of the stores of one part, such as ``"logs"`` or ``"scores"``."""
        return [self.path / name for name in self.stores if name.split("/")[0] == part]

    @property
    def series_path(self) -> Path | None:
        """The store with the series of the run; None if nothing was logged by step."""
        if self.kind == "store":
            return self.path
        return self.path / "metrics" if "metrics" in self.stores else None

    def to_json(self) -> dict[str, Any]:
        """Return the fields in types of JSON."""
        return {
            "path": str(self.path),
            "kind": self.kind,
            "state": self.state,
            "created": self.created,
            "written": iso(self.written),
            "bytes": self.nbytes,
            "config": self.config,
            "stores": {name: store.to_json() for name, store in self.stores.items()},
            "coverage": None if self.coverage is None else self.coverage.to_json(),
            "problem": self.problem,
        }


def find_runs(
    folder: str | os.PathLike[str], on_error: Callable[[OSError], None] | None = None
) -> Iterator[Path]:
    """Find the runs under a folder: capture runs, and stores that belong to none.

    Saved scores, curvatures and described examples are stores, but not runs.

    Args:
        folder: where to search, itself included.
        on_error: called with the error of each folder that cannot be read; None ignores these.
    """
    for here, below, files in os.walk(folder, onerror=on_error):
        below.sort(key=natural_order)
        place = Path(here)
        if _is_store(place, below, files):
            below.clear()
            if not _is_part(place):
                yield place
        elif is_capture_run(place):
            below.clear()
            yield place


def is_capture_run(folder: Path) -> bool:
    """Return whether a folder is that of a capture run."""
    if (folder / RUN_FILE).is_file():
        return True
    if any((folder / part).is_dir() for part in ("logs", "statistics")):
        return True
    return (folder / "metrics" / "store.json").is_file()


def _is_part(store: Path) -> bool:
    """Return whether a store holds scores, a curvature or examples, by its ``store.json``."""
    try:
        meta = read_loose_json(store, "store.json").get("meta", {})
    except (OSError, ValueError, AttributeError):
        return False
    return isinstance(meta, dict) and any(n in meta for n in ("scores", "curvature", "examples"))


def run_summary(path: str | os.PathLike[str]) -> RunSummary:
    """Summarize a run by the headers of its stores.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp() + "/seed-0"
    >>> with sawlog.store.create(folder, meta={"config": {"optimizer": {"lr": 0.1}}}) as writer:
    ...     writer.log({"loss": 0.5}, step=0)
    >>> run = run_summary(folder)
    >>> run.state, run.config, run.stores["."].entries
    ('closed', {'optimizer.lr': 0.1}, 1)
    """
    folder = absolute(path)
    if not is_capture_run(folder):
        return _store_run(folder)
    stores = {
        found.relative_to(folder).as_posix(): overview
        for part in _PARTS
        for found in stores_under(folder / part)
        if (overview := store_overview(found)) is not None
    }
    config, created, problem = _options(folder)
    return RunSummary(
        folder,
        "capture",
        _worst([store.state for store in stores.values()]),
        created,
        max((s.written for s in stores.values() if s.written is not None), default=None),
        config,
        stores,
        coverage_of(folder),
        problem,
    )


def _store_run(folder: Path) -> RunSummary:
    overview = store_overview(folder)
    if overview is None:
        return RunSummary(folder, "store", "unreadable", None, None, {}, {}, problem="is gone")
    created, meta, problem = None, {}, overview.problem
    try:
        with sawlog.store.open(folder, damaged="skip") as reader:
            created, meta = reader.created, reader.meta
    except (SawlogError, OSError) as error:
        problem = problem or str(error).partition(" Hint:")[0]
    config = meta.get("config") if isinstance(meta.get("config"), dict) else None
    rest = {name: value for name, value in meta.items() if config is None or name != "config"}
    return RunSummary(
        folder,
        "store",
        overview.state,
        created,
        overview.written,
        flattened({**rest, **(config or {})}),
        {".": overview},
        problem=problem,
    )


def _options(folder: Path) -> tuple[dict[str, Any], str | None, str | None]:
    """Return the options of a capture run, when they were written, and why they are missing."""
    try:
        said = run_file(folder)
        if said is None:
            return {}, None, None
        created = iso((folder / RUN_FILE).stat().st_mtime)
        return flattened(said["options"]), created, None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return {}, None, f"{RUN_FILE} cannot be read: {reason_of(error)}"


def flattened(nested: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested dicts as one dict, with names like ``optimizer.lr``.

    >>> flattened({"a": {"b": 1}, "c": [1, 2]})
    {'a.b': 1, 'c': [1, 2]}
    """
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, dict) and value:
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _worst(states: list[str]) -> str:
    return next((state for state in _STATES if state in states), "empty")
