"""Scores from a store: the same as in memory, and as of all pairs by hand."""

import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog import store
from sawlog.errors import ArgumentError, StoreError
from sawlog.influence import Logs, attribute, self_influence
from sawlog.influence import _attribute as module
from sawlog.influence import _threads as threads
from tests.influence.stores import by_hand, flat, segments, written
from tests.thorough import examples

SHAPES = [(3, 2), (4,), (), (2, 2, 3)]


def small_numbers(random, n, shapes, least=-3):
    """Rows of small whole numbers: every dtype and every sum is exact, and there are ties."""
    return {f"l{i}": random.integers(least, 4, (n, *s)).astype(float) for i, s in enumerate(shapes)}


@st.composite
def situations(draw):
    return {
        "n": draw(st.integers(1, 40)),
        "queries": draw(st.integers(1, 5)),
        "shapes": draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3)),
        "dtype": draw(st.sampled_from(["float64", "float32", "bfloat16", "float16"])),
        "texts": draw(st.booleans()),
        "each": draw(st.sampled_from([5, 20, 1000])),
        "k": draw(st.one_of(st.none(), st.integers(1, 12), st.just(200))),
        "sign": draw(st.sampled_from(["positive", "negative", "absolute"])),
        "budget": draw(st.sampled_from([1, 2_000, 1 << 28])),
        "per_layer": draw(st.booleans()),
        "how": draw(st.sampled_from(["alone", "threads", "checkpoint", "progress"])),
        "seed": draw(st.integers(0, 1000)),
    }


@examples(12, 30)
@given(situations())
def test_a_store_is_like_memory_and_like_all_pairs_by_hand(it):
    random = np.random.default_rng(it["seed"])
    rows = small_numbers(random, it["n"], it["shapes"])
    queries = small_numbers(random, it["queries"], it["shapes"])
    ids = random.permutation(1000)[: it["n"]].tolist()
    if it["texts"]:
        ids = [f"example {each}" for each in ids]
    names = list(rows)
    expected = {n: flat({n: queries[n]}) @ flat({n: rows[n]}).T for n in names}
    total = sum(expected.values())
    options = {"curvature": "identity", "sign": it["sign"], "top_k": it["k"]}
    options |= {"per_layer": it["per_layer"], "budget": it["budget"]}
    with tempfile.TemporaryDirectory() as root, ThreadPoolExecutor(3) as pool:
        path = Path(root, "logs")
        written(path, rows, ids, it["dtype"], each=it["each"])
        written(Path(root, "queries"), queries, np.arange(it["queries"]), it["dtype"])
        how = {
            "alone": {},
            "threads": {"executor": pool},
            "checkpoint": {"checkpoint": Path(root, "done")},
            "progress": {"progress": True},
        }[it["how"]]
        found = [
            attribute(path, queries, **options, **how),
            attribute(path, Path(root, "queries"), **options, **how),
            attribute(Logs(rows, ids=ids), queries, **options),
        ]
    for scores in found:
        assert scores.queries.tolist() == list(range(it["queries"]))
        assert set(scores.layers) == (set(names) if it["per_layer"] else set())
        if it["k"] is None:
            assert scores.ids.tolist() == ids
            np.testing.assert_array_equal(scores.values, total)
            for name, values in scores.layers.items():
                np.testing.assert_array_equal(values, expected[name])
            continue
        best = by_hand(total, ids, it["k"], it["sign"])
        for query, pairs in enumerate(best):
            assert scores[query] == pairs
            places = [ids.index(each) for each, _ in pairs]
            for name, values in scores.layers.items():
                assert values[query].tolist() == expected[name][query, places].tolist()


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16", "int8"])
@pytest.mark.parametrize("kind", ["diagonal", "fisher", "shampoo"])
@pytest.mark.parametrize("mode", ["dot", "cosine", "l2"])
def test_dtypes_and_modes(tmp_path, dtype, kind, mode):
    """The scores of what is stored, rounded as it is, to the precision of float32."""
    random = np.random.default_rng(0)
    rows = {"a": random.normal(size=(40, 3, 4)), "b": random.normal(size=(40, 5))}
    queries = {name: random.normal(size=(3, *v.shape[1:])) for name, v in rows.items()}
    stored = written(tmp_path / "logs", rows, np.arange(40), dtype, each=15)
    assert segments(tmp_path / "logs") == 3
    options = {"curvature": kind, "mode": mode, "damping": 0.1}
    expected = attribute(stored, queries, **options).values  # float64, and tested by itself
    found = attribute(tmp_path / "logs", queries, **options)
    rtol = 1e-12 if dtype == "float64" else 2e-6
    np.testing.assert_allclose(found.values, expected, atol=rtol * np.abs(expected).max())
    ranking = self_influence(tmp_path / "logs", curvature=kind, budget=3000)
    expected = self_influence(stored, curvature=kind)
    np.testing.assert_allclose(ranking.values, expected.values, rtol=1e-5)


def test_near_duplicates_have_no_distance(tmp_path):
    """In float32, where squares of lengths would cancel."""
    rows = {"w": 1000 + np.random.default_rng(0).normal(size=(5, 50))}
    stored = written(tmp_path / "logs", rows, np.arange(5), "float32")
    scores = attribute(tmp_path / "logs", stored, curvature="identity", mode="l2")
    expected = -((stored["w"][:, None] - stored["w"]) ** 2).sum(-1)
    np.testing.assert_allclose(scores.values, expected, rtol=1e-6, atol=1e-6)
    assert (scores.values <= 0).all()


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e15, 1e18])
@pytest.mark.parametrize("kind", ["identity", "diagonal", "fisher"])
def test_tiny_and_huge_gradients_in_float32(tmp_path, kind, size):
    """Their dot products are no numbers of float32: 1e-60, or 1e+40."""
    random = np.random.default_rng(0)
    rows = {"w": size * random.normal(size=(6, 4))}
    queries = {"w": size * random.normal(size=(2, 4)) * np.array([[1.0], [1e-9]])}
    stored = written(tmp_path / "logs", rows, np.arange(6), "float32")
    for mode in ("dot", "cosine"):
        expected = attribute(stored, queries, curvature=kind, mode=mode).values
        found = attribute(tmp_path / "logs", queries, curvature=kind, mode=mode).values
        assert np.isfinite(expected).all()
        assert (expected != 0).all()
        np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("layers", [("tiny", "huge"), ("huge", "tiny")])
@pytest.mark.parametrize("mode", ["dot", "cosine", "l2"])
def test_tiny_and_huge_layers_of_one_query(tmp_path, layers, mode):
    """A number that suits one of them takes the other beyond float32."""
    random, sizes = np.random.default_rng(0), {"tiny": 1e-25, "huge": 1e15}
    rows = {name: random.normal(size=(6, 4)) for name in layers}
    queries = {name: sizes[name] * random.normal(size=(2, 4)) for name in layers}
    stored = written(tmp_path / "logs", rows, np.arange(6), "float32")
    found = attribute(tmp_path / "logs", queries, curvature="identity", mode=mode).values
    q, g = (np.concatenate([own[name] for name in layers], 1) for own in (queries, stored))
    wanted = q @ g.T
    if mode == "cosine":
        wanted = wanted / np.linalg.norm(q, axis=1)[:, None] / np.linalg.norm(g, axis=1)
    if mode == "l2":
        wanted = -((q[:, None] - g) ** 2).sum(-1)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


def test_rows_that_are_no_numbers(tmp_path):
    """They are an error that names them; or they come last, and their scores say so."""
    rows = {"w": np.array([[1.0], [np.nan], [-2.0], [np.inf], [0.0]])}
    for dtype in ("float32", "int8"):
        written(tmp_path / dtype, rows, [10, 11, 12, 13, 14], dtype)
        for sign, best in (("positive", [10, 14, 12]), ("negative", [12, 14, 10])):
            options = {"curvature": "identity", "sign": sign, "nonfinite": "keep"}
            for k in (2, 3, 5):
                scores = attribute(tmp_path / dtype, {"w": [[1.0]]}, top_k=k, **options)
                assert scores.ids[0, :3].tolist() == best[:k]
            assert not np.isfinite(scores.values[0, 3:]).any()
        kept = {"curvature": "identity", "nonfinite": "keep"}
        far = attribute(tmp_path / dtype, {"w": [[1.0]]}, mode="l2", top_k=1, **kept)
        assert far.ids.tolist() == [[10]]
        whole = attribute(tmp_path / dtype, {"w": [[1.0]]}, mode="cosine", **kept)
        assert np.isnan(whole.values[0, [1, 3]]).all()
        np.testing.assert_allclose(whole.values[0, [0, 2, 4]], [1.0, -1.0, 0.0], rtol=1e-6)
        for options in ({}, {"top_k": 1}, {"mode": "cosine"}, {"per_layer": True}):
            with pytest.raises(ArgumentError, match=r"2 examples are infinite or NaN.*: 11, 13\."):
                attribute(tmp_path / dtype, {"w": [[1.0]]}, curvature="identity", **options)
        with pytest.raises(ArgumentError, match=r"2 examples .*: 11, 13\."):
            self_influence(tmp_path / dtype, curvature="identity")


def test_superseded_rows_are_not_scored(tmp_path):
    rows = {"w": np.arange(1.0, 31)[:, None]}
    ids = [*range(20), *range(10)]  # the first ten are replaced: files without any row that counts
    written(tmp_path / "logs", rows, ids, duplicates="replace", each=5)
    assert segments(tmp_path / "logs") == 6
    expected = {**{i: i + 1.0 for i in range(20)}, **{i: i + 21.0 for i in range(10)}}
    with ThreadPoolExecutor(2) as pool:
        for executor in (None, pool):
            scores = attribute(
                tmp_path / "logs", {"w": [[1.0]]}, curvature="identity", executor=executor
            )
            assert dict(scores[0]) == expected
            best = attribute(
                tmp_path / "logs", {"w": [[1.0]]}, curvature="identity", executor=executor, top_k=2
            )
            assert best[0] == [(9, 30.0), (8, 29.0)]
    fisher = attribute(tmp_path / "logs", {"w": [[1.0]]}, curvature="fisher", damping=0.0)
    moment = np.mean(np.square(list(expected.values())))
    np.testing.assert_allclose(dict(fisher[0])[3], 24 / moment)
    ranking = self_influence(tmp_path / "logs", curvature="identity")
    assert dict(zip(ranking.ids.tolist(), ranking.values, strict=True)) == {
        i: v**2 for i, v in expected.items()
    }


def test_the_policy_of_a_reader_counts(tmp_path):
    """Also in parts: nobody opens the store again by its path alone."""
    written(tmp_path / "logs", {"w": np.array([[1.0], [5.0]])}, [7, 7], duplicates="replace")
    with store.open(tmp_path / "logs", duplicates="first") as reader, ThreadPoolExecutor(1) as pool:
        for executor in (None, pool):
            scores = attribute(reader, {"w": [[1.0]]}, curvature="identity", executor=executor)
            assert scores[0] == [(7, 1.0)]


def test_processes(tmp_path):
    """They have not loaded torch, as this one has: numpy computes here and there, bit for bit."""
    import torch  # noqa: F401

    random = np.random.default_rng(0)
    rows = {"a": random.normal(size=(60, 4)), "b": random.normal(size=(60, 2, 2))}
    ids = [f"e{i}" for i in range(60)]
    written(tmp_path / "logs", rows, ids, "bfloat16", each=15)
    queries = {"a": random.normal(size=(2, 4)), "b": random.normal(size=(2, 2, 2))}
    options = {"curvature": "fisher", "mode": "cosine"}
    spawned = multiprocessing.get_context("spawn")
    with ThreadPoolExecutor(1) as thread, ProcessPoolExecutor(1, spawned) as pool:
        for k in (None, 4):
            here = attribute(tmp_path / "logs", queries, top_k=k, executor=thread, **options)
            found = attribute(tmp_path / "logs", queries, top_k=k, executor=pool, **options)
            assert found.ids.tolist() == here.ids.tolist()
            np.testing.assert_array_equal(found.values, here.values)
            alone = attribute(tmp_path / "logs", queries, top_k=k, **options)
            np.testing.assert_allclose(alone.values, here.values, rtol=0, atol=1e-5)


def test_a_store_that_grows_in_between(tmp_path, monkeypatch):
    written(tmp_path / "logs", {"w": np.ones((4, 1))}, [0, 1, 2, 3], each=1)
    logs = Logs(tmp_path / "logs")
    with store.open(tmp_path / "logs", "append") as writer:
        writer.append([4], {"grad/w": np.ones((1, 1))})
    assert len(attribute(logs, {"w": [[1.0]]}, curvature="identity")[0]) == 4  # as it was
    assert logs.reader is not None
    state = logs.state()
    assert state == Logs(logs).state() != Logs(tmp_path / "logs").state()
    alone(monkeypatch)
    states = iter([state, "other"])
    monkeypatch.setattr(Logs, "state", lambda self: next(states))
    with pytest.raises(StoreError, match=r"changed while it was read\. Hint: call again"):
        attribute(logs, {"w": [[1.0]]}, curvature="identity")


def test_more_files_than_parts(tmp_path, monkeypatch):
    """Parts are of several files; the order of the examples stays that of the store."""
    monkeypatch.setattr(module, "MOST_PARTS", 3)
    rows = {"w": np.random.default_rng(0).integers(-5, 5, (20, 2)).astype(float)}
    written(tmp_path / "logs", rows, np.arange(20), each=2)
    assert segments(tmp_path / "logs") == 10
    with ThreadPoolExecutor(2) as pool:
        scores = attribute(
            tmp_path / "logs",
            rows,
            curvature="identity",
            executor=pool,
            per_layer=True,
        )
    assert scores.ids.tolist() == list(range(20))
    np.testing.assert_array_equal(scores.values, rows["w"] @ rows["w"].T)
    np.testing.assert_array_equal(scores.layers["w"], scores.values)


# -- checkpoints ----------------------------------------------------------------------------------


def alone(monkeypatch):
    """One core, as if there were no more."""
    monkeypatch.setattr(threads, "cores", lambda place: 1)
