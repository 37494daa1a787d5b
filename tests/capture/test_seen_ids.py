"""Which examples are logged already: by earlier programs, by this one, by other processes."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sawlog.capture._seen_ids import Claims, SeenIds


@pytest.mark.parametrize("kind", [int, str])
def test_ids_of_this_program_and_of_earlier_ones(kind):
    seen = SeenIds()
    assert seen.missing(np.array([3, 1]).astype(kind)).tolist() == [True, True]
    seen.load(np.array([9, 2, 30, 2, 7]).astype(kind))  # in no order, and one of them twice
    seen.add(np.array([5, 4]).astype(kind))
    asked = np.array([30, 3, 9, 5, 2, 100, 7, 1, 4]).astype(kind)
    wanted = [False, True, False, False, False, True, False, True, False]
    assert seen.missing(asked).tolist() == wanted
    assert seen.seen_now(asked).tolist() == [each in ("5", "4") for each in asked.astype(str)]
    assert seen.missing(asked[:0]).tolist() == []


def test_numbers_and_texts_are_other_ids():
    seen = SeenIds()
    seen.load(np.array([3, 1]))
    seen.add(np.array(["1"]))
    assert seen.missing(np.array(["3", "1"])).tolist() == [True, False]
    assert seen.missing(np.array([3, 1, 2])).tolist() == [False, False, True]
    seen.load(np.array([], str))
    assert seen.missing(np.array([3])).tolist() == [True]


class Group:
    """The keys of several processes: the first that claims one has it."""

    def __init__(self):
        self.claimed = []

    def claim(self, key):
        self.claimed.append(key)
        return self.claimed.count(key) == 1


def test_the_first_process_that_claims_an_id_logs_it():
    group = Group()
    one, two = (Claims(SimpleNamespace(group=group, name="run"), "rows") for _ in range(2))
    ids, everything = np.array([1, 2, 3, 4]), np.ones(4, bool)
    wanted = np.array([True, False, True, False])
    assert one.take(ids, wanted).tolist() == [True, False, True, False]
    assert two.take(ids, everything).tolist() == [False, True, False, True]
    assert one.take(ids, everything).tolist() == [True, False, True, False]  # its own again
    texts = ids.astype(str)
    assert two.take(texts, everything).tolist() == [True] * 4
    other = Claims(SimpleNamespace(group=group, name="run"), "statistics")
    assert other.take(ids, everything).tolist() == [True] * 4
    alone = Claims(None, "rows")
    assert alone.take(ids, wanted).tolist() == wanted.tolist()
    assert len({str(Path(key)) for key in group.claimed}) == 12
