"""Where rules say that examples are after lookups by an index, known or not."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.jax.capture.test_axis_rules import FOLLOWED, MIXED, E, batched, check

BEYOND = np.array([3, 4, 5])  # all of them are the last example
PAIRS = np.array([[0, 1], [1, 2]])
BEYOND_THE_END = {
    "beyond the end": ([[E, 4]], [0], lambda x: x.at[BEYOND].get(mode="clip"), MIXED),
    "some beyond the end": ([[E, 4]], [0], lambda x: x.at[BEYOND[:2]].get(mode="clip"), MIXED),
    "pairs of examples": ([[E, 4]], [0], lambda x: x[PAIRS], MIXED),
    "other rows than columns": (
        [[E, 4], [4, E]],
        [0, 1],
        lambda x, y: jnp.zeros((9, E)).at[lax.convert_element_type(x[:, 0], int)].add(y[:E]),
        MIXED,
    ),
    "rows with columns": ([[E, E], [E, E]], [0, 1], lambda x, y: x.at[:2].add(y[:2]), MIXED),
}


@pytest.mark.parametrize("name", BEYOND_THE_END)
def test_rows_that_are_not_those_of_one_example(name):
    shapes, axes, fun, wanted = BEYOND_THE_END[name]
    check(fun, shapes, axes, wanted)


LOOKUPS = {
    "of a table": ([[E, 2]], [0], lambda i: jnp.arange(40.0).reshape(10, 4)[i], FOLLOWED),
    "of a column": ([[2, E]], [1], lambda i: jnp.arange(40.0).reshape(4, 10)[:, i], FOLLOWED),
    "of its own": (
        [[E, 10], [E, 2]],
        [0, 0],
        batched(lambda x, i: jnp.sin(x)[i], 0, 0),
        FOLLOWED,
    ),
    "of its own row and of all columns": (
        [[E, 10], [2, E]],
        [0, 1],
        lambda x, i: jnp.sin(x)[:, i],
        MIXED,
    ),
    "of all": ([[E, 10], [E]], [0, 0], lambda x, i: jnp.sin(x)[:, i], MIXED),
    "of another": ([[10, 4], [E]], [None, 0], lambda x, i: jnp.sin(x)[i], FOLLOWED),
    "of what is known in part": (
        [[E, 4], [E]],
        [0, None],
        lambda x, i: jnp.sin(x)[jnp.concatenate([np.array([0, 1]), i[:1] % E])],
        MIXED,
    ),
    "of columns with examples": (
        [[E, 2], [E, 2, E]],
        [0, 2],
        batched(lambda i, y: jnp.zeros((10, E)).at[i].add(y), 0, 0),
        MIXED,
    ),
    "of rows with examples": (
        [[E, 2], [E, 2, E]],
        [0, 0],
        batched(lambda i, y: jnp.zeros((10, E)).at[i].add(y), 0, 0),
        FOLLOWED,
    ),
    "of others than are known": (
        [[E, 4], [E]],
        [0, None],
        lambda x, i: jnp.sin(x)[jnp.concatenate([np.array([1, 2]), i[:1] % E])],
        MIXED,
    ),
    "of what is not known": ([[E, 4], [E]], [0, None], lambda x, i: jnp.sin(x)[i % E], MIXED),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_lookups(name):
    shapes, axes, fun, wanted = LOOKUPS[name]
    check(fun, shapes, axes, wanted, integers=10)
