"""The best of very many scores, without ever holding them all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from sawlog.errors import ArgumentError

SIGNS = ("positive", "negative", "absolute")


def check_top_k(k: Any, sign: Any) -> None:
    """Raise an ArgumentError for what is not a number of scores, or not a sign."""
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise ArgumentError(f"The number of best scores is a whole one from 1 on, got {k!r}.")
    if sign not in SIGNS:
        raise ArgumentError(f"sign is one of {', '.join(map(repr, SIGNS))}, got {sign!r}.")


@dataclasses.dataclass
class TopK:
    """For each query the ``k`` best scores so far, best first; of equals the one that came first.

    ``sign`` says what is best: the greatest, the least, or the farthest from 0. What is infinite
    or not a number is the worst in any case.
    """

    k: int
    sign: str = "positive"
    scores: np.ndarray | None = None
    ids: Any = None

    def add(self, scores: np.ndarray, ids: Any) -> None:
        """Take in scores ``[queries, examples]``."""
        keys, named = self._keys(scores), np.asarray(ids)
        if self.scores is not None and self.scores.shape[1] == self.k:
            least = self._keys(self.scores[:, -1:])
            better = np.flatnonzero((keys > least).any(0))
            if not len(better):
                return
            if len(better) < scores.shape[1]:
                scores, keys, named = scores[:, better], keys[:, better], named[better]
        chosen = _greatest(keys, self.k)
        self._merge(np.take_along_axis(scores, chosen, 1), named[chosen])

    def _keys(self, scores: np.ndarray) -> np.ndarray:
        keys = {"positive": scores, "negative": -scores, "absolute": np.abs(scores)}[self.sign]
        finite = np.isfinite(keys)
        return keys if finite.all() else np.where(finite, keys, -np.inf)

    def _merge(self, scores: np.ndarray, ids: np.ndarray) -> None:
        if self.scores is not None:
            scores = np.concatenate([self.scores, scores], 1)
            ids = np.concatenate([self.ids, ids], 1)
        order = np.argsort(-self._keys(scores), axis=1, kind="stable")[:, : self.k]
        self.scores = np.take_along_axis(scores, order, 1)
        self.ids = np.take_along_axis(ids, order, 1)

    @classmethod
    def joined(cls, parts: Sequence[TopK]) -> TopK:
        """The best of several, which came one after the other."""
        whole = cls(parts[0].k, parts[0].sign)
        for part in parts:
            if part.scores is not None:
                whole._merge(part.scores, part.ids)
        return whole


def _greatest(keys: np.ndarray, k: int) -> np.ndarray:
    """Where the ``k`` greatest of each row are, in order of place; of equals the first."""
    queries, count = keys.shape
    if count <= k:
        return np.broadcast_to(np.arange(count), (queries, count))
    limit = np.partition(keys, count - k, axis=1)[:, count - k, None]
    taken = keys >= limit
    if int(np.count_nonzero(taken)) > queries * k:  # some are equal to the last one that counts
        above = keys > limit
        equal = taken & ~above
        taken = above | (equal & (np.cumsum(equal, axis=1) <= k - above.sum(1, keepdims=True)))
    return np.nonzero(taken)[1].reshape(queries, k)
