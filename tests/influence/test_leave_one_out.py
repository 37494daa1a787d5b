"""Influence against the truth: a convex model that is trained again without each example."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from sawlog.curvature import Curvature, FullMatrix
from sawlog.influence import attribute

CLASSES, FEATURES, EXAMPLES, QUERIES, PENALTY = 3, 6, 150, 12, 0.01


def probabilities(weight, x):
    logits = x @ weight.T
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def gradients(weight, x, y):
    """Of the loss of each example, ``[n, classes, features]``."""
    return (probabilities(weight, x) - np.eye(CLASSES)[y])[:, :, None] * x[:, None, :]


def losses(weight, x, y):
    return -np.log(probabilities(weight, x)[np.arange(len(y)), y])


def hessian(weight, x, counts):
    """Of the weighted mean loss with its penalty, over the elements of the weight."""
    p = probabilities(weight, x)
    outputs = p[:, :, None] * np.eye(CLASSES) - p[:, :, None] * p[:, None, :]
    whole = np.einsum("n,nab,ni,nj->aibj", counts, outputs, x, x, optimize=True) / EXAMPLES
    size = CLASSES * FEATURES
    return whole.reshape(size, size) + PENALTY * np.eye(size)


def trained(x, y, counts, weight=None):
    """The weight where the mean loss with its penalty is least, by Newton's method.

    ``counts`` says how much of each example there is; the mean is that over all there were.
    """
    weight = np.zeros((CLASSES, FEATURES)) if weight is None else weight
    for _ in range(50):
        own = gradients(weight, x, y)
        slope = np.einsum("n,nai->ai", counts, own) / EXAMPLES + PENALTY * weight
        step = np.linalg.solve(hessian(weight, x, counts), slope.ravel()).reshape(weight.shape)
        weight = weight - step
        if np.abs(step).max() < 1e-12:
            return weight
    raise AssertionError("Newton's method did not arrive")


@pytest.fixture(scope="module")
def truth():
    random = np.random.default_rng(0)
    centers = random.normal(size=(CLASSES, FEATURES))
    y = random.integers(0, CLASSES, EXAMPLES + QUERIES)
    x = centers[y] + 1.5 * random.normal(size=(len(y), FEATURES))
    y = np.where(random.random(len(y)) < 0.1, random.integers(0, CLASSES, len(y)), y)
    (x, qx), (y, qy) = (np.split(each, [EXAMPLES]) for each in (x, y))
    weight = trained(x, y, np.ones(EXAMPLES))
    exact = FullMatrix.of(hessian(weight, x, np.ones(EXAMPLES)), weight.shape)
    scores = attribute(
        {"weight": gradients(weight, x, y)},
        {"weight": gradients(weight, qx, qy)},
        curvature=Curvature("exact", {"weight": exact}),
        damping=0.0,
    )

    def grown(*left_out, share=1.0):
        """By how much the losses of the queries grow without (a share of) some examples."""
        counts = 1 - share * np.isin(np.arange(EXAMPLES), left_out)
        return losses(trained(x, y, counts, weight), qx, qy) - losses(weight, qx, qy)

    return scores, grown


def test_scores_are_what_leaving_an_example_out_does(truth):
    scores, grown = truth
    true = np.stack([grown(each) for each in range(EXAMPLES)], 1)
    ranks = [spearmanr(*pair).statistic for pair in zip(scores.values, true, strict=True)]
    assert len(ranks) == QUERIES
    assert min(ranks) > 0.99
    assert np.mean(ranks) > 0.995


def test_scores_over_the_number_of_examples_are_the_growth_of_the_loss(truth):
    """To first order, and so for a small share of an example: a whole one takes its own part of
    the curvature with it.
    """
    scores, grown = truth
    share = 1e-4
    some = range(0, EXAMPLES, 10)
    slopes = np.stack([grown(each, share=share) / share for each in some], 1)
    expected = scores.values[:, some] / EXAMPLES
    np.testing.assert_allclose(slopes, expected, rtol=2e-3, atol=1e-3 * np.abs(expected).max())


def test_the_most_harmful_examples_do_harm(truth):
    """Leaving out the best makes each query worse, leaving out the worst makes it better."""
    scores, grown = truth
    for sign, direction in (("positive", 1), ("negative", -1)):
        best = scores.top(5, sign).ids
        assert best.shape == (QUERIES, 5)
        for query, ids in enumerate(best):
            assert direction * grown(*ids)[query] > 0
