"""What rows come from, by itself: fingerprints, notes in a store, and comparing them."""

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import WeightsMismatchError
from sawlog.run_files._provenance import (
    CHANGING,
    Provenance,
    check_same_weights,
    fingerprint_of,
    fingerprint_of_arrays,
    note,
    noted,
)


def test_a_fingerprint_is_that_of_names_and_values_in_any_order():
    one = fingerprint_of([("a", "1"), ("b", "2")])
    assert fingerprint_of([("b", "2"), ("a", "1")]) == one
    others = [
        [("a", "2"), ("b", "1")],
        [("a", "1"), ("c", "2")],
        [("a", "1")],
        [("a1", ""), ("b", "2")],
        [("a", "1b"), ("", "2")],
    ]
    assert len({one, *map(fingerprint_of, others)}) == 6


def test_arrays_differ_by_values_dtype_shape_and_name():
    array = np.arange(6, dtype=np.int32)
    one = fingerprint_of_arrays({"a": array})
    assert fingerprint_of_arrays({"a": array.copy(), "none": None}) == one
    assert fingerprint_of_arrays({"a": np.repeat(array, 2)[::2]}) == one  # laid out otherwise
    others = [
        {"a": array + 1},
        {"a": array.view(np.float32)},
        {"a": array.reshape(2, 3)},
        {"a": array.reshape(3, 2)},
        {"b": array},
    ]
    assert len({one, *map(fingerprint_of_arrays, others)}) == 6


def test_notes_of_a_store(tmp_path):
    """All that differ by weights or projection, each once; and nothing where nothing was noted."""
    known = [
        Provenance("one", {"w": "1"}, "p"),
        Provenance("one", {"w": "1"}, "q"),
        Provenance("two", {"w": "2"}, "p"),
    ]
    with store.create(tmp_path / "logs") as writer:
        writer.append([1], {"grad/w": np.ones((1, 2))})
    with store.open(tmp_path / "logs") as reader:
        assert noted(reader) == ()
    for each in (*known, known[0]):
        with store.open(tmp_path / "logs", "append") as writer:
            note(writer, each)
    with store.open(tmp_path / "logs") as reader:
        assert set(map(repr, noted(reader))) == set(map(repr, known))
        assert len(noted(reader)) == 3
    for each in known:
        assert Provenance.from_json(each.to_json()) == each


A, B = Provenance("a" * 32, {"w": "1", "v": "1"}), Provenance("b" * 32, {"w": "2", "u": "1"})


@pytest.mark.parametrize(
    ("ours", "theirs"), [([], []), ([A], []), ([], [A]), ([A], [A]), ([A, A], [A])]
)
def test_the_same_weights_or_unknown_ones(ours, theirs):
    check_same_weights(ours, theirs, "the rows", "the queries", "Hint: x.")


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (
            [A],
            [B],
            r"^The rows were .* aaaaaaaaaaaa, and the queries with the weights bbbbbbbbbbbb",
        ),
        ([A, B], [], r"^The rows come from several .* aaaaaaaaaaaa and bbbbbbbbbbbb\. Hint: x\."),
        ([A], [A, B], r"^The queries come from several states"),
        ([Provenance(CHANGING)], [], r"^The rows come from several .* changing\."),
        ([A], [Provenance(CHANGING)], r"^The queries come from several"),
        ([A], [B], r"1 of 1 tensors differ \(w\), 2 are in one of the models only \(v, u\)"),
        ([Provenance("x")], [Provenance("y")], "their tensors are not known one by one"),
    ],
)
def test_other_weights(ours, theirs, said):
    with pytest.raises(WeightsMismatchError, match=said):
        check_same_weights(ours, theirs, "the rows", "the queries", "Hint: x.")
