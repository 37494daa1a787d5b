"""Which stores of rows the folders stand for that were given: a run has one of each kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sawlog import store
from sawlog.cli._chosen import matching
from sawlog.errors import ArgumentError, StoreNotFoundError, UnknownIdError
from sawlog.influence import Logs

_FOUND = "Hint: sawlog ls FOLDER lists the stores under a folder."


def one(path: Path) -> Path:
    """The store of rows of a run, or at a path.

    Raises:
        StoreNotFoundError: there is none.
        ArgumentError: there are several.
    """
    found = _stores(path)
    if len(found) > 1:
        raise _several(path, found)
    return found[0]


def two(train: Path, queries: Path) -> tuple[Path, Path]:
    """The stores of rows of two runs; where there are several, those that are called the same.

    Raises:
        StoreNotFoundError: there is none.
        ArgumentError: there are several still.
    """
    ours, theirs = _stores(train), _stores(queries)
    if len(ours) > 1 or len(theirs) > 1:
        shared = {each.name for each in ours} & {each.name for each in theirs}
        ours, theirs = ([e for e in those if e.name in shared] or those for those in (ours, theirs))
    for path, found in ((train, ours), (queries, theirs)):
        if len(found) > 1:
            raise _several(path, found)
    return ours[0], theirs[0]


def _stores(path: Path) -> list[Path]:
    if not path.is_dir():
        what = "a file, and no run or store" if path.exists() else "not there"
        raise StoreNotFoundError(f"{path} is {what}. {_FOUND}")
    if (path / "store.json").exists():
        return [path]
    folder = path if path.name == "logs" else path / "logs"
    found = sorted(each.parent for each in folder.glob("*/store.json"))
    if found:
        return found
    if (path / "statistics").is_dir():
        raise StoreNotFoundError(
            f"The run at {path} has statistics, and no rows of examples. Hint: run over the data "
            'with run.setup(save="grad").'
        )
    raise StoreNotFoundError(f"There is no run and no store at {path}. {_FOUND}")


def _several(path: Path, found: list[Path]) -> ArgumentError:
    listed = ", ".join(each.name for each in found)
    return ArgumentError(
        f"The run at {path} has rows of several kinds: {listed}. Hint: give one of them, as "
        f"{found[0]}."
    )


def layers(logs: Logs, patterns: tuple[str, ...]) -> list[str] | None:
    """The layers that are asked for; None for all."""
    return matching(logs.layers, patterns) if patterns else None


def some(logs: Logs, wanted: tuple[str, ...]) -> Logs:
    """The logs of some examples, by their ids as they are typed; all if none are."""
    if not wanted:
        return logs
    ids = _ids(logs, wanted)
    there = set(logs.ids.tolist() if isinstance(logs.ids, np.ndarray) else logs.ids)
    lacking = [each for each in ids if each not in there]
    if lacking:
        raise UnknownIdError(
            f"--query: there is no {', '.join(repr(each) for each in lacking[:5])} at {logs.path}. "
            f"Hint: sawlog show {logs.path} shows some of the ids."
        )
    part = logs.gather(ids)
    return logs.of(part)


def _ids(logs: Logs, wanted: tuple[str, ...]) -> list[Any]:
    unique = list(dict.fromkeys(wanted))
    if not isinstance(logs.ids, np.ndarray):
        return unique
    try:
        return [int(each) for each in unique]
    except ValueError:
        raise ArgumentError(
            f"--query {' '.join(unique)}: the ids in {logs.path} are whole numbers. Hint: sawlog "
            f"show {logs.path} shows some of them."
        ) from None


def opened(path: Path) -> Logs:
    """The rows at a path."""
    return Logs(store.open(path))
