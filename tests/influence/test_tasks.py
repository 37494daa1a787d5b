"""What people do with scores: near-duplicates, rankings, pruning, methods by name."""

import numpy as np
import pytest

from sawlog import influence, store
from sawlog.curvature import Curvature, Diagonal
from sawlog.errors import ArgumentError
from sawlog.influence import Logs, Ranking, Scores
from sawlog.influence import _methods as methods
from sawlog.run_files import ragged


def angles(*degrees):
    turned = np.radians(degrees)
    return np.stack([np.cos(turned), np.sin(turned)], 1)


# -- near-duplicates ------------------------------------------------------------------------------


def test_near_duplicates_chain_and_the_largest_group_comes_first():
    rows = {"w": angles(0, 90, 2, 200, 91, 4, 300) * np.arange(1, 8)[:, None]}
    logs = Logs(rows, ids=[10, 20, 30, 40, 50, 60, 70])
    limit = np.cos(np.radians(2.5))  # neighbours are 2 degrees apart, the ends of the chain 4
    assert influence.near_duplicates(logs, threshold=limit) == [[10, 30, 60], [20, 50]]
    assert influence.near_duplicates(logs, threshold=1.0) == []
    with pytest.raises(ArgumentError, match="from -1 to 1"):
        influence.near_duplicates(logs, threshold=1.1)
    with pytest.raises(ArgumentError, match="`threshold` must be a finite number; got 'high'"):
        influence.near_duplicates(logs, threshold="high")
    with pytest.raises(ArgumentError, match="`neighbours` must be a positive integer; got 0"):
        influence.near_duplicates(logs, neighbours=0)


@pytest.mark.parametrize("neighbours", [1, 2, 3])
def test_an_example_is_no_neighbour_of_its_own(neighbours):
    logs = Logs({"w": angles(0, 1, 120, 121, 240)}, ids=list("abcde"))
    found = influence.near_duplicates(logs, threshold=0.999, neighbours=neighbours)
    assert found == [["a", "b"], ["c", "d"]]


def test_groups_that_meet_are_one():
    """Two chains that are joined by their last link, whichever way they are walked."""
    logs = Logs({"w": angles(0, 2, 6, 8, 4)})
    assert influence.near_duplicates(logs, threshold=np.cos(np.radians(2.5))) == [[0, 1, 2, 3, 4]]


def test_rows_that_are_equal_have_a_cosine_of_one():
    """Also where float32 gives a little less, and at the greatest threshold there is."""
    row = np.random.default_rng(0).normal(size=1001).astype(np.float32)
    rows = {"w": np.stack([row, 3 * row, -row])}
    assert influence.near_duplicates(rows, threshold=1.0) == [[0, 1]]


def test_near_duplicates_in_a_curvature():
    """Apart as they are, near in the measure of a curvature that knows what matters."""
    rows = {"w": np.array([[1.0, 0.1], [1.0, -0.1]])}
    curvature = Curvature("diagonal", {"w": Diagonal(np.array([0.0, 99.0]))})
    assert influence.near_duplicates(rows, threshold=0.99) == []
    options = {"curvature": curvature, "damping": 1.0}
    assert influence.near_duplicates(rows, threshold=0.99, **options) == [[0, 1]]


# -- rankings and pruning -------------------------------------------------------------------------


def test_label_errors_are_sorted_with_their_layers():
    rows = {"a": np.array([[1.0], [3.0], [2.0]]), "b": np.array([[0.0], [1.0], [4.0]])}
    ranking = influence.label_errors(Logs(rows, ids=["x", "y", "z"]), curvature="identity")
    assert ranking.ids.tolist() == ["z", "y", "x"]
    assert ranking.values.tolist() == [20.0, 10.0, 1.0]
    assert {n: v.tolist() for n, v in ranking.layers.items()} == {
        "a": [4.0, 9.0, 1.0],
        "b": [16.0, 1.0, 0.0],
    }


def test_self_influence_is_damped_as_asked():
    """By a number, by layer, and by default; beside the code, as all of it is."""
    rows = {"a": np.array([[2.0], [4.0]]), "b": np.array([[1.0, 3.0], [5.0, 0.0]])}
    layers = {"a": Diagonal(np.array([3.0])), "b": Diagonal(np.array([1.0, 2.0]))}
    curvature = Curvature("diagonal", layers)
    for damping, added in ((0.5, (0.5, 0.5)), ({"a": 1.0, "b": 7.0}, (1.0, 7.0))):
        ranking = influence.self_influence(rows, curvature=curvature, damping=damping)
        expected = {
            "a": (rows["a"] ** 2 / (3 + added[0])).sum(1),
            "b": (rows["b"] ** 2 / (np.array([1, 2]) + added[1])).sum(1),
        }
        for name, values in expected.items():
            np.testing.assert_allclose(ranking.layers[name], values, rtol=1e-12)
        np.testing.assert_allclose(ranking.values, sum(expected.values()), rtol=1e-12)
        top = influence.label_errors(rows, curvature=curvature, damping=damping)
        np.testing.assert_allclose(top.values, sorted(ranking.values, reverse=True))


def test_equal_numbers_stay_in_order():
    many = Ranking(np.arange(40), np.repeat([1.0, 2.0], 20))
    assert [each for each, _ in many.top(40)] == [*range(20, 40), *range(20)]
    assert [each for each, _ in many.top(25, least=True)] == list(range(25))


def test_pruning():
    values = np.array([[1.0, -9.0, 2.0, 0.0], [1.0, 1.0, -5.0, 0.5]])
    scores = Scores(np.arange(2), np.array([10, 20, 30, 40]), values)
    keep, out = influence.prune(scores, 0.5)  # in sum 2, -8, -3, 0.5
    assert (keep.tolist(), out.tolist()) == ([10, 40], [20, 30])
    keep, out = influence.prune(Ranking(scores.ids, np.array([3.0, 1.0, 4.0, 4.0])), 0.5)
    assert (keep.tolist(), out.tolist()) == ([10, 20], [30, 40])
    for share, left_out in ((0.0, 0), (1.0, 4), (0.3, 1)):
        assert len(influence.prune(scores, share)[1]) == left_out
    with pytest.raises(ArgumentError, match="from 0 to 1"):
        influence.prune(scores, 1.5)


# -- methods --------------------------------------------------------------------------------------


@pytest.fixture
def checkpoints():
    random = np.random.default_rng(0)
    return [
        ({"w": random.normal(size=(6, 3))}, {"w": random.normal(size=(2, 3))}) for _ in range(3)
    ]


def test_tracin_is_a_sum_with_rates(checkpoints):
    dots = [queries["w"] @ train["w"].T for train, queries in checkpoints]
    found = influence.tracin(checkpoints).values
    np.testing.assert_allclose(found, sum(dots), rtol=1e-9)
    rates = [0.1, 0.0, 3.0]
    weighed = sum(rate * each for rate, each in zip(rates, dots, strict=True))
    found = influence.tracin(checkpoints, rates)
    np.testing.assert_allclose(found.values, weighed, rtol=1e-9)
    for sign, order in (("positive", np.argsort(-weighed)), ("negative", np.argsort(weighed))):
        best = influence.tracin(checkpoints, rates, top_k=2, sign=sign)
        assert best.ids.tolist() == order[:, :2].tolist()


def test_trak_is_a_mean_of_scores_in_the_fisher(checkpoints):
    found = influence.trak(checkpoints, damping=0.5)
    expected = []
    for train, queries in checkpoints:
        fisher = train["w"].T @ train["w"] / 6 + 0.5 * np.eye(3)
        expected.append(queries["w"] @ np.linalg.inv(fisher) @ train["w"].T)
    np.testing.assert_allclose(found.values, np.mean(expected, 0), rtol=1e-9)


def test_cosines(checkpoints):
    train, queries = checkpoints[0]
    fisher = np.linalg.inv(train["w"].T @ train["w"] / 6 + 0.5 * np.eye(3))
    for score, measure in (
        (influence.gradient_cosine(train, queries), np.eye(3)),
        (influence.trackstar(train, queries, damping=0.5), fisher),
    ):
        lengths = [
            np.sqrt(np.einsum("ni,ij,nj->n", x["w"], measure, x["w"])) for x in (queries, train)
        ]
        dots = queries["w"] @ measure @ train["w"].T
        np.testing.assert_allclose(score.values, dots / np.outer(*lengths), rtol=1e-9)


def test_activations_are_pooled():
    random = np.random.default_rng(0)
    train, queries = random.normal(size=(5, 4, 3)), random.normal(size=(2, 4, 3))
    logs = [{"forward/a": train}, {"forward/a": queries}]
    for pool, one, other in (
        ("mean", train.mean(1), queries.mean(1)),
        (-1, train[:, -1], queries[:, -1]),
        (1, train[:, 1], queries[:, 1]),
        (None, train.reshape(5, -1), queries.reshape(2, -1)),
    ):
        found = influence.activation_similarity(*logs, "forward/a", pool=pool).values
        lengths = np.outer(np.linalg.norm(other, axis=1), np.linalg.norm(one, axis=1))
        np.testing.assert_allclose(found, other @ one.T / lengths, rtol=1e-9)
    for pool in (4, -5, "max", True):
        with pytest.raises(ArgumentError, match="`pool` must be"):
            influence.activation_similarity(*logs, "forward/a", pool=pool)


def test_activations_of_different_lengths_are_pooled(tmp_path, monkeypatch):
    """Each example over its own positions, or from its own end; more than are read at once."""
    monkeypatch.setattr(methods, "_BATCH", 3)
    random = np.random.default_rng(0)
    rows = {
        each: random.normal(size=(length, 2))
        for each, length in zip([40, 10, 30, 20, 60, 50, 70], [4, 4, 2, 7, 7, 3, 2], strict=True)
    }
    with store.create(tmp_path / "logs") as writer:
        for ids in ([40, 10], [30], [20, 60], [50], [70]):
            own = np.stack([rows[each] for each in ids])
            ragged.append(writer, np.array(ids), {"forward/a": own})
    queries = {"forward/a": random.normal(size=(2, 2))}
    for pool, pooled in (
        ("mean", lambda own: own.mean(0)),
        (-1, lambda own: own[-1]),
        (-2, lambda own: own[-2]),
        (0, lambda own: own[0]),
    ):
        with store.open(tmp_path / "logs") as reader:
            logs = methods._pooled(Logs(reader, names=["forward/a"]), pool)
        expected = np.stack([pooled(own) for own in rows.values()])
        assert np.asarray(logs.ids).tolist() == list(rows)
        found = influence.attribute(logs, queries, curvature="identity", names=["forward/a"])
        np.testing.assert_allclose(found.values, queries["forward/a"] @ expected.T, rtol=1e-6)
    with pytest.raises(ArgumentError, match="that all examples have"):
        influence.activation_similarity(tmp_path / "logs", queries, "forward/a", pool=2)


@pytest.mark.parametrize(("share", "count"), [(0, 0), (0.15, 1), (0.25, 2), (0.35, 2), (1, 7)])
def test_pruned_examples_come_worst_first(share, count):
    """The nearest number of examples; those that are kept stay in their order."""
    ids, values = np.array([4, 9, 2, 7, 1, 8, 3]), np.array([3.0, 9.0, 1.0, 7.0, 5.0, 9.0, 2.0])
    worst = [9, 8, 7, 1, 4, 3, 2]
    scores = Scores(np.array(["p", "q"]), ids, np.stack([-values - 1, np.ones(7)]))
    for given in (Ranking(ids, values), scores):
        kept, removed = influence.prune(given, share)
        assert removed.tolist() == worst[:count]
        assert kept.tolist() == [each for each in ids.tolist() if each not in worst[:count]]


@pytest.mark.parametrize("rows", [3, None, np.eye(2), [np.eye(2)]])
def test_rows_of_another_kind_are_refused(rows):
    with pytest.raises(ArgumentError, match=r"Rows must be the path of a store, .*; got .*Hint"):
        influence.self_influence(rows)


@pytest.mark.parametrize("texts", [[1, 2], {"a": None}])
def test_texts_that_are_not_strings_are_refused(texts):
    for given in ((texts, ["a"]), (["a"], texts)):
        with pytest.raises(ArgumentError, match="`texts` must be strings; got"):
            influence.bm25(*given)
