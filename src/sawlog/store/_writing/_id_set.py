"""The example ids that a writer knows: which of new ids are duplicates?"""

from __future__ import annotations

import numpy as np

from sawlog.store._format._ids import Kind


class IdSet:
    """A growing set of ids, with lookups of many ids at once."""

    def __init__(self, kind: Kind) -> None:
        self._texts: set[str] | None = set() if kind == "str" else None
        # Sorted arrays, each at most half as long as the one before.
        self._runs: tuple[np.ndarray, ...] = ()

    def add(self, ids: np.ndarray | list[str]) -> None:
        """Add ids. After an interrupt it can be called again, and nothing is lost."""
        if self._texts is not None:
            self._texts.update(ids)
            return
        run, runs = np.unique(ids), self._runs
        while runs and len(runs[-1]) < 2 * len(run):
            run = np.sort(np.concatenate([runs[-1], run]), kind="stable")
            runs = runs[:-1]
        if len(run):
            self._runs = (*runs, run)

    def has(self, ids: np.ndarray | list[str]) -> np.ndarray:
        """Return for each id whether the set contains it."""
        if self._texts is not None:
            texts = self._texts
            return np.fromiter((text in texts for text in ids), dtype=bool, count=len(ids))
        found = np.zeros(len(ids), dtype=bool)
        for run in self._runs:
            at = np.minimum(np.searchsorted(run, ids), len(run) - 1)
            found |= run[at] == ids
        return found


def first_of_each(ids: np.ndarray | list[str]) -> np.ndarray:
    """Return for each id whether it is its first occurrence."""
    if isinstance(ids, np.ndarray):
        if len(ids) < 2 or bool((ids[1:] > ids[:-1]).all()):
            return np.ones(len(ids), dtype=bool)
        first = np.zeros(len(ids), dtype=bool)
        first[np.unique(ids, return_index=True)[1]] = True
        return first
    seen: set[str] = set()
    return np.array([not (text in seen or seen.add(text)) for text in ids], dtype=bool)  # type: ignore[func-returns-value]
