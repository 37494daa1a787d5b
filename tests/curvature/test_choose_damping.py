"""Damping that is chosen on gradients which were held out."""

import numpy as np
import pytest

from sawlog.curvature import IDENTITY, Curvature, Diagonal, FullMatrix, choose_damping, fit
from sawlog.errors import ArgumentError


def drawn(n, seed, dimensions=30):
    """Normal gradients with a known covariance of many sizes."""
    random = np.random.default_rng(seed)
    deviations = np.logspace(0, -2, dimensions)
    turn = np.linalg.qr(np.random.default_rng(99).normal(size=(dimensions, dimensions)))[0]
    return random.normal(size=(n, dimensions)) * deviations @ turn


def fisher(rows):
    return fit("fisher", lambda: iter([{"w": rows}]))


def log_density(rows, covariance):
    """The mean logarithm of the density of a normal distribution, as in a book."""
    _, logdet = np.linalg.slogdet(covariance)
    squares = np.einsum("ni,ij,nj->n", rows, np.linalg.inv(covariance), rows)
    return -0.5 * (len(covariance) * np.log(2 * np.pi) + logdet + squares.mean())


@pytest.mark.parametrize("n", [10, 60, 2000])
def test_it_is_the_likeliest(n):
    rows, held_out = drawn(n, 0), drawn(500, 1)
    curvature = fisher(rows)
    chosen = choose_damping(curvature, {"w": held_out})["w"]
    moment = rows.T @ rows / n
    mean = np.trace(moment) / len(moment)

    def likelihood(added):
        return log_density(held_out, moment + added * np.eye(len(moment)))

    brute = max(mean * np.logspace(-6, 2, 241), key=likelihood)
    assert chosen == pytest.approx(brute, rel=0.13)  # half a step of the rule
    step = 10**0.1
    assert likelihood(chosen) >= max(likelihood(chosen * step), likelihood(chosen / step))


def test_the_fewer_samples_the_more_damping():
    held_out = drawn(500, 1)
    chosen = [choose_damping(fisher(drawn(n, 0)), {"w": held_out})["w"] for n in (10, 100, 10_000)]
    assert chosen[0] > 10 * chosen[1] > 10 * chosen[2]
    smallest = np.logspace(0, -2, 30)[-1] ** 2
    assert chosen[2] < 0.1 * smallest


def test_it_brings_the_curvature_nearer_to_the_truth():
    """Scores with the chosen damping are nearer to those with the true covariance."""
    rows, held_out, queries = drawn(40, 0), drawn(200, 1), drawn(20, 2)
    truth = Curvature("exact", {"w": FullMatrix.of(np.cov(drawn(200_000, 3).T), (30,))})
    curvature = fisher(rows)
    wanted = queries @ truth.solve("w", held_out, 0.0).T

    def alike(damping):
        found = queries @ curvature.solve("w", held_out, damping).T
        return np.corrcoef(found.ravel(), wanted.ravel())[0, 1]

    chosen = choose_damping(curvature, {"w": held_out})
    assert alike(chosen) > max(alike(0.0), alike(100.0)) + 0.1


def test_every_layer_has_its_own():
    layers = {"a": Diagonal(np.ones(3)), "b": Diagonal(np.full(3, 1e-6))}
    rows = np.random.default_rng(0).normal(size=(400, 3))
    chosen = choose_damping(Curvature("diagonal", layers), {"a": rows, "b": rows * 2e-3})
    assert set(chosen) == {"a", "b"}
    assert chosen["a"] < 0.1
    assert chosen["b"] == pytest.approx(3e-6, rel=0.3)


def test_a_curvature_of_nothing():
    curvature = Curvature("diagonal", {"w": Diagonal(np.zeros(2))})
    chosen = choose_damping(curvature, {"w": np.array([[1.0, 2.0], [1.0, 0.0]])})
    assert chosen == {"w": 1.5}
    few = Curvature("fisher", {"w": FullMatrix(np.zeros(1), np.eye(4)[:, :1], (4,))})
    assert choose_damping(few, {"w": np.array([[1.0, 2.0, 0, 1], [1.0, 0, 5, 0]])}) == {"w": 4.0}


def test_what_cannot_be_chosen():
    curvature = Curvature("diagonal", {"w": Diagonal(np.ones(2))})
    with pytest.raises(ArgumentError, match="identity needs no damping"):
        choose_damping(IDENTITY, {"w": np.ones((1, 2))})
    for nothing in ({}, {"w": np.zeros((0, 2))}):
        with pytest.raises(ArgumentError, match="no held-out gradients of the layer 'w'"):
            choose_damping(curvature, nothing)
    with pytest.raises(ArgumentError, match="infinite or NaN"):
        choose_damping(curvature, {"w": np.array([[1.0, np.nan]])})
    with pytest.raises(ArgumentError, match=r"these have \[3\]"):
        choose_damping(curvature, {"w": np.ones((1, 3))})
