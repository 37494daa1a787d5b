"""Small models in numpy with the gradient of every example written out by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class CaptureCase:
    """A model with its data. Everything is in float64.

    Args:
        name: What it is.
        model: The loss of each example, as a formula.
        weights: The parameters by name. ``fc.weight`` is ``[out, in]``, as in PyTorch.
        inputs: ``[examples, ...]``; integers are rows of a table.
        targets: ``[examples, ...]``.
        gradients: The gradient of each example for each parameter, ``[examples, *shape]``.
        losses: The loss of each example.
    """

    name: str
    model: str
    weights: Arrays
    inputs: np.ndarray
    targets: np.ndarray
    gradients: Arrays
    losses: np.ndarray

    def matrix(self) -> np.ndarray:
        """Return the gradients of all parameters side by side, ``[examples, parameters]``."""
        parts = [self.gradients[name].reshape(len(self.inputs), -1) for name in self.weights]
        return np.concatenate(parts, axis=1)


def linear(seed: int = 0) -> CaptureCase:
    """Return a linear layer with a bias."""
    rng = np.random.default_rng(seed)
    weight, bias = rng.normal(size=(3, 4)), rng.normal(size=3)
    x, y = rng.normal(size=(6, 4)), rng.normal(size=(6, 3))
    error = x @ weight.T + bias - y
    gradients = {"fc.weight": 2 * error[:, :, None] * x[:, None, :], "fc.bias": 2 * error}
    weights = {"fc.weight": weight, "fc.bias": bias}
    model = "sum((fc(x) - y) ** 2)"
    return CaptureCase("linear", model, weights, x, y, gradients, (error**2).sum(1))


def mlp(seed: int = 0) -> CaptureCase:
    """Two layers with a tanh between them."""
    rng = np.random.default_rng(seed)
    w1, b1 = rng.normal(size=(5, 4)), rng.normal(size=5)
    w2, b2 = rng.normal(size=(2, 5)), rng.normal(size=2)
    x, y = rng.normal(size=(6, 4)), rng.normal(size=(6, 2))
    hidden = np.tanh(x @ w1.T + b1)
    error = hidden @ w2.T + b2 - y
    back = (2 * error @ w2) * (1 - hidden**2)
    gradients = {
        "fc1.weight": back[:, :, None] * x[:, None, :],
        "fc1.bias": back,
        "fc2.weight": 2 * error[:, :, None] * hidden[:, None, :],
        "fc2.bias": 2 * error,
    }
    weights = {"fc1.weight": w1, "fc1.bias": b1, "fc2.weight": w2, "fc2.bias": b2}
    model = "sum((fc2(tanh(fc1(x))) - y) ** 2)"
    return CaptureCase("mlp", model, weights, x, y, gradients, (error**2).sum(1))


def tokens(seed: int = 0) -> CaptureCase:
    """Return a linear layer on several positions of each example."""
    rng = np.random.default_rng(seed)
    weight, bias = rng.normal(size=(3, 4)), rng.normal(size=3)
    x, y = rng.normal(size=(6, 5, 4)), rng.normal(size=(6, 5, 3))
    error = x @ weight.T + bias - y
    gradients = {
        "fc.weight": 2 * np.einsum("bto,bti->boi", error, x),
        "fc.bias": 2 * error.sum(1),
    }
    weights = {"fc.weight": weight, "fc.bias": bias}
    model = "sum((fc(x) - y) ** 2) over positions and features"
    return CaptureCase("tokens", model, weights, x, y, gradients, (error**2).sum((1, 2)))


def embedding(seed: int = 0) -> CaptureCase:
    """Return a table of which rows are looked up, some of them twice, and a linear layer."""
    rng = np.random.default_rng(seed)
    table, head = rng.normal(size=(8, 3)), rng.normal(size=(2, 3))
    ids, y = rng.integers(0, 8, size=(6, 4)), rng.normal(size=(6, 2))
    ids[0] = [1, 1, 2, 1]
    mean = table[ids].mean(1)
    error = mean @ head.T - y
    back = 2 * error @ head / ids.shape[1]
    rows = np.zeros((6, 8, 3))
    for example, own in enumerate(ids):
        for row in own:
            rows[example, row] += back[example]
    gradients = {
        "table.weight": rows,
        "head.weight": 2 * error[:, :, None] * mean[:, None, :],
    }
    weights = {"table.weight": table, "head.weight": head}
    model = "sum((head(mean of table[x] over positions) - y) ** 2)"
    return CaptureCase("embedding", model, weights, ids, y, gradients, (error**2).sum(1))


def tied(seed: int = 0) -> CaptureCase:
    """One matrix that is used twice, the second time transposed."""
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(3, 4))
    x, y = rng.normal(size=(6, 4)), rng.normal(size=(6, 4))
    hidden = x @ weight.T
    error = hidden @ weight - y
    first = (2 * error @ weight.T)[:, :, None] * x[:, None, :]
    second = hidden[:, :, None] * 2 * error[:, None, :]
    gradients = {"fc.weight": first + second}
    weights = {"fc.weight": weight}
    model = "sum((fc(x) @ fc.weight - y) ** 2)"
    return CaptureCase("tied", model, weights, x, y, gradients, (error**2).sum(1))


#: The cases of :class:`sawlog.testing.CaptureContract`, by name.
CASES: dict[str, Callable[..., CaptureCase]] = {
    make.__name__: make for make in (linear, mlp, tokens, embedding, tied)
}
