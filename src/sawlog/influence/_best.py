"""The best of very many scores, without ever holding them all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

SIGNS = ("positive", "negative", "absolute")


@dataclasses.dataclass
class Best:
    """For each query the ``k`` best scores so far, best first; of equals the one that came first.

    ``sign`` says what is best: the greatest, the least, or the farthest from 0.
    """

    k: int
    sign: str = "positive"
    scores: np.ndarray | None = None
    ids: Any = None

    def add(self, scores: np.ndarray, ids: Any) -> None:
        """Take in scores ``[queries, examples]``."""
        keys = self._keys(scores)
        count = scores.shape[1]
        if count > self.k:
            chosen = np.argpartition(-keys, self.k - 1, axis=1)[:, : self.k]
            chosen.sort(axis=1)
        else:
            chosen = np.broadcast_to(np.arange(count), (len(scores), count))
        found = np.take_along_axis(scores, chosen, 1)
        self._merge(found, np.asarray(ids)[chosen])

    def _keys(self, scores: np.ndarray) -> np.ndarray:
        keys = {"positive": scores, "negative": -scores, "absolute": np.abs(scores)}[self.sign]
        return np.where(np.isnan(keys), -np.inf, keys)

    def _merge(self, scores: np.ndarray, ids: np.ndarray) -> None:
        if self.scores is not None:
            scores = np.concatenate([self.scores, scores], 1)
            ids = np.concatenate([self.ids, ids], 1)
        order = np.argsort(-self._keys(scores), axis=1, kind="stable")[:, : self.k]
        self.scores = np.take_along_axis(scores, order, 1)
        self.ids = np.take_along_axis(ids, order, 1)

    @classmethod
    def joined(cls, parts: Sequence[Best]) -> Best:
        """The best of several."""
        whole = cls(parts[0].k, parts[0].sign)
        for part in parts:
            if part.scores is not None:
                whole._merge(part.scores, part.ids)
        return whole
