"""What is said of examples that are listed for their words alone, and of single groups."""

from types import SimpleNamespace

import numpy as np

from sawlog.example_data import Example
from sawlog.influence import Scores
from sawlog.report import _attribution
from sawlog.report._groups import GroupBuilder


def test_examples_that_share_words_are_described():
    """Also where their scores are 0, so that they are in no other list."""
    texts = {1: "a red cat", 2: "the blue dog", 3: "red"}
    known = {each: Example(text=text) for each, text in texts.items()}
    data = SimpleNamespace(
        get=lambda ids: {each: known[each] for each in ids}, batches=lambda: [known]
    )
    asked = SimpleNamespace(get=lambda ids: {"q": Example(text="red cat")})
    scores = Scores(np.array(["q"]), np.array([1, 2, 3]), np.array([[0.0, 1.0, 0.0]]))
    part = _attribution.attribution_part(_attribution.ScoredRun("some", scores, data, asked))
    (query,) = part["queries"]
    assert [row["id"] for row in query["helpful"]] == [2]
    assert [each for each, _ in query["lexical"]] == [1, 3]
    assert {each: said["text"] for each, said in part["examples"].items()} == {
        str(each): text for each, text in texts.items()
    }


def test_a_change_is_predicted_if_the_number_of_examples_is_known():
    about = {"mode": "dot", "curvature": "ekfac"}
    whole = Scores(np.array(["q"]), np.arange(4), np.ones((1, 4)), about=about)
    few = whole.top(2)
    told = Scores(few.queries, few.ids, few.values, about={**few.about, "examples": 4})
    for scores, predicts in ((whole, True), (few, False), (told, True)):
        found = _attribution.trust(_attribution.ScoredRun("some", scores))
        assert found["predicts"] is predicts
        assert found["examples"] == (4 if predicts else None)


def test_one_group_is_no_grouping():
    builder = GroupBuilder([1, 2])
    for each in (1, 2):
        builder.add(each, {"same": "a", "other": each})
    assert list(builder.columns()) == ["other"]
