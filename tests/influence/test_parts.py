"""How work is divided: into parts of rows, over workers, and a few parts at a time."""

import math
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from sawlog.errors import ArgumentError, UnknownIdError
from sawlog.influence._bm25 import LexicalIndex, bm25
from sawlog.influence._engines import _SendOnce, in_order, parts_for, threads_for, workers_of
from sawlog.influence._memory_source import MemorySource

IDS = np.array([30, 10, 20, 50, 40, 70, 60])
ROWS = np.random.default_rng(0).integers(-9, 9, (7, 2, 3)).astype(np.int8)
SCALES = np.arange(1.0, 8.0, dtype=np.float32)


def source(ids=IDS):
    return MemorySource(
        {"grad/a": ROWS, "grad/a.scale": SCALES, "grad/b": ROWS[:, 0] * 2.0}, ids, {}
    )


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("most", [1, 2, 3, 100])
def test_parts_of_arrays_are_all_rows_once(parts, most):
    own, ids, rows, others = source(), [], [], []
    for index in range(parts):
        for block in own.blocks(own.layers, most, 0, (index, parts)):
            assert 1 <= len(block) <= most
            assert len(block.columns["a"]) == len(block.columns["b"]) == len(block)
            ids += np.asarray(block.ids).tolist()
            rows.append(block.columns["a"].rows())
            others.append(block.columns["b"].rows())
    assert ids == IDS.tolist()
    np.testing.assert_array_equal(np.concatenate(rows), ROWS * SCALES[:, None, None])
    np.testing.assert_array_equal(np.concatenate(others).reshape(7, 3), ROWS[:, 0] * 2.0)


@pytest.mark.parametrize("ids", [IDS, [f"t{each}" for each in IDS]])
def test_rows_are_gathered_by_id(ids):
    names = list(ids)
    wanted = [names[4], names[0], names[6]]
    found = source(ids).gather(["a"], wanted)
    assert list(found.ids) == wanted
    at = [4, 0, 6]
    np.testing.assert_array_equal(found.columns["a"].rows(), ROWS[at] * SCALES[at][:, None, None])
    with pytest.raises(UnknownIdError, match="no logs of the examples"):
        source(ids).gather(["a"], [names[0], 99])


def test_the_state_changes_with_ids_rows_and_scales():
    plain = {"a": ROWS, "a.scale": SCALES}
    others = [plain, {**plain, "a": -ROWS}, {**plain, "a.scale": 2 * SCALES}, {"a": ROWS}]
    others += [{**plain, "a": ROWS.reshape(7, 3, 2)}, {"b": ROWS, "b.scale": SCALES}]
    states = [(each, IDS) for each in others] + [(plain, IDS[::-1]), (plain, IDS.astype(str))]
    found = [MemorySource(rows, ids, {}) for rows, ids in states]
    assert len({each.state(each.layers) for each in found}) == len(states)


# -- over workers ---------------------------------------------------------------------------------


class Counting(Executor):
    """Runs what is asked for last of all, and notes how much waits at a time."""

    def __init__(self):
        self.waiting, self.most, self.cancelled = [], 0, 0

    def submit(self, fn, *args):
        future = Future()
        future.result = lambda: (self.waiting.remove(args), fn(*args))[1]
        future.cancel = lambda: setattr(self, "cancelled", self.cancelled + 1)
        self.waiting.append(args)
        self.most = max(self.most, len(self.waiting))
        return future


@pytest.mark.parametrize("most", [1, 3, 20])
def test_a_few_parts_wait_at_a_time(most):
    pool = Counting()
    assert list(in_order(pool, lambda part: 10 * part, range(8), most)) == [*range(0, 80, 10)]
    assert pool.most == min(most, 8)
    assert pool.waiting == []
    broken = in_order(pool, lambda part: 1 / part, range(8), most)
    with pytest.raises(ZeroDivisionError):
        next(broken)
    assert pool.cancelled == min(most, 8) - 1


def test_a_function_is_sent_again_only_if_it_is_another():
    sent = []
    once = _SendOnce(lambda function: sent.append(function) or len(sent))
    assert [once(each) for each in (len, len, max, max, len)] == [1, 1, 2, 2, 3]
    assert sent == [len, max, len]


def test_cores_and_files_are_divided_among_the_workers():
    with ProcessPoolExecutor(3) as processes, ThreadPoolExecutor(3) as threads:
        assert [threads_for(processes, cores) for cores in (1, 3, 7, 12)] == [1, 1, 2, 4]
        assert threads_for(threads, 12) is None  # threads share the cores of this process
        assert workers_of(processes) == workers_of(threads) == 3
        assert [parts_for(processes, files, 50) for files in (2, 12, 13, 100)] == [2, 12, 12, 12]
    unknown = SimpleNamespace()
    assert workers_of(unknown) is None
    assert [parts_for(unknown, files, 50) for files in (2, 100)] == [2, 50]
    assert parts_for(SimpleNamespace(workers=0), 9, 50) == 1


# -- words ----------------------------------------------------------------------------------------


def test_scores_of_words_by_the_formula():
    """Words of the query that are repeated count again, and so do those of texts, but less."""
    texts = ["red cat red", "a blue dog", "cat dog cat cat bird", "", "green"]
    lengths = [3, 3, 5, 0, 1]
    k1, b, mean = 1.4, 0.6, 12 / 5

    def by_hand(query, place):
        total = 0.0
        for word in query.split():
            having = sum(word in text.split() for text in texts)
            often = texts[place].split().count(word)
            rare = math.log(1 + (5 - having + 0.5) / (having + 0.5))
            norm = k1 * (1 - b + b * lengths[place] / mean)
            total += rare * often * (k1 + 1) / (often + norm) if often else 0.0
        return total

    queries = {"one": "cat", "two": "red cat cat", "three": "dog unknown bird", "none": "nothing"}
    found = bm25(texts, queries, k1=k1, b=b)
    wanted = [[by_hand(query, place) for place in range(5)] for query in queries.values()]
    np.testing.assert_allclose(found.values, wanted, rtol=1e-12)
    assert (found.queries.tolist(), found.ids.tolist()) == (list(queries), [0, 1, 2, 3, 4])
    assert LexicalIndex(["x"], []).scores("x").tolist() == []
    with pytest.raises(ArgumentError, match="no texts to score"):
        bm25([], queries)
