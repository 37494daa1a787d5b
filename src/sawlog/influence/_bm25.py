"""BM25: a baseline that compares words and knows nothing about the model."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sawlog._validate import fraction, non_negative_number, refuse
from sawlog.errors import ArgumentError
from sawlog.influence._scores import Scores

Texts = Mapping[Any, str] | Sequence[str]

K1, B = 1.2, 0.75
_WORD = re.compile(r"\w+")


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case.

    >>> words_of("The cat's hat")
    ['the', 'cat', 's', 'hat']
    """
    return _WORD.findall(text.lower())


class LexicalIndex:
    """How often texts contain the words of queries; texts are read once, and not kept.

    Args:
        queries: the texts of the queries that will be asked for.
        texts: the texts to score.
        k1, b, words: as for :func:`bm25`.
    """

    def __init__(
        self,
        queries: Iterable[str],
        texts: Iterable[str],
        *,
        k1: float = K1,
        b: float = B,
        words: Callable[[str], Iterable[str]] = words_of,
    ) -> None:
        self._k1, self._words = k1, words
        places: dict[str, list[int]] = {word: [] for text in queries for word in words(text)}
        times: dict[str, list[int]] = {word: [] for word in places}
        lengths: list[int] = []
        for place, text in enumerate(texts):
            own = list(words(text))
            for word, count in Counter(word for word in own if word in places).items():
                places[word].append(place)
                times[word].append(count)
            lengths.append(len(own))
        self._found = {
            word: (np.array(places[word], int), np.array(times[word], float)) for word in places
        }
        sizes = np.array(lengths, float)
        mean = sizes.mean() if lengths else 0.0
        self._length = k1 * (1 - b + b * (sizes / mean if mean else sizes))

    def scores(self, query: str) -> np.ndarray:
        """Return the score of each text for a query; a word that is repeated counts repeatedly."""
        total = len(self._length)
        values = np.zeros(total)
        for word, times in Counter(self._words(query)).items():
            where, often = self._found[word]
            if len(where):
                rare = math.log(1 + (total - len(where) + 0.5) / (len(where) + 0.5))
                gain = often * (self._k1 + 1) / (often + self._length[where])
                values[where] += times * rare * gain
        return values


def bm25(
    train: Texts,
    queries: Texts,
    *,
    k1: float = K1,
    b: float = B,
    words: Callable[[str], Iterable[str]] = words_of,
) -> Scores:
    """Score training texts by the words that they share with query texts: a lexical baseline.

    A method that finds the sentence of a fact no better than this has found common words, not
    what the model learned from. Rare words count more, and long texts less.

    Args:
        train: the texts by id, or a sequence of texts, whose ids are indices.
        queries: the same for queries.
        k1: how much a repeated word adds; 0 counts each word once.
        b: how much the length of a text matters, from 0 to 1.
        words: a function from a text to its words.

    Raises:
        ArgumentError: there are no texts, or an option is not valid.

    >>> bm25(["a red cat", "a blue dog"], {"q": "red hat"}).top(1)["q"][0][0]
    0
    """
    non_negative_number("k1", k1)
    fraction("b", b)
    ids, documents = _split(train)
    named, asked = _split(queries)
    if not documents or not asked:
        lacking = "queries" if documents else "texts to score"
        raise ArgumentError(
            f'There are no {lacking}. Hint: bm25(["a text", ...], {{"query": "its text"}}).'
        )
    index = LexicalIndex(asked, documents, k1=k1, b=b, words=words)
    values = np.stack([index.scores(text) for text in asked])
    return Scores(named, ids, values, about={"method": "bm25", "unit": None})


def _split(texts: Texts) -> tuple[np.ndarray, list[str]]:
    if isinstance(texts, str):
        raise ArgumentError("Texts are a dict by id or a sequence; got one string. Hint: [text].")
    listed = list(texts.values() if isinstance(texts, Mapping) else texts)
    others = [each for each in listed if not isinstance(each, str)]
    if others:
        refuse("texts", "strings", others[0], "[str(each) for each in texts].")
    return np.array(list(texts)) if isinstance(texts, Mapping) else np.arange(len(listed)), listed
