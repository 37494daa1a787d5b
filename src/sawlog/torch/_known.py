"""Which examples are logged already: by an earlier program, or by this one."""

from __future__ import annotations

import numpy as np


class Known:
    """Ids of examples, those of an earlier program apart from those of this one."""

    def __init__(self) -> None:
        self._before: np.ndarray | None = None
        self._now: set[int | str] = set()

    def begin_with(self, ids: np.ndarray) -> None:
        """These were logged by an earlier program."""
        self._before = np.unique(ids)

    def add(self, ids: np.ndarray) -> None:
        """These were logged now."""
        self._now.update(ids.tolist())

    def seen_now(self, ids: np.ndarray) -> np.ndarray:
        """Which of them this program logged."""
        return np.array([each in self._now for each in ids.tolist()], bool)

    def missing(self, ids: np.ndarray) -> np.ndarray:
        """Which of them nobody logged."""
        there = self.seen_now(ids)
        if self._before is not None and len(self._before) and len(ids):
            if self._before.dtype.kind != ids.dtype.kind:
                return ~there
            at = np.searchsorted(self._before, ids)
            at = np.minimum(at, len(self._before) - 1)
            there |= self._before[at] == ids
        return ~there
