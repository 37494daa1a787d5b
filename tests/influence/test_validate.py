"""``validate``: against hand-written correlations, scipy, and real retraining of small models."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from sawlog import influence
from sawlog.curvature import Curvature, Joint
from sawlog.errors import ArgumentError
from sawlog.influence import Bank, Scores, Validation, load_scores, validate
from sawlog.influence._validation import _validate
from sawlog.influence._validation._rank_correlation import (
    _student,
    attainable,
    mean_correlation,
    ranks,
    spearman,
)
from sawlog.influence._validation._subset import Subset, random_subsets
from tests.influence import retraining
from tests.influence.retraining import (
    ANSWERS,
    ASKED,
    QUERIES,
    D,
    N,
    Q,
    X,
    Y,
    exact_scores,
    losses,
    train,
    weights,
)

FEW = {"subsets": 12, "seeds": 2, "groups": None}


# ---- correlations


@pytest.mark.parametrize("kinds", [2, 5, 10**9], ids=["many ties", "ties", "no ties"])
def test_ranks_and_correlations_are_those_of_scipy(kinds):
    random = np.random.default_rng(kinds)
    one, other = (random.integers(0, kinds, (17, 4)) * 1.0 for _ in range(2))
    np.testing.assert_array_equal(ranks(one), stats.rankdata(one, axis=0))
    wanted = [stats.spearmanr(a, b).statistic for a, b in zip(one.T, other.T, strict=True)]
    np.testing.assert_allclose(spearman(one, other), wanted, atol=1e-12)


def test_a_constant_column_has_no_correlation():
    assert spearman(np.ones((4, 1)), np.arange(4.0)[:, None]).tolist() == [0.0]


@pytest.mark.parametrize("freedom", [4, 9, 99])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95])
def test_quantiles_of_student(confidence, freedom):
    wanted = stats.t.ppf((1 + confidence) / 2, freedom)
    assert _student(confidence, freedom) == pytest.approx(wanted, rel=0.01)


def test_the_interval_covers_the_value_of_all_subsets_and_queries():
    """The truth is the mean over a large population of queries, each with its own correlation."""
    random = np.random.default_rng(0)
    hits, rounds = 0, 60
    population = np.tanh(random.normal(0.6, 0.4, 4000))
    truth = float((6 / math.pi * np.arcsin(population / 2)).mean())  # of rank correlations
    for _ in range(rounds):
        own = random.choice(population, 12)
        one = random.normal(size=(25, 12))
        other = own * one + np.sqrt(1 - own**2) * random.normal(size=(25, 12))
        found = mean_correlation(one, other, 0.9)
        assert found.low < found.mean < found.high
        hits += found.low <= truth <= found.high
    assert 0.82 <= hits / rounds <= 0.97


def reach(found, confidence, freedom):
    """The standard error that an interval was made of, by both of its ends."""
    quantile = stats.t.ppf((1 + confidence) / 2, freedom)
    ends = np.abs(np.arctanh([found.low, found.high]) - np.arctanh(found.mean))
    assert ends[0] == pytest.approx(ends[1])
    return ends[0] / quantile * (1 - found.mean**2)


def test_the_error_of_one_query_is_that_of_a_jackknife():
    random = np.random.default_rng(4)
    one = random.normal(size=(30, 1))
    other = one + random.normal(size=(30, 1))
    found = mean_correlation(one, other, 0.9)
    without = [stats.spearmanr(np.delete(one, i), np.delete(other, i)).statistic for i in range(30)]
    wanted = np.sqrt(29 / 30 * ((without - np.mean(without)) ** 2).sum())
    assert reach(found, 0.9, 29) == pytest.approx(wanted, rel=1e-3)
    same = mean_correlation(np.repeat(one, 5, 1), np.repeat(other, 5, 1), 0.9)
    assert reach(same, 0.9, 29) == pytest.approx(wanted, rel=1e-3)  # equal queries tell no more


def test_the_error_of_queries_that_differ_is_that_of_their_mean():
    """With very many subsets only the choice of the queries is left to chance."""
    random = np.random.default_rng(5)
    slopes = np.array([0.1, 0.5, 1.0, 2.0, 4.0, 8.0])
    one = random.normal(size=(600, 6))
    found = mean_correlation(one, slopes * one + random.normal(size=(600, 6)), 0.9)
    wanted = found.per_query.std(ddof=1) / np.sqrt(6)
    assert reach(found, 0.9, 99) == pytest.approx(wanted, rel=0.05)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_perfect_ranking_of_few_subsets_is_not_certain(sign):
    one = np.arange(6.0)[:, None] * np.ones((1, 2))
    found = mean_correlation(one, sign * one)
    low, high = sorted((sign * found.low, sign * found.high))
    assert found.mean == sign
    assert 0.1 < low < 0.98
    assert high == 1


def test_what_perfect_scores_would_reach():
    """Answers are the truth and independent noise, so the correlation is known."""
    random = np.random.default_rng(1)
    truth, noise = random.normal(size=(400, 30)), 1.0
    for seeds in (2, 5):
        answers = truth + noise * random.normal(size=(seeds, 400, 30))
        wanted = np.mean(spearman(truth, answers.mean(0)))
        assert attainable(answers) == pytest.approx(wanted, abs=0.02)
    assert attainable(answers[:1]) is None


# ---- the linear datamodeling score


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_the_score_by_hand(tmp_path, better):
    sign = 1 if better == "lower" else -1
    scores = exact_scores()

    def metric(ids, seed):
        return sign * train(ids, seed)

    found = validate(scores, metric, bank=tmp_path / "bank", better=better, drop=0.3, **FEW)
    wanted = []
    subsets = random_subsets(N, 0.3, 12, draw=0)
    assert {subset.size for subset in subsets} == {12}
    for q in range(Q):
        kept = [scores.values[q][~subset.left_out].sum() for subset in subsets]
        after = [
            np.mean([train(np.flatnonzero(~s.left_out), s.seed(k))[q] for k in range(2)])
            for s in subsets
        ]
        wanted.append(stats.spearmanr(kept, -np.array(after)).statistic)
    assert found.validation.lds == pytest.approx(np.mean(wanted))
    np.testing.assert_allclose(found.validation.per_query, wanted)
    assert (found.validation.subsets, found.validation.models) == (12, 24)
    assert found.validation.lds > 0.8
    other = validate(-scores.values, bank=tmp_path / "bank", drop=0.3)
    assert other.validation.lds == pytest.approx(-np.mean(wanted))


def test_models_together_are_those_one_by_one(tmp_path):
    shapes = []

    def many(ids, seeds):
        shapes.append((ids.shape, seeds.shape))
        return np.stack([train(own, int(seed)) for own, seed in zip(ids, seeds, strict=True)])

    options = {**FEW, "groups": 1}
    one = validate(exact_scores(), train, bank=tmp_path / "one", **options)
    together = validate(exact_scores(), many, bank=tmp_path / "many", together=7, **options)
    assert one.validation == together.validation
    assert {seeds for _, seeds in shapes} == {(7,)}
    assert {ids for ids, _ in shapes} == {(7, 20), (7, 38), (7, 40)}


def test_a_program_of_jax_trains_many_at_once():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    x, y, asked, answers = map(jnp.asarray, (X, Y, ASKED, ANSWERS))

    def fitted(ids, seed):
        noise = jax.random.normal(jax.random.key(seed), (D,))
        own = x[ids]
        w = jnp.linalg.solve(own.T @ own + 0.1 * jnp.eye(D), own.T @ y[ids] + 0.1 * noise)
        return (asked @ w - answers) ** 2

    found = validate(exact_scores(), jax.jit(jax.vmap(fitted)), together=8, **FEW)
    assert found.validation.lds > 0.8


def test_a_model_of_torch_and_a_measure():
    torch = pytest.importorskip("torch")
    x, y = torch.from_numpy(X), torch.from_numpy(Y)

    def fitted(ids, seed):
        torch.manual_seed(seed)
        model = torch.nn.Linear(D, 1, bias=False).double()
        with torch.no_grad():
            model.weight.copy_(torch.linalg.lstsq(x[ids], y[ids, None]).solution.T)
        return model

    def measure(model):
        return ((model(torch.from_numpy(ASKED))[:, 0] - torch.from_numpy(ANSWERS)) ** 2).detach()

    found = validate(exact_scores(), fitted, measure=measure, **FEW)
    assert found.validation.lds > 0.8


def test_metrics_by_query_and_some_of_the_queries(tmp_path):
    def by_query(ids, seed):
        return dict(reversed(list(zip(QUERIES.tolist(), train(ids, seed), strict=True))))

    scores = exact_scores()
    whole = validate(scores, by_query, bank=tmp_path / "bank", **FEW).validation
    some = validate(scores.select(["q3", "q1"]), bank=tmp_path / "bank", groups=None)
    np.testing.assert_allclose(some.validation.per_query, whole.per_query[[3, 1]])
    order = np.random.default_rng(0).permutation(N)
    mixed = Scores(QUERIES, scores.ids[order], scores.values[:, order], about=scores.about)
    assert validate(mixed, bank=tmp_path / "bank", groups=None).validation == whole


def test_metrics_are_in_the_order_of_the_scores(tmp_path):
    """A bank whose queries have another order than those of the scores."""
    scores, order = exact_scores(), [3, 0, 4, 2, 1]
    validate(scores, train, bank=tmp_path / "bank", **FEW)
    mixed = scores.select(QUERIES[order])
    options = {"subsets": 14, "seeds": 2, "groups": None}
    more = validate(mixed, lambda i, s: train(i, s)[order], bank=tmp_path / "bank", **options)
    whole = validate(scores, train, **options)
    np.testing.assert_allclose(more.validation.per_query, whole.validation.per_query[order])
    with pytest.raises(ArgumentError, match="scores have 2 of them: training must measure all"):
        validate(scores.select(["q3", "q1"]), train, bank=tmp_path / "bank", **FEW)
    bank = Bank(tmp_path / "bank")
    with pytest.raises(ArgumentError, match="has better='lower'; got 'higher'"):
        validate(scores, bank=bank, better="higher")


def test_sums_over_blocks_of_examples(monkeypatch):
    monkeypatch.setattr(_validate, "BLOCK", 7)
    random = np.random.default_rng(0)
    left_out, values = random.random((5, 40)) < 0.5, random.normal(size=(3, 40))
    wanted = [[row[own].sum() for row in values] for own in left_out]
    np.testing.assert_allclose(_validate._sums(left_out, values), wanted)


def test_a_group_is_no_random_subset(tmp_path):
    """Though it leaves out as many examples as those do."""
    half = {"half": range(N // 2)}
    options = {"subsets": 6, "seeds": 1, "drop": 0.5, "bank": tmp_path / "bank"}
    found = validate(exact_scores(), train, groups=half, **options).validation
    again = validate(exact_scores(), bank=tmp_path / "bank", groups=None).validation
    assert (again.subsets, again.lds) == (found.subsets, found.lds) == (6, found.lds)


def test_a_measure_of_models_together_and_other_subsets():
    def many(ids, seeds):
        return np.stack([weights(own, int(s)) for own, s in zip(ids, seeds, strict=True)])

    def measure(models):
        return np.stack([losses(model) for model in models])

    found = validate(exact_scores(), many, measure=measure, together=5, **FEW).validation
    assert found == validate(exact_scores(), train, **FEW).validation
    other = validate(exact_scores(), train, draw=1, **FEW).validation
    assert other.lds != found.lds
    firsts = [random_subsets(N, 0.5, 2, draw)[0].name for draw in (0, 1)]
    assert firsts[0] != firsts[1] != random_subsets(N, 0.5, 2, 1)[1].name


# ---- groups


def test_groups_that_are_left_out():
    """Predicted by the influence, measured by hand."""
    scores = exact_scores()
    found = validate(scores, train, subsets=5, seeds=3, groups=2, share=0.1).validation
    assert [group.name for group in found.groups] == [
        f"{end} for {whose}" for whose in ("all queries", "q0", "q4") for end in ("best", "worst")
    ]
    for group, end in zip(found.groups, itertools.cycle(["best", "worst"]), strict=False):
        row = None if group.query is None else QUERIES.tolist().index(group.query)
        values = scores.values.sum(0) if row is None else scores.values[row]
        own = np.argsort(-values if end == "best" else values)[:4]
        assert group.size == 4
        share = values[own].sum() / N / (Q if row is None else 1)
        assert group.predicted == pytest.approx(share)
        left_out = np.isin(np.arange(N), own)
        with_it, without = (
            np.array([train(np.flatnonzero(~s.left_out), s.seed(k)) for k in range(3)])
            for s in (Subset(np.zeros(N, bool)), Subset(left_out))
        )
        with_it, without = (
            each.mean(1) if row is None else each[:, row] for each in (with_it, without)
        )
        assert group.measured == pytest.approx(without.mean() - with_it.mean())
        error = math.sqrt(with_it.var(ddof=1) / 3 + without.var(ddof=1) / 3)
        assert group.standard_error == pytest.approx(error)
        assert (group.measured > 0) == (end == "best")
        assert group.predicted == pytest.approx(group.measured, rel=0.8)


def test_groups_by_name_and_the_sign_of_a_metric(tmp_path):
    scores = exact_scores()
    groups = {"first": range(5), "last": np.arange(35, 40)}
    options = {"subsets": 5, "seeds": 1, "groups": groups}
    lower = validate(scores, train, **options).validation.groups
    higher = validate(scores, lambda i, s: -train(i, s), better="higher", **options)
    for one, other in zip(lower, higher.validation.groups, strict=True):
        assert (one.predicted, one.measured) == (-other.predicted, -other.measured)
        assert (one.query, one.size, one.standard_error) == (None, 5, None)
    for odd, message in (([], "not all"), (range(N), "not all"), ([99], "lack: 99")):
        with pytest.raises(ArgumentError, match=message):
            validate(scores, train, groups={"odd": odd}, subsets=5)


@pytest.mark.parametrize(
    ("about", "unit"),
    [
        ({"mode": "dot", "curvature": "ekfac"}, True),
        ({"mode": "cosine", "curvature": "ekfac"}, False),
        ({"mode": "dot", "curvature": "identity"}, False),
        ({"mode": "dot", "curvature": "shampoo"}, False),
        ({"mode": "dot", "curvature": "ekfac", "unit": None}, False),
        ({}, False),
    ],
)
def test_only_influence_functions_predict_an_amount(about, unit):
    scores = Scores(QUERIES, np.arange(N), retraining.influence(), about=about)
    found = validate(scores, train, subsets=5, seeds=1, groups=0).validation.groups
    assert [group.predicted is not None for group in found] == [unit, unit]


def test_influence_functions_predict_retraining():
    """From gradients to a validated ``Scores``, as a user has it."""
    w = retraining.weights(np.arange(N))
    rows = {"w": 2 * (X @ w - Y)[:, None] * X}
    asked = {"w": 2 * (ASKED @ w - ANSWERS)[:, None] * ASKED}
    hessian = Curvature("hessian", {}, Joint(2 * X.T @ X / N + 0.005 * np.eye(D), {"w": (D,)}))
    scores = influence.attribute(rows, influence.Logs(asked, ids=QUERIES), curvature=hessian)
    found = validate(scores, train, **FEW)
    assert found.validation.lds > 0.8
    plain = influence.attribute(rows, influence.Logs(asked, ids=QUERIES), curvature="identity")
    assert validate(plain, train, **FEW).validation.lds < found.validation.lds


# ---- it travels with the scores


def test_a_validation_travels_with_its_scores(tmp_path):
    found = validate(exact_scores(), train, subsets=6, seeds=2, groups=1)
    assert isinstance(found.validation, Validation)
    found.save(tmp_path / "scores")
    loaded = load_scores(tmp_path / "scores")
    assert loaded.validation == found.validation
    assert loaded.validation != dataclasses.replace(found.validation, lds=0.0)
    for text in (repr(loaded), str(loaded)):
        assert f"LDS {found.validation.lds:.2f}" in text
        assert "12 models on 6 subsets without 50% of the examples" in text
    assert found.top(3).validation == found.validation
    for other in (found.select(["q1"]), found.group(), found.of_groups({"a": [1, 2]})):
        assert other.validation is None
    assert "LDS" not in repr(found.select(["q1"]))


# ---- refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": None}, "nothing to compare the scores with"),
        ({"train": 3}, "`train` must be a function"),
        ({"subsets": 4}, "`subsets` must be an integer of at least 5"),
        ({"seeds": 0}, "`seeds` must be a positive integer"),
        ({"together": 0}, "`together` must be a positive integer"),
        ({"drop": 1.5}, "`drop` must be a number from 0 to 1"),
        ({"drop": 0.001}, "`drop` must be a share that leaves out some of the 40"),
        ({"drop": 1.0}, "`drop` must be a share that leaves out some of the 40"),
        ({"share": 0.001}, "must be a share that leaves out some"),
        ({"confidence": 1.0}, "`confidence` must be a number between 0 and 1"),
        ({"better": "lowest"}, "`better` must be one of 'lower', 'higher'"),
        ({"groups": -1}, "`groups` must be a non-negative integer"),
        ({"train": lambda ids, seed: 1.0}, r"`train` must return .* = \[5\]; got the shape \[\]"),
        ({"train": lambda ids, seed: np.ones(4)}, r"got the shape \[4\]"),
        ({"train": lambda ids, seed: "x"}, "got str"),
        ({"train": lambda ids, seed: {"q0": 1.0}}, "lack the queries 'q1'"),
        ({"train": lambda ids, seed: np.full(Q, np.nan)}, "infinite or NaN, of the queries 'q0'"),
        ({"train": lambda ids, seed: np.ones((2, 4)), "together": 2}, r"= \[2, 5\]; got"),
        ({"train": lambda ids, seed: np.ones(Q)}, "same for all 5 subsets.*Hint: does `train"),
    ],
)
def test_refused(options, message):
    with pytest.raises(ArgumentError, match=message):
        validate(exact_scores(), **{"train": train, "subsets": 5, "seeds": 1, **options})


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (exact_scores().top(3), "needs the scores of all examples"),
        (np.ones(3), r"array \[queries, examples\]"),
        (np.array([["a"]]), r"array \[queries, examples\]"),
        (np.full((Q, N), np.inf), "infinite or NaN"),
        (np.full((Q, N), 0.1), "All examples have the same score"),
        (Scores(QUERIES, np.zeros(N), np.ones((Q, N))), "Some examples have the same id"),
        (Scores(np.zeros(Q), np.arange(N), np.ones((Q, N))), "Some queries have the same id"),
    ],
)
def test_scores_that_cannot_be_validated(scores, message):
    with pytest.raises(ArgumentError, match=message):
        validate(scores, train)


def test_arrays_from_elsewhere_need_matching_ids(tmp_path):
    same = validate(exact_scores(), train, bank=tmp_path / "bank", **FEW)
    with pytest.raises(ArgumentError, match="has 39 columns, but there are 40 ids"):
        validate(np.ones((Q, N - 1)), bank=tmp_path / "bank")
    with pytest.raises(ArgumentError, match="has 5 rows, but there are 2 queries"):
        validate(np.ones((Q, N)), train, queries=["a", "b"])
    found = validate(exact_scores().values, bank=tmp_path / "bank")
    assert found.validation.lds == same.validation.lds
    assert found.queries.tolist() == QUERIES.tolist()


# ---- damping by a bank


def test_damping_is_chosen_by_retraining(tmp_path):
    """With gradients in a basis that stretches them, much damping is worse than none."""
    w = retraining.weights(np.arange(N))
    turn = np.diag([1.0, 30.0, 0.05])
    rows = {"w": 2 * (X @ w - Y)[:, None] * X @ turn}
    asked = influence.Logs({"w": 2 * (ASKED @ w - ANSWERS)[:, None] * ASKED @ turn}, ids=QUERIES)
    hessian = turn @ (2 * X.T @ X / N + 0.005 * np.eye(D)) @ turn
    exact = Curvature("hessian", {}, Joint(hessian, {"w": (D,)}))
    validate(exact_scores(), train, bank=tmp_path / "bank", subsets=20, seeds=2, groups=None)
    options = {"curvature": exact, "bank": tmp_path / "bank", "dampings": (1e4, 1e-9, 10.0)}
    found = influence.tune_damping(rows, asked, **options)
    assert found.about["damping"] == {"w": 1e-9}
    np.testing.assert_allclose(
        found.values, influence.attribute(rows, asked, curvature=exact, damping=1e-9).values
    )
    assert [name for name, _ in found.about["tuned"]] == ["10000.0", "1e-09", "10.0"]
    assert found.validation.subsets == 10
    first, second = (
        np.mean(
            [
                stats.spearmanr(
                    [found.values[q][~s.left_out].sum() for s in half],
                    [
                        -np.mean([train(np.flatnonzero(~s.left_out), s.seed(k))[q] for k in (0, 1)])
                        for s in half
                    ],
                ).statistic
                for q in range(Q)
            ]
        )
        for half in (random_subsets(N, 0.5, 20, 0)[start::2] for start in (0, 1))
    )
    assert found.about["tuned"][1][1] == pytest.approx(first)
    assert found.validation.lds == pytest.approx(second)
    for change, message in (
        ({"dampings": ()}, "at least one damping"),
        ({"top_k": 3}, "needs all scores"),
        ({"drop": 0.25}, "has 0 random subsets"),
    ):
        with pytest.raises(ArgumentError, match=message):
            influence.tune_damping(rows, asked, **{**options, **change})
