"""Ridge regression with noise: training that takes microseconds, and its exact influence."""

import numpy as np

from sawlog.influence import Scores

N, Q, D = 40, 5, 3
RNG = np.random.default_rng(3)
X, W = RNG.normal(size=(N, D)), np.array([1.0, -2.0, 0.5])
Y = X @ W + 0.5 * RNG.normal(size=N)
ASKED = RNG.normal(size=(Q, D))
ANSWERS = ASKED @ W + np.where(np.arange(Q) % 2, 2.0, -2.0)  # losses far from their minimum
QUERIES = np.array([f"q{i}" for i in range(Q)])
RIDGE = 0.1


def weights(ids, seed=None, noise=0.1):
    """The weights after training on some rows; a seed shifts the targets at random."""
    own = X[ids]
    pushed = 0.0 if seed is None else noise * np.random.default_rng(seed).normal(size=D)
    return np.linalg.solve(own.T @ own + RIDGE * np.eye(D), own.T @ Y[ids] + pushed)


def losses(model):
    return (ASKED @ model - ANSWERS) ** 2


def train(ids, seed):
    return losses(weights(ids, seed))


def influence():
    """The exact first-order influence, ``[Q, N]``: positive where an example helps."""
    w = weights(np.arange(N))
    gradients = 2 * (X @ w - Y)[:, None] * X
    asked = 2 * (ASKED @ w - ANSWERS)[:, None] * ASKED
    hessian = 2 * (X.T @ X + RIDGE * np.eye(D)) / N
    return asked @ np.linalg.solve(hessian, gradients.T)


def exact_scores(**about):
    """The exact influence as scores of influence functions."""
    values = influence()
    return Scores(QUERIES, np.arange(N), values, about={"mode": "dot", "curvature": "x", **about})
