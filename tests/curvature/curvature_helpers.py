"""Rows with known curvature, and dense matrices by hand."""

import numpy as np

from sawlog.curvature import (
    KINDS,
    fit,
)
from sawlog.errors import UnknownNameError


class Factored:
    """The factors of gradients that are outer products."""

    def __init__(self, factors):
        self.factors = factors

    def kfac(self, block):
        if block not in self.factors:
            raise UnknownNameError(f"K-FAC of {block!r} was not measured.")
        return self.factors[block]

    def ekfac(self, block):
        raise AssertionError("eigenvalues are corrected on the rows themselves")


def moments(rows):
    """Two factors that are not those of the rows, but of their size."""
    left = (rows @ np.swapaxes(rows, -1, -2)).mean(0)
    right = (np.swapaxes(rows, -1, -2) @ rows).mean(0)
    return left, right


def fitted(kind, rows, blocks=1):
    """A curvature fitted to an array, which comes in so many blocks."""
    parts = np.array_split(rows, blocks)
    return fit(kind, lambda: iter({"w": part} for part in parts), Factored({"w": moments(rows)}))


def dense(layer):
    """The matrix of a layer."""
    size = int(np.prod(layer.row_shape()))
    unit = np.eye(size).reshape(size, *layer.row_shape())
    return layer.back(layer.into(unit) * layer.values).reshape(size, size)


def random_rows(n, *shape, seed=0):
    return np.random.default_rng(seed).normal(size=(n, *shape))


FITTED = [kind for kind in KINDS if kind != "identity"]
