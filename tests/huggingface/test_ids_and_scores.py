"""Hashes of rows, ids that are sent, and scores as columns."""

import numpy as np
import pytest

from sawlog.errors import ArgumentError
from sawlog.huggingface import add_scores
from sawlog.huggingface._content_ids import row_hash
from sawlog.huggingface._sent_ids import WIDTH, decoded_ids, encoded_ids
from sawlog.influence import Ranking, Scores


@pytest.mark.parametrize(
    "items",
    [
        [{"a": None}, {"a": "None"}],
        [{"a": 1}, {"a": "1"}, {"a": 1.0}, {"a": True}],
        [{"a": "x", "b": "y"}, {"a": "y", "b": "x"}, {"a": "x"}, {"c": "x"}],
        [{"a": [["x"], ["y"]]}, {"a": [["x", "y"], []]}, {"a": [["x", "y"]]}, {"a": ["x", "y"]}],
        [{"a": {"b": "x"}, "c": "y"}, {"a": {"b": "x", "c": "y"}}, {"a": {}, "b": "x", "c": "y"}],
        [{"a": [{"b": "x"}, {"c": "y"}]}, {"a": [{"b": "x", "c": "y"}, {}]}],
        [{"a": np.zeros((2, 3))}, {"a": np.zeros((3, 2))}, {"a": np.zeros(6)}],
        [{"a": np.zeros(2, np.int64)}, {"a": np.zeros(2)}, {"a": np.zeros(4, np.float32)}],
    ],
)
def test_rows_that_differ_have_other_hashes(items):
    assert len({row_hash(each) for each in items}) == len(items)


@pytest.mark.parametrize("text", ["b" * (WIDTH + 1), "é" * WIDTH, "zero\0"])
def test_ids_that_cannot_be_sent(text):
    with pytest.raises(ArgumentError, match="at most 256 bytes"):
        encoded_ids(np.array(["a", text], object))
    fits = np.array(["a", "b" * WIDTH, "é" * (WIDTH // 2), ""])
    assert decoded_ids(encoded_ids(fits).numpy()).tolist() == fits.tolist()


class Column:
    """A dataset of which only the rows are known."""

    def __len__(self):
        return 3

    def __getitem__(self, name):
        return {"name": ["c", "a", "b"]}[name]

    def add_column(self, name, values):
        return name, values


def test_scores_as_a_column():
    values = np.array([[1.0, 2.0, 4.0], [3.0, 8.0, -4.0]])
    scores = Scores(np.array(["p", "q"]), np.array(["a", "b", "c"]), values)
    assert add_scores(Column(), scores, data_id="name") == ("influence", [0.0, 2.0, 5.0])
    one = add_scores(Column(), scores, query="q", data_id="name", column="own")
    assert one == ("own", [-4.0, 3.0, 8.0])
    ranking = Ranking(np.array([2, 0, 1]), np.array([3.0, 2.0, 1.0]))
    assert add_scores(Column(), ranking) == ("influence", [2.0, 1.0, 3.0])
    with pytest.raises(ArgumentError, match="top scores of each query"):
        add_scores(Column(), scores.top(2), data_id="name")
