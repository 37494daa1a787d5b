"""BM25: a baseline that compares words and knows nothing about the model."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sawlog._validate import fraction, non_negative_number
from sawlog.errors import ArgumentError
from sawlog.influence._scores import Scores

Texts = Mapping[Any, str] | Sequence[str]

_WORD = re.compile(r"\w+")


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case.

    >>> words_of("The cat's hat")
    ['the', 'cat', 's', 'hat']
    """
    return _WORD.findall(text.lower())


def bm25(
    train: Texts,
    queries: Texts,
    *,
    k1: float = 1.2,
    b: float = 0.75,
    words: Callable[[str], Iterable[str]] = words_of,
) -> Scores:
    """Score training texts by the words that they share with query texts: a lexical baseline.

    A method that finds the sentence of a fact no better than this has found common words, not
    what the model learned from. Rare words count more, and long texts less.

    Args:
        train: The texts by id, or a sequence of texts, whose ids are indices.
        queries: The same for queries.
        k1: How much a repeated word adds; 0 counts each word once.
        b: How much the length of a text matters, from 0 to 1.
        words: A function from a text to its words.

    Raises:
        ArgumentError: There are no texts, or an option is not valid.

    >>> bm25(["a red cat", "a blue dog"], {"q": "red hat"}).top(1)["q"][0][0]
    0
    """
    non_negative_number("k1", k1)
    fraction("b", b)
    ids, documents = _split(train)
    named, asked = _split(queries)
    if not documents or not asked:
        raise ArgumentError("There are no texts to score, or no queries to score them for.")
    counts = [Counter(words(text)) for text in documents]
    lengths = np.array([own.total() for own in counts], float)
    mean = lengths.mean()
    length = k1 * (1 - b + b * (lengths / mean if mean else lengths))
    questions = [Counter(words(text)) for text in asked]
    found: dict[str, list[int]] = {word: [] for own in questions for word in own}
    for place, own in enumerate(counts):
        for word in own.keys() & found.keys():
            found[word].append(place)
    values = np.zeros((len(asked), len(documents)))
    for row, own in enumerate(questions):
        for word, times in own.items():
            places = found[word]
            if places:
                rare = math.log(1 + (len(counts) - len(places) + 0.5) / (len(places) + 0.5))
                often = np.array([counts[place][word] for place in places], float)
                values[row, places] += times * rare * often * (k1 + 1) / (often + length[places])
    return Scores(named, ids, values, about={"method": "bm25", "unit": None})


def _split(texts: Texts) -> tuple[np.ndarray, list[str]]:
    if isinstance(texts, str):
        raise ArgumentError("Texts are a dict by id or a sequence; got one string.")
    if isinstance(texts, Mapping):
        return np.array(list(texts)), list(texts.values())
    return np.arange(len(texts)), list(texts)
