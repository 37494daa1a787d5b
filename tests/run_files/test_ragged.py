"""Logs of examples of different lengths come back position by position."""

import numpy as np
import pytest

from sawlog import store
from sawlog.run_files import ragged
from sawlog.run_files.ragged import LENGTHS

NAME = "forward/fc"


def _rows(rng, size, length):
    return rng.normal(size=(size, length, 2)).astype(np.float32)


def _check(path, wanted):
    """Compare all rows, in another order than they were written, with what was appended last."""
    with store.open(path) as reader:
        ids = [3, 0, *sorted(wanted.keys() - {0, 3}, reverse=True)]
        lengths = ragged.lengths_of(reader, NAME, ids)
        assert lengths.tolist() == [len(wanted[each]) for each in ids]
        found = ragged.gather(reader, ids, [NAME])[NAME]
    assert found.shape[1] == lengths.max()
    for own, each in zip(found, ids, strict=True):
        np.testing.assert_array_equal(own[: len(wanted[each])], wanted[each])
        assert not own[len(wanted[each]) :].any()


# The first batch decides the width of the column; further columns have as many positions again.
@pytest.mark.parametrize("lengths", [(2, 1, 9), (1, 2, 3, 4, 5), (3, 3, 4), (4, 4, 1, 4), (2, 17)])
def test_every_position_of_every_length_comes_back(tmp_path, lengths):
    rng, wanted = np.random.default_rng(0), {}
    with store.create(tmp_path / "rows") as writer:
        for batch, length in enumerate(lengths):
            ids, rows = np.arange(2) + 2 * batch, _rows(rng, 2, length)
            ragged.append(writer, ids, {NAME: rows})
            wanted |= dict(zip(ids.tolist(), rows, strict=True))
    _check(tmp_path / "rows", wanted)


@pytest.mark.parametrize("after", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("before", [1, 3, 5, 9])
def test_nothing_is_left_of_a_row_that_was_replaced(tmp_path, before, after):
    rng, wanted = np.random.default_rng(0), {}
    with store.create(tmp_path / "rows", duplicates="replace") as writer:
        for ids, length in (([0, 3], 2), ([1, 2], before), ([2, 0], after)):
            rows = _rows(rng, 2, length)
            ragged.append(writer, np.array(ids), {NAME: rows})
            wanted |= dict(zip(ids, rows, strict=True))
    _check(tmp_path / "rows", wanted)


def test_a_length_counts_before_what_the_row_has(tmp_path):
    """A writer that is killed may have written the length of a row, and not yet the row."""
    with store.create(tmp_path / "rows", duplicates="replace") as writer:
        rows = np.ones((2, 3, 2), np.float32)
        writer.append(np.array([0, 3]), {NAME: rows})
        writer.append(np.array([0, 3]), {NAME + LENGTHS: np.array([1, 3])})
    _check(tmp_path / "rows", {0: rows[0, :1], 3: rows[1]})
