"""Which texts share rare words with a query: the baseline without any model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from sawlog.influence._bm25 import LexicalIndex


def bm25(
    queries: Mapping[Any, str], texts: Iterable[tuple[Any, str]], top: int = 10
) -> dict[Any, list[tuple[Any, float]]]:
    """Return the ``top`` texts of each query as ``[(id, score), ...]``; only positive scores.

    Texts are read once, and not kept. The scores are those of :func:`sawlog.influence.bm25`.

    >>> [each for each, _ in bm25({"q": "Cat!"}, [(1, "the cat sat"), (2, "a dog")])["q"]]
    [1]
    """
    ids: list[Any] = []

    def read() -> Iterator[str]:
        for each, text in texts:
            ids.append(each)
            yield text

    index = LexicalIndex(queries.values(), read())
    found = {}
    for query, text in queries.items():
        scores = index.scores(text)
        order = np.argsort(-scores, kind="stable")[:top]
        found[query] = [(ids[i], float(scores[i])) for i in order.tolist() if scores[i] > 0]
    return found
