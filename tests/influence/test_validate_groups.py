"""`validate`: groups, results that travel with scores, refusals, damping by a bank."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from sawlog import influence
from sawlog.curvature import Curvature, Joint
from sawlog.errors import ArgumentError
from sawlog.influence import Scores, Validation, load_scores, validate
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
    train,
)

FEW = {"subsets": 12, "seeds": 2, "groups": None}


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
