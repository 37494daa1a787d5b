"""``Scores`` and ``Ranking``: what is done with scores once they are there."""

import dataclasses
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from rich.console import Console

from sawlog import influence, store
from sawlog.errors import ArgumentError, StoreNotFoundError
from sawlog.influence import (
    Logs,
    Ranking,
    Scores,
    attribute,
    ensemble,
    load_scores,
    self_influence,
)
from sawlog.influence._validation._validation import Validation
from tests.influence.stores import by_hand, written
from tests.thorough import examples


def made(queries=("p", "q"), ids=(5, 3, 8), layers=("a", "b"), seed=0, **about):
    random = np.random.default_rng(seed)
    parts = {name: random.integers(-9, 9, (len(queries), len(ids))) * 1.0 for name in layers}
    values = sum(parts.values()) if parts else random.normal(size=(len(queries), len(ids)))
    return Scores(np.array(queries), np.array(ids), values, parts, {"mode": "dot", **about})


def test_scores_of_a_query():
    scores = made()
    assert scores.whole
    assert len(scores) == 2
    assert scores["q"] == list(zip([5, 3, 8], scores.values[1].tolist(), strict=True))
    for query in ("r", 0):
        with pytest.raises(ArgumentError, match=f"no query {query!r}"):
            scores[query]


@pytest.mark.parametrize("sign", ["positive", "negative", "absolute"])
@pytest.mark.parametrize("k", [1, 2, 3, 9])
def test_top(sign, k):
    scores = made()
    best = scores.top(k, sign)
    assert not best.whole
    expected = by_hand(scores.values, scores.ids.tolist(), k, sign)
    for query, pairs in zip(("p", "q"), expected, strict=True):
        assert best[query] == pairs
    assert best.about == {"mode": "dot", "top_k": k, "sign": sign}
    assert set(best.layers) == {"a", "b"}
    np.testing.assert_array_equal(best.layers["a"] + best.layers["b"], best.values)


def test_top_of_what_cannot_be():
    for k in (0, -1, True, 1.5, "3"):
        with pytest.raises(ArgumentError, match="`k` must be a positive integer"):
            made().top(k)
    with pytest.raises(
        ArgumentError, match="`sign` must be one of 'positive', 'negative', 'absolute'"
    ):
        made().top(1, "best")
    assert made().top(2).top(1).ids.tolist() == made().top(1).ids.tolist()
    for k, sign in ((3, "positive"), (1, "negative")):
        with pytest.raises(
            ArgumentError, match=r"were kept.* Hint: attribute\(\.\.\., top_k=None\)"
        ):
            made().top(2).top(k, sign)


def test_groups_of_queries_and_of_examples():
    scores = made()
    everything = scores.group()
    assert everything.queries.tolist() == ["all"]
    np.testing.assert_array_equal(everything.values, scores.values.sum(0, keepdims=True))
    named = scores.group({"both": ["q", "p"], "one": np.array(["q"]), "none": []})
    assert named.queries.tolist() == ["both", "one", "none"]
    expected = [scores.values.sum(0), scores.values[1], np.zeros(3)]
    np.testing.assert_array_equal(named.values, expected)
    np.testing.assert_array_equal(named.layers["a"][1], scores.layers["a"][1])
    sets = scores.of_groups({"x": [8, 5], "y": np.array([3])})
    assert sets.ids.tolist() == ["x", "y"]
    np.testing.assert_array_equal(sets.values[:, 0], scores.values[:, [0, 2]].sum(1))
    np.testing.assert_array_equal(sets.values[:, 1], scores.values[:, 1])
    np.testing.assert_array_equal(sets.layers["a"] + sets.layers["b"], sets.values)


def test_groups_that_cannot_be():
    scores = made()
    with pytest.raises(ArgumentError, match="no query 'r'"):
        scores.group({"x": ["p", "r"]})
    with pytest.raises(ArgumentError, match="no example 99"):
        scores.of_groups({"x": [99]})
    for other in (scores.top(1), made(mode="cosine"), made(mode="l2")):
        for method in (other.group, lambda other=other: other.of_groups({"x": [5]})):
            with pytest.raises(ArgumentError, match="need all scores, as dot products"):
                method()


def test_the_influence_of_a_group_is_that_of_the_sum_of_gradients():
    random = np.random.default_rng(0)
    rows, queries = random.normal(size=(6, 4)), random.normal(size=(3, 4))
    scores = attribute({"w": rows}, {"w": queries}, curvature="fisher", damping=0.1)
    found = scores.group().of_groups({"x": [1, 4]}).values
    inverse = np.linalg.inv(rows.T @ rows / 6 + 0.1 * np.eye(4))
    np.testing.assert_allclose(found, [[queries.sum(0) @ inverse @ (rows[1] + rows[4])]])


# -- on disk --------------------------------------------------------------------------------------


def assert_same(found, expected):
    for name in ("queries", "ids", "values"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), strict=True)
    assert list(found.layers) == list(expected.layers)
    for name, values in expected.layers.items():
        np.testing.assert_array_equal(found.layers[name], values, strict=True)
    assert found.about == expected.about


IDS = [st.integers(-(2**63), 2**63 - 1), st.text(max_size=5).filter(lambda t: "\0" not in t)]


@examples(8, 25)
@given(st.data(), st.sampled_from(IDS), st.sampled_from(IDS), st.booleans(), st.booleans())
def test_save_and_load_bit_for_bit(tmp_path_factory, data, one, other, whole, layers):
    q, n = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 4))
    queries = np.array(data.draw(st.lists(one, min_size=q, max_size=q, unique=True)))
    count = n if whole else q * n
    drawn = data.draw(st.lists(other, min_size=count, max_size=count, unique=True))
    ids = np.array(drawn, None if drawn else np.int64).reshape(n if whole else (q, n))
    values = data.draw(arrays.arrays(np.float64, (q, n)))
    about = {"mode": "dot", "curvature": "ekfac", "damping": {"fc.weight": 0.1}, "train": None}
    parts = {"fc.weight": values, "b/c@d": -values} if layers else {}
    scores = Scores(queries, ids, values, parts, about)
    path = tmp_path_factory.mktemp("scores") / "saved"
    for _ in range(2):  # the second replaces the first
        scores.save(path)
    assert_same(load_scores(path), scores)


def test_load_something_else(tmp_path):
    with pytest.raises(StoreNotFoundError):
        load_scores(tmp_path / "nothing")
    store.create(tmp_path / "other").close()
    with pytest.raises(ArgumentError, match="does not contain scores"):
        load_scores(tmp_path / "other")


# -- to look at -----------------------------------------------------------------------------------


def test_to_pandas():
    scores = made()
    frame = scores.to_pandas()
    assert list(frame.columns) == ["query", "id", "score", "a", "b"]
    assert frame["query"].tolist() == ["p"] * 3 + ["q"] * 3
    assert frame["id"].tolist() == [5, 3, 8] * 2
    assert frame["score"].tolist() == scores.values.ravel().tolist()
    best = scores.top(2)
    frame = best.to_pandas()
    assert list(frame.columns) == ["query", "rank", "id", "score", "a", "b"]
    assert frame["rank"].tolist() == [0, 1, 0, 1]
    assert frame["id"].tolist() == best.ids.ravel().tolist()
    assert frame["a"].tolist() == best.layers["a"].ravel().tolist()


@pytest.mark.parametrize("scores", [made(), made().top(2), made(ids=()), made(queries=range(30))])
def test_printed(scores):
    text = io.StringIO()
    Console(file=text, width=200).print(scores)
    assert f"{len(scores)} queries" in " ".join(text.getvalue().split())
    if scores.values.size:
        best = scores.top(1) if scores.whole else scores
        assert f"{best.ids[0, 0]}  {best.values[0, 0]:.3g}" in text.getvalue()


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    scores = made(ids=range(50), curvature="ekfac")
    figure = scores.plot("q", most=4, path=tmp_path / "bars.png")
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")
    axes = figure.axes[0]
    order = np.argsort(-scores.values[1], kind="stable")
    shown = [*order[:4], *order[-4:]]
    assert [label.get_text() for label in axes.get_yticklabels()] == [str(i) for i in shown]
    widths = [bar.get_width() for bar in axes.patches]
    np.testing.assert_allclose(widths, scores.values[1][shown])
    assert axes.get_xlabel() == "influence on q (ekfac)"
    assert len(made().top(2).plot().axes[0].patches) == 2


# -- ensembles ------------------------------------------------------------------------------------


def test_an_ensemble_of_other_orders():
    first = made()
    order, turned = [2, 0, 1], [1, 0]
    second = made(seed=1)
    shuffled = Scores(
        second.queries[turned],
        second.ids[order],
        second.values[turned][:, order],
        {name: values[turned][:, order] for name, values in second.layers.items()},
        second.about,
    )
    for several in ([first, second], [first, shuffled]):
        mean = ensemble(several)
        np.testing.assert_allclose(mean.values, (first.values + second.values) / 2)
        apart = np.abs(first.values - second.values)
        np.testing.assert_allclose(mean.standard_errors, apart / 2)  # over sqrt(2), twice
        assert mean.ids.tolist() == first.ids.tolist()
        assert mean.queries.tolist() == first.queries.tolist()
        assert set(mean.layers) == {"a", "b"}
        np.testing.assert_allclose(mean.layers["a"], (first.layers["a"] + second.layers["a"]) / 2)
        assert mean.about["ensemble"] == 2
        weighted = ensemble(several, [0.5, 2])
        np.testing.assert_allclose(weighted.values, 0.5 * first.values + 2 * second.values)
    assert ensemble([first, made(layers=["a"])]).layers == {}


def test_what_is_no_ensemble():
    with pytest.raises(ArgumentError, match="at least one"):
        ensemble([])
    for other in (made().top(1), made(ids=(5, 3, 9)), made(ids=(5, 3))):
        with pytest.raises(ArgumentError, match="needs the scores of all examples"):
            ensemble([made(), other])
    with pytest.raises(ArgumentError, match="different queries"):
        ensemble([made(), made(queries=("p", "x"))])
    with pytest.raises(ArgumentError, match="1 weights for 2"):
        ensemble([made(), made()], [1.0])
    with pytest.raises(ArgumentError, match=r"one mode; got \['cosine', 'dot'\]"):
        ensemble([made(), made(mode="cosine")])


# -- rankings -------------------------------------------------------------------------------------


def test_ranking():
    ranking = Ranking(np.array([4, 7, 1, 9]), np.array([1.0, 3.0, np.nan, 3.0]))
    assert len(ranking) == 4
    assert ranking.top(2) == [(7, 3.0), (9, 3.0)]
    assert ranking.top(1, least=True) == [(4, 1.0)]
    assert [each for each, _ in ranking.top(9)] == [7, 9, 4, 1]
    assert ranking.to_pandas()["id"].tolist() == [4, 7, 1, 9]
    with pytest.raises(ArgumentError, match="`k` must be a positive integer"):
        ranking.top(0)


def test_self_influence_is_the_diagonal_of_all_scores():
    rows = {"w": np.random.default_rng(0).normal(size=(7, 2, 3)), "v": np.ones((7, 1))}
    scores = attribute(rows, rows, curvature="shampoo", per_layer=True)
    ranking = self_influence(rows, curvature="shampoo")
    np.testing.assert_allclose(ranking.values, scores.values.diagonal())
    assert set(ranking.layers) == {"w", "v"}
    np.testing.assert_allclose(ranking.layers["w"], scores.layers["w"].diagonal())
    assert list(ranking.to_pandas().columns) == ["id", "value", "w", "v"]
    only = self_influence(rows, curvature="shampoo", names=["w"])
    np.testing.assert_allclose(only.values, ranking.layers["w"])


def test_some_queries():
    scores = attribute({"w": np.eye(3)}, {"w": np.eye(3)}, curvature="identity", per_layer=True)
    some = scores.select([2, 0])
    assert some.queries.tolist() == [2, 0]
    assert some.values.tolist() == some.layers["w"].tolist() == [[0, 0, 1], [1, 0, 0]]
    assert scores.top(1).select([1])[1] == [(1, 1.0)]
    with pytest.raises(ArgumentError, match="no query 7"):
        scores.select([7])


def test_ids_are_shown_as_they_are():
    names = ["[/red]", "a\x1b[31mb", "[bold]c"]
    logs = Logs({"w": np.eye(3)}, ids=names)
    scores = attribute(logs, logs, curvature="identity")
    console = Console(file=io.StringIO(), width=120, force_terminal=False)
    console.print(scores)
    console.print(influence.attribution_table(scores, {each: each for each in names}, k=1))
    said = console.file.getvalue()
    for name in ("[/red]", r"a\x1b[31mb", "[bold]c"):
        assert name in said
    assert "\x1b" not in said


def test_ids_of_a_store_are_its_own(tmp_path):
    written(tmp_path / "logs", {"w": np.eye(3)}, np.arange(3))
    with pytest.raises(ArgumentError, match=r"have their own\. Hint: Logs\(source\)\.gather"):
        Logs(tmp_path / "logs", ids=[0, 1])


def test_only_scores_are_replaced(tmp_path):
    written(tmp_path / "logs", {"w": np.eye(3)}, np.arange(3))
    scores = attribute(tmp_path / "logs", {"w": np.eye(3)}, curvature="identity")
    with pytest.raises(ArgumentError, match="does not contain scores"):
        scores.save(tmp_path / "logs")
    assert len(Logs(tmp_path / "logs")) == 3
    for some in (scores, scores.select([1])):
        some.save(tmp_path / "scores")
        assert len(load_scores(tmp_path / "scores")) == len(some)


def with_errors(members=7):
    """Scores that are the mean of members, with the standard errors of that mean."""
    several = np.random.default_rng(3).normal(size=(members, 2, 5))
    errors = several.std(0, ddof=1) / np.sqrt(members)
    return Scores(
        np.array(["p", "q"]),
        np.arange(10, 15),
        several.mean(0),
        standard_errors=errors,
        members=several,
    )


def test_standard_errors_follow_their_scores(tmp_path):
    scores = with_errors()
    best = scores.top(2).top(1).select(["q"])
    at = int(np.argmax(scores.values[1]))
    assert best.values[0, 0] == scores.values[1, at]
    assert best.standard_errors[0, 0] == scores.standard_errors[1, at]
    np.testing.assert_array_equal(best.members[:, 0, 0], scores.members[:, 1, at])
    scores.save(tmp_path / "scores")
    loaded = load_scores(tmp_path / "scores")
    np.testing.assert_array_equal(loaded.standard_errors, scores.standard_errors)
    np.testing.assert_array_equal(loaded.members, scores.members)
    assert made().standard_errors is None
    assert scores.to_pandas()["standard_error"].tolist() == scores.standard_errors.ravel().tolist()


def test_standard_errors_of_sums_come_from_the_members():
    scores = with_errors()
    groups = {"a": [10, 12], "b": [14]}
    summed = np.stack([scores.members[:, :, [0, 2]].sum(-1), scores.members[:, :, 4]], -1)
    found = scores.of_groups(groups)
    np.testing.assert_allclose(found.values, summed.mean(0))
    np.testing.assert_allclose(found.standard_errors, summed.std(0, ddof=1) / np.sqrt(7))
    total = scores.group()
    expected = scores.members.sum(1).std(0, ddof=1) / np.sqrt(7)
    np.testing.assert_allclose(total.standard_errors[0], expected)
    twice = dataclasses.replace(scores, standard_errors=2 * scores.standard_errors)
    np.testing.assert_allclose(twice.group().standard_errors[0], 2 * expected)
    np.testing.assert_allclose(
        twice.of_groups(groups).standard_errors, 2 * found.standard_errors
    )  # as far from the spread of the members as those of the examples
    bare = Scores(scores.queries, scores.ids, scores.values, standard_errors=scores.standard_errors)
    assert bare.of_groups(groups).standard_errors is None  # never a guess


def test_intervals():
    scores = with_errors()
    low, high = scores.interval(0.9)
    reach = 1.9431802805 * scores.standard_errors  # Student's t with 6 degrees of freedom
    np.testing.assert_allclose(low, scores.values - reach)
    np.testing.assert_allclose(high, scores.values + reach)
    assert (scores.interval(0.99)[1] > high).all()
    normal = Scores(scores.queries, scores.ids, scores.values, standard_errors=np.ones((2, 5)))
    np.testing.assert_allclose(normal.interval(0.95)[1] - scores.values, 1.959963985)
    with pytest.raises(ArgumentError, match=r"no standard errors. Hint: through_training"):
        made().interval()
    with pytest.raises(ArgumentError, match="`level` must be a number"):
        scores.interval(90)


def test_of_queries_with_one_id_the_first_counts():
    scores = Scores(np.array(["p", "q", "p"]), np.array([1, 2]), np.arange(6.0).reshape(3, 2))
    assert scores["p"] == [(1, 0.0), (2, 1.0)]


def test_a_validation_is_that_of_all_queries_and_examples():
    said = Validation(0.5, 0.4, 0.6, 0.9, None, np.array([0.4, 0.6]), 10, 0.5, 20)
    scores = dataclasses.replace(made(), validation=said)
    assert scores.top(1).validation == said
    for part in (
        scores.select(["q"]),
        scores.group(),
        scores.group({"both": ["p", "q"]}),
        scores.of_groups({"g": [5, 8]}),
    ):
        assert part.validation is None
