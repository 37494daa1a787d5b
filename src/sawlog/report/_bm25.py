"""BM25: which texts share rare words with a query, a baseline without any model."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

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

    >>> bm25({"q": "a cat"}, [(1, "the cat sat"), (2, "a dog"), (3, "birds")])["q"][0][0]
    1
    """
    asked = {query: Counter(words(text)) for query, text in queries.items()}
    terms = {term for counts in asked.values() for term in counts}
    ids: list[Any] = []
    lengths: list[int] = []
    postings: dict[str, list[tuple[int, int]]] = {term: [] for term in terms}
    for place, (each, text) in enumerate(texts):
        counts = Counter(words(text))
        ids.append(each)
        lengths.append(sum(counts.values()))
        for term in terms & counts.keys():
            postings[term].append((place, counts[term]))
    mean = sum(lengths) / len(lengths) if lengths else 1.0
    found = {}
    for query, own in asked.items():
        scores: dict[int, float] = {}
        for term in own:
            rarity = _rarity(len(postings[term]), len(ids))
            for place, times in postings[term]:
                share = _K * (1 - _B + _B * lengths[place] / (mean or 1.0))
                gain = rarity * times * (_K + 1) / (times + share)
                scores[place] = scores.get(place, 0.0) + gain
        best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:top]
        found[query] = [(ids[place], score) for place, score in best]
    return found


def _rarity(having: int, total: int) -> float:
    return math.log(1 + (total - having + 0.5) / (having + 0.5))
