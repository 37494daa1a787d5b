"""Checkpoints of scoring, and budgets of memory."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog import store
from sawlog.curvature import Curvature, Diagonal, fit
from sawlog.errors import ArgumentError
from sawlog.influence import Logs, attribute, self_influence
from sawlog.influence import _threads as threads
from sawlog.influence._scoring_job import ScoringJob
from sawlog.influence._top_k import TopK
from tests.influence.stores import by_hand, written
from tests.thorough import examples


def alone(monkeypatch):
    """One core, as if there were no more."""
    monkeypatch.setattr(threads, "cores", lambda place: 1)


class Counted:
    """How often parts are computed; optionally it fails after some."""

    def __init__(self, monkeypatch):
        self.parts, self.most = [], None
        plain = ScoringJob.run

        alone(monkeypatch)

        def run(work, part, *stop):
            if self.most is not None and len(self.parts) >= self.most:
                raise KeyboardInterrupt
            self.parts.append(part)
            return plain(work, part, *stop)

        monkeypatch.setattr(ScoringJob, "run", run)

    def taken(self):
        parts, self.parts = self.parts, []
        return len(parts)


@pytest.mark.parametrize("top_k", [None, 3])
@pytest.mark.parametrize("texts", [False, True])
def test_a_checkpoint_is_gone_on_with(tmp_path, monkeypatch, top_k, texts):
    counted = Counted(monkeypatch)
    rows = {"w": np.random.default_rng(0).normal(size=(20, 3)), "v": np.ones((20, 1))}
    ids = [f"id {i}" for i in range(20)] if texts else np.arange(100, 120)
    written(tmp_path / "logs", rows, ids, each=4)
    queries = {"w": np.eye(3), "v": np.ones((3, 1))}
    options = {"curvature": "fisher", "top_k": top_k, "per_layer": True}
    plain = attribute(tmp_path / "logs", queries, **options)
    assert counted.taken() == 1
    options["checkpoint"] = tmp_path / "done"
    counted.most = 2
    with pytest.raises(KeyboardInterrupt):
        attribute(tmp_path / "logs", queries, **options)
    assert counted.taken() == 2
    counted.most = None
    for computed in (3, 0):
        scores = attribute(tmp_path / "logs", queries, **options)
        assert counted.taken() == computed
        np.testing.assert_allclose(scores.values, plain.values, rtol=1e-12)
        assert scores.ids.tolist() == plain.ids.tolist()
        assert scores.ids.dtype.kind == plain.ids.dtype.kind
        assert set(scores.layers) == {"w", "v"}
        for name, values in scores.layers.items():
            np.testing.assert_allclose(values, plain.layers[name], rtol=1e-12)


def test_a_checkpoint_of_something_else_is_not_used(tmp_path, monkeypatch):
    counted = Counted(monkeypatch)
    random = np.random.default_rng(0)
    rows = {"w": random.normal(size=(12, 3))}
    written(tmp_path / "logs", rows, np.arange(12), each=4)
    other = {"w": random.normal(size=(12, 3))}
    written(tmp_path / "other", other, np.arange(12), each=4)
    queries = {"w": np.eye(3)}
    basis = np.diag([1.0, 2.0, 3.0])
    given = {"damping": 0.1, "curvature": "fisher", "mode": "dot", "top_k": 2, "sign": "positive"}
    changes = [
        {},
        {"damping": 0.2},
        {"curvature": "diagonal"},
        {"mode": "l2"},
        {"mode": "cosine"},
        {"top_k": 3},
        {"top_k": None},
        {"sign": "absolute"},
        {"train": tmp_path / "other"},
        {"queries": {"w": np.eye(3)[:2]}},
        {"queries": Logs({"w": np.eye(3)}, ids=["a", "b", "c"])},
        {"queries": {"w": 2 * np.eye(3)}},
        {"curvature": of_values(1.0, 1.0, 1.0)},
        # the query has no part in the direction that differs, but the lengths of examples do
        {"queries": {"w": basis[:1]}, "mode": "l2", "curvature": of_values(1.0, 1.0, 1.0)},
        {"queries": {"w": basis[:1]}, "mode": "l2", "curvature": of_values(1.0, 1.0, 9.0)},
    ]

    def scored(change, **more):
        options = {"train": tmp_path / "logs", "queries": queries, **given, **change, **more}
        return attribute(options.pop("train"), options.pop("queries"), **options)

    for change in changes:
        plain = scored(change)
        counted.taken()
        found = scored(change, checkpoint=tmp_path / "done")
        assert counted.taken() == 3, change
        np.testing.assert_allclose(found.values, plain.values, rtol=1e-9)
        assert found.ids.tolist() == plain.ids.tolist()
    with store.open(tmp_path / "logs", "append") as writer:
        writer.append([99], {"grad/w": 100 * np.ones((1, 3))})
    plain = scored({})
    counted.taken()
    found = scored({}, checkpoint=tmp_path / "done")
    assert counted.taken() == 4
    np.testing.assert_allclose(found.values, plain.values, rtol=1e-9)


def test_a_checkpoint_of_rows_in_memory(tmp_path, monkeypatch):
    counted = Counted(monkeypatch)
    options = {"curvature": "identity", "checkpoint": tmp_path / "done"}
    for value, computed in ((1.0, 1), (1.0, 0), (2.0, 1)):
        scores = attribute({"w": np.full((3, 2), value)}, {"w": np.ones((1, 2))}, **options)
        assert scores.values.tolist() == [[2 * value] * 3]
        assert counted.taken() == computed


def of_values(*values):
    return Curvature("own", {"w": Diagonal(np.array(values))})


def test_a_failing_part_says_why_and_the_others_are_kept(tmp_path, monkeypatch):
    written(tmp_path / "logs", {"w": np.ones((6, 1))}, np.arange(6), each=1)
    plain = ScoringJob.run

    def run(work, part, *stop):
        if part[0] == 3:
            raise OSError("the disk is gone")
        return plain(work, part, *stop)

    options = {"curvature": "identity", "checkpoint": tmp_path / "done"}
    with monkeypatch.context() as patched, ThreadPoolExecutor(1) as pool:
        patched.setattr(ScoringJob, "run", run)
        with pytest.raises(OSError, match="the disk is gone"):
            attribute(tmp_path / "logs", {"w": [[1.0]]}, executor=pool, **options)
    counted = Counted(monkeypatch)
    assert len(attribute(tmp_path / "logs", {"w": [[1.0]]}, **options)[0]) == 6
    assert 1 <= counted.taken() <= 3


# -- budgets --------------------------------------------------------------------------------------


def test_queries_come_in_batches_that_fit(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    rows = {"w": random.normal(size=(30, 50))}
    written(tmp_path / "logs", rows, np.arange(30), each=7)
    queries = {"w": random.normal(size=(11, 50))}
    counted = Counted(monkeypatch)
    for k, per_layer in ((None, True), (4, True), (None, False)):
        options = {"curvature": "fisher", "top_k": k, "per_layer": per_layer}
        whole = attribute(tmp_path / "logs", queries, **options)
        assert counted.taken() == 1
        some = attribute(tmp_path / "logs", queries, budget=4 * 8 * 50 * 3, **options)
        assert counted.taken() == 4
        assert some.queries.tolist() == whole.queries.tolist()
        assert some.ids.tolist() == whole.ids.tolist()
        np.testing.assert_allclose(some.values, whole.values, rtol=1e-9)
        for name in whole.layers:
            np.testing.assert_allclose(some.layers[name], whole.layers[name], rtol=1e-9)


@examples(20, 60)
@given(
    st.integers(1, 6),
    st.lists(st.integers(0, 9), max_size=8),
    st.sampled_from(["positive", "negative", "absolute"]),
    st.integers(0, 10_000),
)
def test_the_best_of_blocks(k, sizes, sign, seed):
    random = np.random.default_rng(seed)
    numbers = np.array([-np.inf, -2, -1, 0, 1, 2, 3, np.nan, np.inf])
    best, seen = TopK(k, sign), []
    for size in sizes:
        block = random.choice(numbers, size=(3, size), p=[0.02, *[0.16] * 6, 0.01, 0.01])
        start = sum(each.shape[1] for each in seen)
        best.add(block, np.arange(start, start + size))
        seen.append(block)
    if not seen:
        assert best.scores is None
        return
    whole = np.concatenate(seen, 1)
    expected = by_hand(whole, range(whole.shape[1]), k, sign)
    for query, pairs in enumerate(expected):
        assert best.ids[query].tolist() == [each for each, _ in pairs]
        np.testing.assert_array_equal(best.scores[query], [value for _, value in pairs])


def test_fitting_in_any_budget(tmp_path):
    rows = {"w": np.random.default_rng(0).normal(size=(30, 4))}
    written(tmp_path / "logs", rows, np.arange(30), each=7)
    expected = fit("fisher", lambda: iter([rows])).solve("w", rows["w"], 0.1)
    for budget in (1, 1000, 1 << 30):
        scan = lambda budget=budget: Logs(tmp_path / "logs").scan(budget)
        found = fit("fisher", scan).solve("w", rows["w"], 0.1)
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_an_empty_store(tmp_path):
    columns = [store.Column("grad/w", np.dtype("float32"), (2,))]
    store.create(tmp_path / "logs", schema=[store.Table(tuple(columns))]).close()
    for curvature in ("identity", "fisher"):
        with pytest.raises(ArgumentError, match="no examples to score"):
            attribute(tmp_path / "logs", {"w": np.ones((1, 2))}, curvature=curvature)
        with pytest.raises(ArgumentError, match="no examples"):
            self_influence(tmp_path / "logs", curvature=curvature)
    with pytest.raises(ArgumentError, match="no queries"):
        attribute({"w": np.ones((1, 2))}, {"w": np.ones((0, 2))}, curvature="identity")
    store.create(tmp_path / "nothing").close()
    with pytest.raises(ArgumentError, match=r"no rows by example id\. Hint"):
        attribute(tmp_path / "nothing", {"w": np.ones((1, 2))}, curvature="identity")
