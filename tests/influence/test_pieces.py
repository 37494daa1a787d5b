"""Small pieces of attribution: which sign, which interval, which scale, which sums."""

import numpy as np
import pytest

from sawlog import store
from sawlog.curvature import Diagonal
from sawlog.curvature._curvature import IDENTITY
from sawlog.errors import ArgumentError
from sawlog.influence import (
    Components,
    Logs,
    Scores,
    _self_influence,
    attribute,
    ensemble,
    self_influence,
)
from sawlog.influence._averages._average import average
from sawlog.influence._averages._rough_runs import scale_down
from sawlog.influence._scoring_job import _as_columns, _greatest, _powers_of_two
from sawlog.influence._training import _weighted

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("sign", ["positive", "negative", "absolute"])
def test_the_best_of_an_ensemble_by_sign(sign):
    pairs = [({"w": RNG.normal(size=(9, 4))}, {"w": RNG.normal(size=(2, 4))}) for _ in range(3)]
    every = attribute(ensemble=pairs, curvature="identity")
    best = attribute(ensemble=pairs, curvature="identity", top_k=3, sign=sign)
    keys = {"positive": -every.values, "negative": every.values, "absolute": -np.abs(every.values)}
    order = np.argsort(keys[sign], axis=1)[:, :3]
    assert best.ids.tolist() == order.tolist()
    np.testing.assert_array_equal(best.values, np.take_along_axis(every.values, order, 1))


def test_degrees_of_freedom_that_are_said_count():
    def reach(**about):
        scores = Scores(
            np.array([0]),
            np.array([1, 2]),
            np.zeros((1, 2)),
            about=about,
            standard_errors=np.ones((1, 2)),
            members=np.zeros((7, 1, 2)),
        )
        return scores.interval(0.9)[1][0, 0]

    assert reach() == pytest.approx(1.9431802805)  # 6 of seven members
    assert reach(degrees_of_freedom=9) == pytest.approx(1.8331129327)


def test_runs_are_scaled_down_and_never_up():
    parts = RNG.normal(size=(5, 2, 6)) * np.array([1.0, 1e-3, 1.0, 50.0, 1.0])[:, None, None]
    parts[2, 1] = 0.0
    clipped = scale_down(parts)
    sizes = np.sqrt((parts**2).mean(-1))
    usual = np.median(sizes, 0)
    for run in range(5):
        for part in range(2):
            size = sizes[run, part]
            by = usual[part] / size if size > usual[part] else 1.0
            np.testing.assert_allclose(clipped[run, part], parts[run, part] * by)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_are_divided_by_powers_of_two_above_them(dtype):
    rows = np.array([[-3.0, 0.5], [0.0, 0.0], [1e-30, -1e-35], [-(2.0**100), 1.0]], dtype)
    greatest = _greatest(rows)
    np.testing.assert_array_equal(greatest, np.abs(rows).max(1))
    scale = _powers_of_two(greatest)
    assert (np.frexp(scale)[0] == 0.5).all()
    assert ((greatest < scale) & (greatest * 2 >= scale) | (greatest == 0)).all()
    assert _powers_of_two(np.array([np.inf, np.nan, 0.0])).tolist() == [1.0] * 3
    columns = _as_columns({"a": rows[:, :1], "b": rows}, scale, np.dtype(dtype))
    np.testing.assert_array_equal(columns["b"].T * scale[:, None], rows)
    assert columns["a"].shape == (1, 4)


@pytest.mark.parametrize("elements", [1, 255, 256, 257, 1000, 4097])
def test_columns_have_every_element(elements):
    rows = RNG.normal(size=(3, elements))
    columns = _as_columns({"w": rows}, np.ones(3), np.dtype(np.float64))
    np.testing.assert_array_equal(columns["w"], rows.T)


def test_steps_of_training_are_those_of_the_example(tmp_path):
    """Rows in another order than the scores, steps that are no places, uneven shares."""
    with store.create(tmp_path / "steps") as writer:
        writer.append(
            [7, 5, 9],
            {
                "step": np.array([30, 10, 20]),
                "learning_rate": np.array([1.0, 2.0, 4.0]),
                "share": np.array([0.5, 0.25, 1.0]),
            },
        )
    scores = Scores(np.array([0]), np.array([5, 7, 9]), np.array([[1.0, 10.0, 100.0]]))

    def found(**options):
        options = {"steps": None, "weigh": True, **options}
        pairs = _weighted(scores, tmp_path / "steps", **options)
        return {name: float(values[0]) for name, values in pairs}

    assert found() == {5: 0.5, 7: 5.0, 9: 400.0}
    assert found(weigh=False) == {5: 1.0, 7: 10.0, 9: 100.0}
    assert found(steps=range(15, 31)) == {7: 5.0, 9: 400.0}
    assert found(steps=range(2)) == {}


@pytest.mark.parametrize(
    ("count", "train", "queries", "share"),
    [
        (1, [2.0, 1.0, 0.0], [1.0, 6.0, 3.0], 2 / 8),
        (2, [2.0, 1.0, 0.0], [1.0, 6.0, 3.0], 1 / 4),
        (3, [2.0, 1.0, 0.5], [1.0, 6.0, 3.0], 0.5 / 1.5),
        (9, [2.0, 1.0, 0.5], [1.0, 6.0, 3.0], 0.5 / 1.5),  # there are no more
        (1, [0.0], [3.0], 0.0),
        (1, [3.0], [0.0], 1.0),
        (1, [0.0], [0.0], 0.0),
    ],
)
def test_the_share_that_lowers_components(count, train, queries, share):
    """What both contribute to that eigenvalue is then equal."""
    found = Components(count).share(Diagonal(np.array(train)), Diagonal(np.array(queries)))
    assert found == pytest.approx(share)


@pytest.mark.parametrize("mode", ["dot", "cosine", "l2"])
def test_every_layer_counts(mode):
    """Of several layers, in one block or many, also where their rows differ in size."""
    sizes = {"a": (3,), "b": (2, 2), "c": (5,), "d": (1,)}
    train, queries = (
        {name: RNG.normal(size=(n, *shape)) for name, shape in sizes.items()} for n in (7, 3)
    )
    t, q = (
        np.concatenate([v.reshape(len(v), -1) for v in own.values()], 1) for own in (train, queries)
    )
    dots = q @ t.T
    lengths = np.linalg.norm(q, axis=1)[:, None], np.linalg.norm(t, axis=1)[None]
    wanted = {
        "dot": dots,
        "cosine": dots / (lengths[0] * lengths[1]),
        "l2": -((q[:, None] - t[None]) ** 2).sum(2),
    }[mode]
    for budget in (1, 1 << 30):
        found = attribute(train, queries, curvature="identity", mode=mode, budget=budget)
        np.testing.assert_allclose(found.values, wanted, rtol=1e-5, atol=1e-6)
    if mode == "dot":
        apart = attribute(train, queries, curvature="identity", per_layer=True).layers
        np.testing.assert_allclose(sum(apart.values()), wanted, rtol=1e-5, atol=1e-6)
        for name, values in apart.items():
            own = queries[name].reshape(3, -1) @ train[name].reshape(7, -1).T
            np.testing.assert_allclose(values, own, rtol=1e-5, atol=1e-6)


def test_distances_of_rows_that_are_almost_equal():
    """They are small differences of large numbers, of which single precision leaves nothing."""
    query = np.float32(1000) + RNG.normal(size=(2, 50)).astype(np.float32)
    train = np.concatenate([query, query + np.float32(0.0625), query[:1] * 2])
    found = attribute({"w": train}, {"w": query}, curvature="identity", mode="l2").values
    exact = train[None].astype(np.float64) - query[:, None].astype(np.float64)
    np.testing.assert_allclose(found, -(exact**2).sum(2), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("weights", [None, [1.0, 2.0]])
def test_a_sum_with_weights_has_no_standard_errors(weights):
    parts = [Scores(np.array(["q"]), np.arange(3), RNG.normal(size=(1, 3))) for _ in range(2)]
    found = ensemble(parts, weights, keep=True)
    shares = [0.5, 0.5] if weights is None else weights
    wanted = shares[0] * parts[0].values + shares[1] * parts[1].values
    np.testing.assert_allclose(found.values, wanted)
    assert (found.standard_errors is None) == (found.members is None) == (weights is not None)


def test_examples_of_runs_that_are_no_pairs_are_not_weighed():
    """Which examples a run has matters for complementary halves alone."""
    parts = RNG.normal(size=(6, 2, 3, 5))
    present = RNG.random((6, 5)) < 0.5
    for kind in ("mean", "robust"):
        one, other = (average(parts, kind, present=own) for own in (None, present))
        np.testing.assert_array_equal(one.values, other.values)
        np.testing.assert_array_equal(one.errors, other.errors)


@pytest.mark.parametrize("weights", ["same", "any"])
def test_the_curvature_of_self_influence_is_of_the_same_weights(monkeypatch, weights):
    asked = []

    def spy(rows, kind, **options):
        asked.append(options["weights"])
        return IDENTITY

    monkeypatch.setattr(_self_influence, "curvature_for", spy)
    found = self_influence({"w": np.array([[3.0, 4.0]])}, weights=weights)
    assert found.values.tolist() == [25.0]
    assert asked == [weights]


@pytest.mark.parametrize("ids", [[1, 1, 2], ["a", "b", "a"], [7, 7, 7]])
def test_an_id_names_one_example(ids):
    with pytest.raises(ArgumentError, match="Some examples have the same id"):
        Logs({"w": np.ones((3, 2))}, ids=ids)
