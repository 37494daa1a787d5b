"""Scores of logged models against dense influence ``g^T (H + dI)^-1 g'``, to 1e-8."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sawlog
from sawlog.curvature import KINDS, Relative, Sampled, Typical
from sawlog.influence import attribute, self_influence
from tests.influence import dense
from tests.influence.dense import close
from tests.torch.programs import Program, mlp, picture


class Words(nn.Module):
    """An embedding, whose factor is a diagonal; a norm, whose gradients are vectors."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.norm = nn.LayerNorm(3)
        self.head = nn.Linear(3, 4)

    def forward(self, x):
        return self.head(self.norm(self.embed(x)))


def words(size=9):
    torch.manual_seed(3)
    x, y = torch.randint(0, 5, (size, 2)), torch.randint(0, 4, (size, 2))
    x[0] = torch.tensor([0, 1])
    x[1] = torch.tensor([2, 3])
    x[2] = 4

    def loss(model, x, y):
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")

    return Program(Words().double(), (x, y), loss)


MODELS = {
    "mlp": lambda: mlp(size=8),
    "grouped conv": lambda: picture(size=5),
    "embedding": words,
}
DAMPINGS = {"absolute": 1e-3, "relative": Relative(0.3), "default": None}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One run of each model, with its rows, queries of other inputs, and factors."""
    made = {}

    def of(name):
        if name not in made:
            root = tmp_path_factory.mktemp("runs")
            run = dense.logged(root, MODELS[name]())
            rows = dense.rows_of(run)
            random = np.random.default_rng(0)
            queries = {n: random.normal(size=(3, *g.shape[1:])) for n, g in rows.items()}
            made[name] = run.store_path, run.statistics.kfac, rows, queries
        return made[name]

    return of


@pytest.mark.parametrize("damping", DAMPINGS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_dot_products(runs, model, kind, damping):
    logs, factors, rows, queries = runs(model)
    damping = DAMPINGS[damping]
    expected = dense.influence(kind, rows, queries, damping, factors)
    scores = attribute(logs, queries, curvature=kind, damping=damping, per_layer=True)
    assert set(scores.layers) == set(rows)
    for name, values in expected.items():
        close(scores.layers[name], values, err_msg=name)
    close(scores.values, sum(expected.values()))
    assert scores.ids.tolist() == list(range(len(next(iter(rows.values())))))
    assert scores.queries.tolist() == [0, 1, 2]


@pytest.mark.parametrize("mode", ["cosine", "l2"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_cosines_and_distances(runs, model, kind, mode):
    """Also without curvature, where LogIX divides by preconditioned lengths, and by one only."""
    logs, factors, rows, queries = runs(model)
    dots = sum(dense.influence(kind, rows, queries, 0.01, factors).values())
    theirs = sum(dense.influence(kind, rows, rows, 0.01, factors).values()).diagonal()
    lengths = sum(squared(kind, rows[n], queries[n], factors(n)) for n in rows)[:, None]
    expected = 2 * dots - lengths - theirs
    if mode == "cosine":
        expected = dots / np.sqrt(lengths * theirs)
    scores = attribute(logs, queries, curvature=kind, damping=0.01, mode=mode)
    close(scores.values, expected)
    assert scores.about["mode"] == mode


def squared(kind, rows, queries, factors):
    """``q^T (H + d)^-1 q`` of one layer."""
    matrix = dense.hessian(kind, rows, factors)
    damped = matrix + (kind != "identity") * 0.01 * np.eye(len(matrix))
    flat = queries.reshape(len(queries), -1)
    return np.einsum("qi,ij,qj->q", flat, np.linalg.inv(damped), flat)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_self_influence(runs, model, kind):
    logs, factors, rows, _ = runs(model)
    expected = dense.influence(kind, rows, rows, None, factors)
    ranking = self_influence(logs, curvature=kind)
    assert set(ranking.layers) == set(rows)
    for name, values in expected.items():
        close(ranking.layers[name], values.diagonal(), err_msg=name)
    close(ranking.values, sum(expected.values()).diagonal())
    assert ranking.ids.tolist() == list(range(len(ranking)))


@pytest.mark.parametrize("kind", KINDS)
def test_dampings_one_after_the_other_are_those_of_each_alone(runs, kind):
    """LogIX adds damping to what it keeps, keeps the first inverse, and shares one damping."""
    logs, factors, rows, queries = runs("mlp")
    by_layer = {name: 0.001 * (i + 1) for i, name in enumerate(rows)}
    for damping in (0.5, None, 1e-3, by_layer, Relative(2), Typical(0.4), Sampled(2, 3), None, 0.5):
        expected = dense.influence(kind, rows, queries, damping, factors)
        for _ in range(2):
            scores = attribute(logs, queries, curvature=kind, damping=damping)
            close(scores.values, sum(expected.values()))
        if kind != "identity":
            used = scores.about["damping"]
            matrices = {n: dense.hessian(kind, g, factors(n)) for n, g in rows.items()}
            expected_used = {
                n: dense.added(damping, n, m, kind, len(rows[n])) for n, m in matrices.items()
            }
            assert used == pytest.approx(expected_used, rel=1e-9)


def test_calling_twice_gives_the_same_bits(runs):
    logs, _, _, queries = runs("mlp")
    first, second = (attribute(logs, queries, curvature="ekfac") for _ in range(2))
    np.testing.assert_array_equal(first.values, second.values)


def test_some_layers(runs):
    logs, factors, rows, queries = runs("mlp")
    chosen = {name: rows[name] for name in ("3.weight", "0.weight")}
    expected = dense.influence("ekfac", chosen, queries, None, factors)
    for names in (list(chosen), ["3.weight", "grad/0.weight", "3.weight"]):
        scores = attribute(logs, queries, names=names, per_layer=True)
        assert set(scores.layers) == set(chosen)
        close(scores.values, sum(expected.values()))
        cosines = attribute(logs, queries, names=names, mode="cosine", curvature="identity")
        both = [
            np.concatenate([x[n].reshape(len(x[n]), -1) for n in chosen], 1)
            for x in (queries, rows)
        ]
        q, g = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in both)
        close(cosines.values, q @ g.T)
    ranking = self_influence(logs, names=["0.weight"])
    one = dense.influence("ekfac", {"0.weight": rows["0.weight"]}, rows, None, factors)
    close(ranking.values, one["0.weight"].diagonal())


@pytest.mark.parametrize("compress", [2, {"rank": 2, "seed": 4, "kind": "gaussian"}])
@pytest.mark.parametrize("kind", KINDS)
def test_projected_gradients(tmp_path, kind, compress):
    run = dense.logged(tmp_path, mlp(size=8), compress=compress)
    rows = dense.rows_of(run)
    assert rows["0.weight"].shape == (8, 2, 2)
    expected = dense.influence(kind, rows, rows, 1e-3, run.statistics.kfac)
    close(
        attribute(run.store_path, run.store_path, curvature=kind, damping=1e-3).values,
        sum(expected.values()),
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
@pytest.mark.parametrize("kind", ["kfac", "ekfac", "fisher"])
def test_runs_as_they_are_by_default(tmp_path, kind, dtype):
    """Of what is stored, to the precision of float32, with the damping of the default."""
    program = mlp(size=8)
    run = sawlog.init(project="run", root=tmp_path)
    run.setup(statistic="kfac", dtype=dtype)
    run.watch(program.model, quiet=True)
    with run(data_id=[f"example {i}" for i in range(8)]):
        program.of().backward()
    run.finalize()
    rows = dense.rows_of(run)
    expected = dense.influence(kind, rows, rows, None, run.statistics.kfac)
    scores = attribute(run.store_path, run.store_path, curvature=kind, per_layer=True)
    assert scores.ids.tolist() == scores.queries.tolist() == [f"example {i}" for i in range(8)]
    assert set(scores.layers) == set(rows)
    for name, values in expected.items():
        close(scores.layers[name], values, rtol=1e-5, err_msg=name)
    best = attribute(run.store_path, run.store_path, curvature=kind, top_k=1)
    order = sum(expected.values()).argmax(1)
    assert best.ids[:, 0].tolist() == [f"example {i}" for i in order]
