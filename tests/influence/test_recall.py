"""``recall`` and ``bm25``: against loops written by hand."""

import math

import numpy as np
import pytest

from sawlog.errors import ArgumentError
from sawlog.influence import Scores, bm25, recall

VALUES = np.array([[5.0, 1.0, 3.0, 2.0, 4.0], [0.0, 0.0, 0.0, 1.0, -1.0]])
SCORES = Scores(np.array(["a", "b"]), np.arange(5), VALUES)


def test_ranks_of_planted_examples():
    found = recall(SCORES, {"a": [2, 4], "b": [3]}, k=[1, 2, 3])
    assert found.first == {"a": 2, "b": 1}
    assert found.mrr == pytest.approx((1 / 2 + 1) / 2)
    assert found.mrr_error == pytest.approx(0.25)
    assert found.at == {1: 0.5, 2: (0.5 + 1) / 2, 3: 1.0}
    assert str(found) == (
        "MRR 0.75 ± 0.25, recall at 1 0.50, recall at 2 0.75, recall at 3 1.00 (2 queries)"
    )


def test_equal_scores_share_their_rank():
    assert recall(SCORES, {"b": [0]}).first == {"b": 3}
    flat = Scores(np.array([0]), np.arange(101), np.zeros((1, 101)))
    assert recall(flat, {0: [7]}, k=10).at == {10: 0.0}
    assert recall(flat, {0: [7]}, k=10).mrr_error is None


@pytest.mark.parametrize("listed", [list, tuple, np.array, iter], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("repeated", [[2, 2, 1], [1, 2, 2], [2, 1, 2]])
def test_an_example_that_is_listed_twice_is_planted_once(repeated, listed):
    found = recall(SCORES, {"a": listed(repeated)}, k=[3])
    assert found == recall(SCORES, {"a": [1, 2]}, k=[3])
    assert found.at == {3: 0.5}


@pytest.mark.parametrize("sign", ["positive", "negative", "absolute"])
def test_the_top_k_gives_the_same(sign):
    values = np.random.default_rng(0).normal(size=(3, 20))
    scores = Scores(np.arange(3), np.arange(20), values)
    keys = {"positive": values, "negative": -values, "absolute": abs(values)}[sign]
    first = keys.argmax(1)
    facts = {q: [int(first[q]), int(keys[q].argmin())] for q in range(3)}
    found = recall(scores.top(5, sign), facts, k=[1, 5])
    assert (found.mrr, found.at) == (1.0, {1: 0.5, 5: 0.5})
    unseen = recall(scores.top(5, sign), {0: facts[0][1:]}, k=5)
    assert (unseen.mrr, unseen.first, unseen.at) == (0.0, {0: None}, {5: 0.0})


@pytest.mark.parametrize(
    ("facts", "k", "message"),
    [
        ({}, 1, "at least one query"),
        ({"c": [1]}, 1, "no query 'c'"),
        ({"a": []}, 1, "'a' has no planted examples"),
        ({"a": [9, 1]}, 1, "have no examples 9"),
        ({"a": [1]}, 0, "`k` must be a positive integer"),
    ],
)
def test_refused(facts, k, message):
    with pytest.raises(ArgumentError, match=message):
        recall(SCORES, facts, k)


def test_a_top_k_that_is_too_short_is_refused():
    with pytest.raises(ArgumentError, match="the recall at 10 is not known"):
        recall(SCORES.top(2), {"a": [1]})


# ---- words

TEXTS = [
    "the cat sat on the mat",
    "The dog sat.",
    "a cat, a cat and a dog",
    "nothing in common",
    "",
]
ASKED = {"x": "where sat the cat", "y": "unheard of", "z": "dog dog"}


def by_hand(text, asked, k1=1.2, b=0.75):
    words = [
        "".join(c if c.isalnum() else " " for c in each.lower()).split() for each in [*TEXTS, asked]
    ]
    *documents, asked = words
    own, mean = documents[TEXTS.index(text)], sum(map(len, documents)) / len(documents)
    total = 0.0
    for word in asked:
        n = sum(word in each for each in documents)
        idf = math.log((len(documents) - n + 0.5) / (n + 0.5) + 1)
        f = own.count(word)
        if f:
            total += idf * f * (k1 + 1) / (f + k1 * (1 - b + b * len(own) / mean))
    return total


@pytest.mark.parametrize("options", [{}, {"k1": 0.0}, {"k1": 2.0, "b": 0.0}])
def test_words_in_common(options):
    scores = bm25(TEXTS, ASKED, **options)
    assert scores.queries.tolist() == ["x", "y", "z"]
    wanted = [[by_hand(text, asked, **options) for text in TEXTS] for asked in ASKED.values()]
    np.testing.assert_allclose(scores.values, wanted)
    assert not scores.values[1].any()


def test_ids_and_words_of_the_user():
    scores = bm25({"d1": "AB", "d2": "CD"}, ["B"], words=list)
    assert scores.ids.tolist() == ["d1", "d2"]
    assert scores.values[0, 0] > scores.values[0, 1] == 0
    assert not bm25([""], ["x"]).values.any()


@pytest.mark.parametrize(
    ("train", "queries", "options", "message"),
    [
        ([], ["x"], {}, "no texts"),
        (["x"], {}, {}, "no queries"),
        ("x", ["x"], {}, "one string"),
        (["x"], ["x"], {"b": 2.0}, "`b` must be a number from 0 to 1"),
        (["x"], ["x"], {"k1": -1.0}, "`k1` must be a non-negative number"),
    ],
)
def test_texts_that_are_refused(train, queries, options, message):
    with pytest.raises(ArgumentError, match=message):
        bm25(train, queries, **options)
