"""The top k of a stream of scores, without holding all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from sawlog._validate import one_of, positive_integer

SIGNS = ("positive", "negative", "absolute")


def check_top_k(k: Any, sign: Any, name: str = "k") -> None:
    """Raise an ArgumentError unless ``k`` is a positive integer and ``sign`` is valid."""
    positive_integer(name, k)
    one_of("sign", sign, SIGNS)


@dataclasses.dataclass
class TopK:
    """For each query the ``k`` best scores so far, best first; ties keep the order of arrival.

    ``sign`` chooses what is best: ``"positive"`` the greatest, ``"negative"`` the least,
    ``"absolute"`` the greatest magnitude. Infinities and NaN always rank last.
    """

    k: int
    sign: str = "positive"
    scores: np.ndarray | None = None
    ids: Any = None

    def add(self, scores: np.ndarray, ids: Any) -> None:
        """Merge scores ``[queries, examples]``."""
        keys, named = self._keys(scores), np.asarray(ids)
        if self.scores is not None and self.scores.shape[1] == self.k:
            least = self._keys(self.scores[:, -1:])
            better = np.flatnonzero((keys > least).any(0))
            if not len(better):
                return
            if len(better) < scores.shape[1]:
                scores, keys, named = scores[:, better], keys[:, better], named[better]
        chosen = _indices_of_greatest(keys, self.k)
        self._merge(np.take_along_axis(scores, chosen, 1), named[chosen])

    def _keys(self, scores: np.ndarray) -> np.ndarray:
        """Return numbers that are greater for better scores."""
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
        """Return the top k of consecutive parts."""
        whole = cls(parts[0].k, parts[0].sign)
        for part in parts:
            if part.scores is not None:
                whole._merge(part.scores, part.ids)
        return whole


def _indices_of_greatest(keys: np.ndarray, k: int) -> np.ndarray:
    """Return where the ``k`` greatest of each row are, ascending; ties take the first."""
    queries, count = keys.shape
    if count <= k:
        return np.broadcast_to(np.arange(count), (queries, count))
    limit = np.partition(keys, count - k, axis=1)[:, count - k, None]
    taken = keys >= limit
    if int(np.count_nonzero(taken)) > queries * k:  # ties with the k-th
        above = keys > limit
        equal = taken & ~above
        taken = above | (equal & (np.cumsum(equal, axis=1) <= k - above.sum(1, keepdims=True)))
    return np.nonzero(taken)[1].reshape(queries, k)
