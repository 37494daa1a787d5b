"""Records: entries that go together, and what numpy would lose of a value."""

import numpy as np
import pytest

from sawlog.errors import LogMismatchError
from sawlog.records import Entries, Records, lost_by_numpy


def test_entries_that_go_together():
    entries = Entries(np.zeros((3, 2)), {"step": np.arange(3)}, np.ones((3, 2), bool))
    assert len(entries) == 3
    assert len(Entries(np.zeros((0, 2)))) == 0
    records = Records({"b": entries, "a": Entries(np.zeros(2))})
    assert list(records) == ["b", "a"]
    assert repr(records) == "Records(b: 3 x float64[2], a: 2 x float64[])"


@pytest.mark.parametrize(
    ("values", "steps", "mask", "said"),
    [
        (np.zeros(3), {"step": np.arange(2)}, None, r"values \(3,\), step axis 'step' \(2,\)"),
        (np.zeros(3), {"a": np.arange(3), "b": np.arange(4)}, None, r"step axis 'b' \(4,\)"),
        (np.zeros(3), {}, np.ones(2, bool), r"values \(3,\), mask \(2,\)"),
        (np.zeros(()), {}, None, r"values \(\)"),
        (np.zeros(()), {"step": np.zeros(())}, None, r"values \(\), step axis 'step' \(\)"),
        (np.zeros(1), {"step": np.zeros(())}, None, r"step axis 'step' \(\)"),
    ],
)
def test_entries_that_do_not(values, steps, mask, said):
    with pytest.raises(LogMismatchError, match=said):
        Entries(values, steps, mask)


@pytest.mark.parametrize(
    ("value", "lost"),
    [
        (np.ma.array([1, 2], mask=[False, True]), "its mask"),
        (np.ma.array([1, 2], mask=[True, True]), "its mask"),
        (np.ma.array([1, 2], mask=[False, False]), None),
        (np.ma.array([1, 2]), None),
        ("a\0", "the last NUL of 'a\\x00'"),
        (b"a\0", "the last NUL of b'a\\x00'"),
        ("\0a", None),
        ("", None),
        ([1, 2.0, "a", "b\0"], "the last NUL of 'b\\x00'"),
        (["a", ["b", ("c\0",)]], "the last NUL of 'c\\x00'"),
        (["a", 1], "the type of 1"),
        ([[1.5, 2.5], ["a", "b"]], "the type of 1.5"),
        ([2**53 + 1, 0.5], "the last digits of 9007199254740993"),
        ([2**63 + 1, 1], "the last digits of 9223372036854775809"),  # no type has both
        ([[1, 2**53 + 1], (0.5, 1)], "the last digits of 9007199254740993"),
        ([2**53, 2**60, 0.5], None),
        ([2**53 + 1, 1], None),  # int64
        ([2**63 + 1, 2**63], None),  # uint64
        ([2**70, 1], None),  # objects, which are refused elsewhere
        ([[1], [2, 3]], None),
        ([True, 2], None),
        ([1.0, np.ma.array([1], mask=[True])], "its mask"),
        (5, None),
        (None, None),
    ],
)
def test_what_numpy_would_lose(value, lost):
    assert lost_by_numpy(value) == lost
