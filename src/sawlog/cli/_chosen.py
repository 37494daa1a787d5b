"""Arguments that stand for several stores or names."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from pathlib import Path

from sawlog.errors import ArgumentError
from sawlog.store._schema import unknown_name


def some(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """The paths, of which there is at least one.

    Raises:
        ArgumentError: there is none.
    """
    if not paths:
        raise ArgumentError("No store was given. Hint: sawlog ls FOLDER lists those there are.")
    return paths


def matching(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """The names that are asked for, in the order they have; all where nothing is.

    >>> matching(["loss", "grad/a", "grad/b"], ["grad/*", "loss"])
    ['loss', 'grad/a', 'grad/b']

    Raises:
        UnknownNameError: nothing has the name, or matches the pattern.
    """
    known = dict.fromkeys(names)
    found: set[str] = set()
    for pattern in patterns:
        matches = [pattern] if pattern in known else fnmatch.filter(known, pattern)
        if not matches:
            raise unknown_name(pattern, known)
        found.update(matches)
    return [name for name in known if name in found] if patterns else list(known)
