"""`validate`: against hand-written correlations, scipy, and real retraining of small models."""

import math

import numpy as np
import pytest
from scipy import stats

from sawlog.errors import ArgumentError
from sawlog.influence import Bank, Scores, validate
from sawlog.influence._validation import _validate
from sawlog.influence._validation._rank_correlation import (
    _student,
    attainable,
    mean_correlation,
    ranks,
    spearman,
)
from sawlog.influence._validation._subset import random_subsets
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


def left_out_one_by_one(one, other):
    """Rank correlations without each of the subsets, ``[subsets, queries]``, and with all."""
    several = [(np.delete(one, i, 0), np.delete(other, i, 0)) for i in range(len(one))]
    found = [
        [stats.spearmanr(left[:, q], right[:, q]).statistic for q in range(one.shape[1])]
        for left, right in [*several, (one, other)]
    ]
    return np.array(found[:-1]), np.array(found[-1])


def test_queries_that_differ_by_chance_alone_add_no_error():
    """All have one true correlation, so only the choice of the subsets makes them differ."""
    random = np.random.default_rng(6)
    one = random.normal(size=(30, 20))
    other = one + random.normal(size=(30, 20))
    means = left_out_one_by_one(one, other)[0].mean(1)
    wanted = np.sqrt(29 / 30 * ((means - means.mean()) ** 2).sum())
    found = mean_correlation(one, other, 0.9)
    assert reach(found, 0.9, 29) == pytest.approx(wanted, rel=0.15)


@pytest.mark.parametrize("queries", [2, 3, 6])
def test_errors_of_queries_and_of_subsets_are_told_apart(queries):
    """The variance of single queries is N, and C of it is common to them: N + (q - 1) C = q V."""
    random = np.random.default_rng(7)
    one = random.normal(size=(20, queries))
    shared = random.normal(size=(20, 1))
    other = np.linspace(0.3, 3, queries) * one + shared + 0.3 * random.normal(size=(20, queries))
    without, whole = left_out_one_by_one(one, other)
    jackknife = lambda values: 19 / 20 * ((values - values.mean(0)) ** 2).sum(0)
    of_mean, single = float(jackknife(without.mean(1))), float(jackknife(without).mean())
    common = max(0.0, (queries * of_mean - single) / (queries - 1))
    rest = max(0.0, whole.var(ddof=1) - max(0.0, single - common))
    found = mean_correlation(one, other, 0.9)
    assert reach(found, 0.9, 19) == pytest.approx(math.sqrt(of_mean + rest / queries), rel=1e-4)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_perfect_ranking_of_few_subsets_is_not_certain(sign):
    one = np.arange(6.0)[:, None] * np.ones((1, 2))
    found = mean_correlation(one, sign * one)
    low, high = sorted((sign * found.low, sign * found.high))
    assert found.mean == sign
    assert 0.1 < low < 0.98
    assert high == 1


@pytest.mark.parametrize("seeds", [2, 3, 4, 5, 7])
def test_what_perfect_scores_would_reach(seeds):
    """Answers are the truth and independent noise, so the correlation is known."""
    random = np.random.default_rng(1)
    truth = random.normal(size=(600, 40))
    answers = truth + 2.0 * random.normal(size=(seeds, 600, 40))
    wanted = np.mean(spearman(truth, answers.mean(0)))
    assert attainable(answers) == pytest.approx(wanted, abs=0.015)


def test_one_seed_does_not_show_its_noise():
    assert attainable(np.random.default_rng(1).normal(size=(1, 9, 3))) is None


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
