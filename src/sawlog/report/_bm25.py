"""BM25: which texts share rare words with a query, a baseline without any model."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

_WORD = re.compile(r"\w+")
_K, _B = 1.5, 0.75


def words(text: str) -> list[str]:
    """Return the words of a text in lower case.

    >>> words("The cat, the CAT.")
    ['the', 'cat', 'the', 'cat']
    """
    return _WORD.findall(text.lower())


def bm25(
    queries: Mapping[Any, str], texts: Iterable[tuple[Any, str]], top: int = 10
) -> dict[Any, list[tuple[Any, float]]]:
    """Return the ``top`` texts of each query as ``[(id, score), ...]``; only positive scores.

    Texts are read once, and only the counts of the words of queries are kept.

    >>> [each for each, _ in bm25({"q": "Cat!"}, [(1, "the cat sat"), (2, "a dog")])["q"]]
    [1]
    """
    asked = {query: set(words(text)) for query, text in queries.items()}
    terms = set().union(*asked.values())
    ids: list[Any] = []
    lengths: list[int] = []
    places: dict[str, list[int]] = {term: [] for term in terms}
    times: dict[str, list[int]] = {term: [] for term in terms}
    for each, text in texts:
        own = words(text)
        for term, count in Counter(word for word in own if word in terms).items():
            places[term].append(len(ids))
            times[term].append(count)
        ids.append(each)
        lengths.append(len(own))
    sizes = np.array(lengths, np.float64)
    share = _K * (1 - _B + _B * sizes / (float(sizes.mean() or 1.0) if ids else 1.0))
    gains = {}
    for term in terms:
        where, often = np.array(places[term], np.int64), np.array(times[term], np.float64)
        rarity = math.log(1 + (len(ids) - len(where) + 0.5) / (len(where) + 0.5))
        gains[term] = (where, rarity * often * (_K + 1) / (often + share[where]))
    found = {}
    for query, chosen in asked.items():
        scores = np.zeros(len(ids))
        for term in sorted(chosen):
            where, gain = gains[term]
            scores[where] += gain
        order = np.argsort(-scores, kind="stable")[:top]
        found[query] = [(ids[i], float(scores[i])) for i in order.tolist() if scores[i] > 0]
    return found
