"""Entries that were never logged are removed, whichever function reads the logs first."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import sawlog
from sawlog import errors


def program(x):
    def body(c, i):
        sawlog.log({"x": c + i}, where=i % 3 == 0, step=i)
        sawlog.log({"never": c}, where=i > 10)
        return c, None

    return jax.lax.scan(body, x, jnp.arange(7))[0]


EXPECTED = np.array([1.0, 4.0, 7.0], np.float32)
STEPS = np.array([0, 3, 6])


@pytest.fixture(scope="module")
def spooled():
    return sawlog.spool(program)


@pytest.fixture
def logs(spooled):
    """Return logs with gaps that nothing has read yet."""
    found = spooled(1.0)[1]
    assert dict.__len__(found) == 2, "somebody has looked"
    return found


def _stack(logs):
    return jnp.stack(jax.tree.leaves(logs))


def _summed(logs):
    return jax.lax.scan(lambda c, one: (c + one["x"], one["x"] * 2), 0.0, logs)


#: What is done to fresh logs, and what must come of it.
LOOKS = {
    "map": (lambda logs: jax.tree.map(lambda x: x * 2, logs)["x"], EXPECTED * 2),
    "map mean": (lambda logs: jax.tree.map(jnp.mean, logs)["x"], np.float32(4)),
    "map max": (lambda logs: jax.tree.map(jnp.max, logs).step["x"], 6),
    "map astype": (
        lambda logs: jax.tree.map(lambda x: x.astype(jnp.float16), logs)["x"],
        EXPECTED.astype(np.float16),
    ),
    "map of two": (lambda logs: jax.tree.map(jnp.add, logs, logs)["x"], EXPECTED * 2),
    "map with paths": (
        lambda logs: jax.tree_util.tree_map_with_path(lambda p, x: len(x), logs)["x"],
        3,
    ),
    "leaves": (lambda logs: jax.tree.leaves(logs), [EXPECTED, STEPS]),
    "leaves with paths": (
        lambda logs: [x for _, x in jax.tree_util.tree_leaves_with_path(logs)],
        [EXPECTED, STEPS],
    ),
    "in a tuple": (lambda logs: jax.tree.leaves((1.0, {"l": logs})), [1.0, EXPECTED, STEPS]),
    "structure": (lambda logs: jax.tree.structure(logs).num_leaves, 2),
    "reduce": (
        lambda logs: jax.tree.reduce(lambda n, x: n + x.size, logs, 0),
        6,
    ),
    "stack": (_stack, np.stack([EXPECTED, STEPS])),
    "ravel": (lambda logs: ravel_pytree(logs)[0], np.concatenate([EXPECTED, STEPS])),
    "block": (lambda logs: jax.tree.leaves(jax.block_until_ready(logs)), [EXPECTED, STEPS]),
    "get": (lambda logs: list(dict.values(jax.device_get(logs))), [EXPECTED]),
    "put": (lambda logs: list(dict.values(jax.device_put(logs))), [EXPECTED]),
    "jit": (lambda logs: jax.jit(lambda logs: logs["x"].sum())(logs), np.float32(12)),
    "jit, not looked at": (lambda logs: jax.jit(lambda logs: logs)(logs)["x"], EXPECTED),
    "jit, all leaves": (lambda logs: jax.jit(jax.tree.leaves)(logs), [EXPECTED, STEPS]),
    "lower": (
        lambda logs: jax.jit(lambda logs: logs["x"].sum()).lower(logs).compile()(logs),
        np.float32(12),
    ),
    "eval_shape": (lambda logs: jax.eval_shape(lambda logs: logs["x"], logs).shape, (3,)),
    "vmap": (lambda logs: jax.vmap(lambda one: one["x"] * 2)(logs), EXPECTED * 2),
    "grad": (
        lambda logs: jax.grad(lambda one: (one["x"] ** 2).sum(), allow_int=True)(logs)["x"],
        EXPECTED * 2,
    ),
    "cond": (
        lambda logs: jax.lax.cond(True, lambda one: one["x"].sum(), lambda one: 0.0, logs),
        np.float32(12),
    ),
    "fori_loop": (
        lambda logs: jax.lax.fori_loop(
            0, 2, lambda i, one: jax.tree.map(lambda x: x + 1, one), logs
        )["x"],
        EXPECTED + 2,
    ),
    "lax.map": (lambda logs: jax.lax.map(lambda one: one["x"] * 2, logs), EXPECTED * 2),
    "checkpoint": (lambda logs: jax.checkpoint(lambda one: one["x"] * 2)(logs), EXPECTED * 2),
    "scan": (_summed, (np.float32(12), EXPECTED * 2)),
    "spool": (lambda logs: sawlog.spool(lambda logs: logs["x"].sum())(logs)[0], np.float32(12)),
    "spool, static": (
        lambda logs: sawlog.spool(lambda text, logs: logs["x"].sum())("a", logs)[0],
        np.float32(12),
    ),
    "closed over": (lambda logs: jax.jit(lambda: logs["x"].sum())(), np.float32(12)),
    "closed over, mapped": (
        lambda logs: jax.jit(lambda: jax.tree.map(jnp.sum, logs)["x"])(),
        np.float32(12),
    ),
    "added": (lambda logs: jax.tree.leaves(logs + logs)[0], np.tile(EXPECTED, 2)),
}


@pytest.mark.parametrize("name", LOOKS)
def test_fresh_logs_are_those_that_were_logged(name, logs) -> None:
    look, expected = LOOKS[name]
    found = look(logs)
    jax.tree.map(np.testing.assert_array_equal, list(jax.tree.leaves(found)), _leaves(expected))
    assert list(logs) == ["x"]
    np.testing.assert_array_equal(logs["x"], EXPECTED)


def _leaves(expected):
    return list(jax.tree.leaves(expected))


def test_what_is_traced_does_not_get_into_logs_of_outside(spooled) -> None:
    one, two = spooled(1.0)[1], spooled(1.0)[1]
    total = one + two
    assert jax.jit(lambda: total["x"].sum() + one["x"].sum())() == 36
    np.testing.assert_array_equal(total["x"], np.tile(EXPECTED, 2))
    np.testing.assert_array_equal(one.step["x"], STEPS)


def test_programs_that_return_logs_do_not_look(spooled) -> None:
    """Returning logs waits for nothing: no output is read."""
    jitted = jax.jit(lambda x: (sawlog.spool(program)(x), x))
    for logs in (
        spooled(1.0)[1],
        spooled(1.0)[1],
        jitted(1.0)[0][1],
        jitted(1.0)[0][1],
        jax.value_and_grad(lambda x: sawlog.spool(program)(x), has_aux=True)(1.0)[0][1],
        jax.jvp(spooled, (1.0,), (1.0,))[0][1],
        jax.vjp(spooled, 1.0)[0][1],
        jax.jit(spooled).lower(1.0).compile()(1.0)[1],
    ):
        assert logs._pending
        assert dict.__len__(logs) == 2
        np.testing.assert_array_equal(logs["x"], EXPECTED)


def test_loops_without_jit_stack_the_logs_of_their_turns() -> None:
    spooled = sawlog.spool(lambda x: sawlog.log({"x": x}, where=x > 0) and None)
    with jax.disable_jit():
        _, logs = jax.lax.scan(lambda c, x: (c, spooled(x)[1]), 0.0, jnp.arange(2.0))
    np.testing.assert_array_equal(logs["x"], [0, 1])
    np.testing.assert_array_equal(logs.mask["x"], [False, True])


def test_derivatives_of_logs_with_gaps_are_refused(spooled) -> None:
    _, tangents = jax.jvp(lambda x: spooled(x)[1], (1.0,), (1.0,))
    with pytest.raises(errors.LogMismatchError, match=r"derivatives of logs.*'x'.*Hint"):
        tangents["x"]
    read = jax.jvp(lambda x: spooled(x)[1].reduce("sum")["x"], (1.0,), (1.0,))[1]
    assert float(read) == 3
