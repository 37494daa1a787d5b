"""SOURCE against dense matrix exponentials, and against derivatives of real training."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.linalg import expm
from torch.nn import functional as F

import sawlog
from sawlog import influence
from sawlog.curvature import Curvature, Joint
from sawlog.errors import ArgumentError, WeightsMismatchError
from sawlog.influence import Logs, TrainingSegment, attribute, source
from sawlog.influence._source import _rates
from tests.influence.dense import hessian, rows_of

RNG = np.random.default_rng(0)
N, D, Q = 12, 3, 4
CHECKPOINTS = [{"w": RNG.normal(size=(N, D))} for _ in range(3)]
QUERIES = {"w": RNG.normal(size=(Q, D))}


def fisher(several):
    rows = np.concatenate([each["w"] for each in several])
    return rows.T @ rows / len(rows)


def dense(segments, queries):
    """The formula, one segment after the other from the last, with dense matrices."""
    total, left = 0.0, queries
    for checkpoints, rate, steps, decay, curvature in reversed(segments):
        matrix = curvature + decay * np.eye(len(curvature))
        shrunk = expm(-rate * steps * matrix)
        moved = np.linalg.solve(matrix, np.eye(len(matrix)) - shrunk)
        total = total + left @ moved @ np.mean([each["w"] for each in checkpoints], 0).T
        left = left @ shrunk
    return total


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_two_segments_by_dense_matrices(decay):
    early, late = CHECKPOINTS[:2], CHECKPOINTS[2:]
    segments = [
        TrainingSegment(early, 0.1, 7, decay),
        TrainingSegment(late, {"w": 0.02}, 20, decay),
    ]
    found = source(segments, QUERIES, curvature="fisher")
    parts = [(early, 0.1, 7, decay, fisher(early)), (late, 0.02, 20, decay, fisher(late))]
    np.testing.assert_allclose(found.values, dense(parts, QUERIES["w"]), rtol=1e-9)
    assert found.about["unit"] == 1 / N
    best = source(segments, QUERIES, curvature="fisher", top_k=2)
    assert best.top(1)[0] == found.top(1)[0]


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("rate", [1e-9, 1e-4, 0.02, 5.0])
def test_small_and_large_times_are_integrals(rate, decay):
    """``(1 - exp(-t e)) / e`` is the integral of ``exp(-s e)`` over ``s`` from 0 to ``t``."""
    eigenvalues = np.array([0.0, 1e-12, 1e-6, 0.01, 0.7, 3.0])
    own = _rates(TrainingSegment([], {"w": rate, "other": 2 * rate}, 5, decay), ["w"])
    points, weights = np.polynomial.legendre.leggauss(60)
    times = 5 * rate * (points[:, None] + 1) / 2
    integral = 5 * rate / 2 * weights @ np.exp(-times * (eigenvalues + decay))
    np.testing.assert_allclose(own.moved("w", eigenvalues), integral, rtol=1e-10)
    left = [math.exp(-5 * rate * (each + decay)) for each in eigenvalues]
    np.testing.assert_allclose(own.left("w", eigenvalues), left, rtol=1e-12)


def test_the_limits_are_influence_functions_and_tracin():
    last = CHECKPOINTS[2:]
    forever = source([TrainingSegment(last, 1.0, 10**6)], QUERIES, curvature="fisher")
    exact = attribute(last[0], QUERIES, curvature="fisher", damping=0.0)
    np.testing.assert_allclose(forever.values, exact.values, rtol=1e-9)
    plain = attribute(last[0], QUERIES, curvature="identity").values
    short = source([TrainingSegment(last, 1e-9, 1)], QUERIES, curvature="fisher")
    np.testing.assert_allclose(short.values, 1e-9 * plain, rtol=1e-6)
    several = [
        TrainingSegment([each], rate, 3) for each, rate in zip(CHECKPOINTS, (1, 2, 3), strict=True)
    ]
    traced = sum(
        3 * rate * attribute(each, QUERIES, curvature="identity").values
        for each, rate in zip(CHECKPOINTS, (1, 2, 3), strict=True)
    )
    np.testing.assert_allclose(source(several, QUERIES, curvature="identity").values, traced)


def test_one_step_segments_are_the_derivative_of_training():
    """Gradient descent on least squares, with central differences of the weight of an example."""
    x, y = RNG.normal(size=(N, D)), RNG.normal(size=N)
    asked, answers = RNG.normal(size=(Q, D)), RNG.normal(size=Q)
    rate, steps = 0.005, 60

    def path(weights):
        w, found = np.zeros(D), [np.zeros(D)]
        for _ in range(steps):
            w = w - rate * 2 * x.T @ (weights * (x @ w - y)) / N
            found.append(w)
        return found

    def losses(weights):
        return (asked @ path(weights)[-1] - answers) ** 2

    wanted = np.empty((Q, N))
    for i in range(N):
        little = 1e-5 * np.eye(N)[i]
        wanted[:, i] = -N * (losses(1 + little) - losses(1 - little)) / 2e-5
    trained = path(np.ones(N))
    curvature = Curvature("hessian", {}, Joint(2 * x.T @ x / N, {"w": (D,)}))
    segments = [
        TrainingSegment([{"w": 2 * (x @ w - y)[:, None] * x}], rate, 1, curvature=curvature)
        for w in trained[:-1]
    ]
    queries = {"w": 2 * (asked @ trained[-1] - answers)[:, None] * asked}
    found = source(segments, queries).values
    np.testing.assert_allclose(found, wanted, rtol=0, atol=0.02 * abs(wanted).max())
    few = [
        TrainingSegment([{"w": 2 * (x @ w - y)[:, None] * x}], rate, 20, curvature=curvature)
        for w in trained[10::20]
    ]
    assert np.corrcoef(source(few, queries).values.ravel(), wanted.ravel())[0, 1] > 0.99


@pytest.mark.parametrize("kind", ["kfac", "ekfac"])
def test_kronecker_factors_are_means_over_checkpoints(tmp_path, kind):
    """Two states of a model, from its runs on disk."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3).double()
    x, y = torch.randn(9, 4).double(), torch.randint(3, (9,))
    runs = []
    for number in range(2):
        if number:
            with torch.no_grad():
                model.weight.add_(torch.randn(3, 4))
        run = sawlog.init(project=f"run-{number}", root=tmp_path)
        run.setup(dtype="float64", precision="float64", statistic="kfac")
        run.watch(model, quiet=True)
        with run(data_id=np.arange(9)):
            F.cross_entropy(model(x), y).backward()
        run.finalize()
        runs.append(run)
    runs[1].eval()
    with runs[1](data_id=["q"]):
        F.cross_entropy(model(x[:1]), y[:1]).backward()
    queries = runs[1].get_log()
    stores = [run.store_path for run in runs]
    found = source([TrainingSegment(stores, 0.5, 4)], queries, curvature=kind)
    rows = [rows_of(run)["weight"] for run in runs]
    own = [run.statistics.kfac("weight") for run in runs]
    assert not np.allclose(own[0][0], own[1][0], rtol=0.1)
    factors = [np.mean(each, 0) for each in zip(*own, strict=True)]
    matrix = hessian(kind, np.concatenate(rows), factors)
    flat = [{"w": own.reshape(9, -1)} for own in rows]
    asked = queries.whole().columns["weight"].rows().reshape(1, -1)
    wanted = dense([(flat, 0.5, 4, 0.0, matrix)], asked)
    np.testing.assert_allclose(found.values, wanted, rtol=1e-8)
    with pytest.raises(WeightsMismatchError):
        source([TrainingSegment(stores[:1], 0.5, 4)], queries)
    source([TrainingSegment(stores[:1], 0.5, 4)], queries, weights="any")


def test_examples_in_another_order():
    order = RNG.permutation(N)
    mixed = Logs({"w": CHECKPOINTS[0]["w"][order]}, ids=order)
    one = [TrainingSegment([mixed, CHECKPOINTS[1]], 0.1, 5)]
    other = [TrainingSegment(CHECKPOINTS[:2], 0.1, 5)]
    found, wanted = (source(each, QUERIES, curvature="fisher") for each in (one, other))
    np.testing.assert_allclose(found.values, wanted.values)


@pytest.mark.parametrize(
    ("segments", "options", "message"),
    [
        ([], {}, "at least one segment"),
        ([TrainingSegment([], 0.1, 1)], {}, "at least one segment"),
        ([TrainingSegment(CHECKPOINTS, 0.1, 0)], {}, "`steps` must be a positive integer"),
        ([TrainingSegment(CHECKPOINTS, -0.1, 1)], {}, "`learning_rate` must be"),
        ([TrainingSegment(CHECKPOINTS, {"v": 0.1}, 1)], {}, "no number for the layers w"),
        ([TrainingSegment(CHECKPOINTS, 0.1, 1)], {"curvature": "hessian"}, "must be one of"),
        ([TrainingSegment(CHECKPOINTS, 0.1, 1)], {"curvature": "kfac"}, "needs the covariances"),
        (
            [TrainingSegment([{"w": np.ones((N - 1, D))}, CHECKPOINTS[0]], 0.1, 1)],
            {"curvature": "fisher"},
            "logs of the same examples; they differ in 11",
        ),
    ],
)
def test_refused(segments, options, message):
    with pytest.raises(ArgumentError, match=message):
        source(segments, QUERIES, **{"curvature": "fisher", **options})


# ---- several runs in one call


def test_an_ensemble_of_runs_has_standard_errors():
    pairs = [(each, {"w": RNG.normal(size=(Q, D))}) for each in CHECKPOINTS]
    each = np.stack([attribute(*pair, curvature="fisher").values for pair in pairs])
    found = attribute(ensemble=pairs, curvature="fisher")
    more = attribute(*pairs[0], ensemble=pairs[1:], curvature="fisher")
    for scores in (found, more):
        np.testing.assert_allclose(scores.values, each.mean(0))
        np.testing.assert_allclose(scores.standard_errors, each.std(0, ddof=1) / np.sqrt(3))
        assert scores.about["ensemble"] == 3
        reach = stats.t.ppf(0.95, 2) * scores.standard_errors  # two degrees of freedom, not many
        np.testing.assert_allclose(scores.interval(0.9)[1] - scores.values, reach, rtol=1e-6)
    best = attribute(ensemble=pairs, curvature="fisher", top_k=2)
    np.testing.assert_allclose(best.interval(0.9)[0], found.top(2).interval(0.9)[0])
    np.testing.assert_allclose(best.values, found.top(2).values)
    assert best.standard_errors.shape == (Q, 2)
    assert attribute(ensemble=pairs[:1], curvature="fisher").standard_errors is None
    kept = influence.ensemble([attribute(*p, curvature="fisher") for p in pairs], keep=True)
    np.testing.assert_allclose(kept.members, each)
    sums = each[:, :, [0, 2]].sum(2)
    group = kept.of_groups({"g": [0, 2]})
    np.testing.assert_allclose(group.standard_errors[:, 0], sums.std(0, ddof=1) / np.sqrt(3))


def test_runs_whose_last_queries_are_used():
    calls = []

    class Run:
        store_path = CHECKPOINTS[0]

        def get_log(self):
            calls.append("get_log")
            return Logs(QUERIES)

        def finalize(self):
            calls.append("finalize")

    found = attribute(ensemble=[Run(), Run()], curvature="fisher")
    wanted = attribute(CHECKPOINTS[0], QUERIES, curvature="fisher")
    np.testing.assert_allclose(found.values, wanted.values)
    assert not found.standard_errors.any()
    assert calls == ["get_log", "finalize"] * 2


def test_ensembles_that_are_refused():
    with pytest.raises(ArgumentError, match=r"takes pairs \(train, queries\)"):
        attribute(ensemble=[CHECKPOINTS[0]])
    with pytest.raises(ArgumentError, match=r"Hint: attribute\(train, queries\)"):
        attribute()


def test_one_matrix_over_all_layers_needs_one_learning_rate():
    random = np.random.default_rng(3)
    shapes = {"a": (2,), "b": (3,)}
    rows, queries = ({n: random.normal(size=(k, *s)) for n, s in shapes.items()} for k in (6, 2))
    joint = Curvature("joint", {}, Joint(np.diag([0.2, 0.4, 0.6, 0.8, 1.0]), shapes))
    part = lambda rate: [TrainingSegment([rows], rate, 5, curvature=joint)]
    same = source(part({"a": 0.1, "b": 0.1}), queries)
    np.testing.assert_allclose(same.values, source(part(0.1), queries).values)
    with pytest.raises(ArgumentError, match="one learning rate for all layers"):
        source(part({"a": 0.1, "b": 0.2}), queries)
