"""Which examples are logged already: by an earlier program, by this one, or by another process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sawlog.capture._ranks import Ranks


class SeenIds:
    """The ids that earlier programs logged, and those of this pass."""

    def __init__(self) -> None:
        self._before: np.ndarray | None = None
        self._now: set[int | str] = set()

    def load(self, ids: np.ndarray) -> None:
        """Take in the ids that earlier programs logged."""
        self._before = np.unique(ids)

    def keep(self, ids: np.ndarray) -> None:
        """Forget what earlier programs logged, except for these ids."""
        if self._before is not None:
            self._before = self._before[np.isin(self._before, ids)]

    def add(self, ids: np.ndarray) -> None:
        """Add ids that this pass logged."""
        self._now.update(ids.tolist())

    def seen_now(self, ids: np.ndarray) -> np.ndarray:
        """Return which ids this pass logged, as a mask."""
        return np.array([each in self._now for each in ids.tolist()], bool)

    def missing(self, ids: np.ndarray) -> np.ndarray:
        """Return which ids are not logged yet, as a mask."""
        seen = self.seen_now(ids)
        if self._before is not None and len(self._before) and len(ids):
            if self._before.dtype.kind != ids.dtype.kind:
                return ~seen
            at = np.searchsorted(self._before, ids)
            at = np.minimum(at, len(self._before) - 1)
            seen |= self._before[at] == ids
        return ~seen


class Claims:
    """Which process of a distributed job logs an example that several of them have.

    Samplers that give every process the same number of examples repeat some. The process that
    claims an id first logs it.

    Args:
        ranks: the processes that share the run; None if there is only one.
        folder: the part of the run that the claims are for.
    """

    def __init__(self, ranks: Ranks | None, folder: str) -> None:
        self._group = None if ranks is None else ranks.group
        self._name = "" if ranks is None else f"{ranks.name}/{folder}"
        self._own: dict[int | str, bool] = {}

    def take(self, ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """Return which of the wanted ids, a mask, this process logs."""
        if self._group is None:
            return wanted
        return np.array(
            [own and self._claim(each) for each, own in zip(ids.tolist(), wanted, strict=True)],
            bool,
        )

    def _claim(self, each: int | str) -> bool:
        assert self._group is not None
        if each not in self._own:
            key = f"{self._name}/{type(each).__name__}/{each}"
            self._own[each] = self._group.claim(key)
        return self._own[each]
