"""Loops of equinox with logs: each lane as often as it runs, and the way forward once."""

from __future__ import annotations

import equinox.internal as eqxi
import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog

XS, COUNTS = np.float32([2, 3]), np.int32([1, 3])
REVERSIBLE = pytest.mark.parametrize("kind", ["bounded", "checkpointed"])
KINDS = pytest.mark.parametrize("kind", ["lax", "bounded", "checkpointed"])


def powers(kind, x, count, everywhere=False, **options):
    """x ** (count + 1), with a log in the loop, or with logs wherever one may stand."""

    def condition(state):
        if everywhere:
            sawlog.log("condition", state[0])
        return state[0] < count

    def body(state):
        i, value = state
        sawlog.log("value", value)
        if not everywhere:
            return i + 1, value * x
        jax.jit(lambda i: sawlog.log("i", i))(i)
        value = sawlog.log_cotangent("flows_back", value)
        lax.scan(lambda c, k: (c, sawlog.log("inner", c + k)), value, jnp.arange(2))
        return i + 1, value * x

    init = (jnp.int32(0), x)
    return eqxi.while_loop(condition, body, init, max_steps=5, kind=kind, **options)[1]


def counts(fun, *args):
    """How often each name was logged, for each lane."""
    logs = sawlog.spool(fun, reduce="count")(*args)[1]
    return {name: np.asarray(logs[name]).tolist() for name in logs}


def logged(logs, name):
    """The entries that are there, for one lane after the other."""
    values, mask = np.asarray(logs[name]), np.asarray(logs.mask[name])
    return [values[mask[:, i], i].tolist() for i in range(values.shape[1])]


@KINDS
def test_without_vmap(kind: str) -> None:
    _, logs = sawlog.spool(lambda x: powers(kind, x, 2, everywhere=True), capacity=32)(2.0)
    assert logs["value"].tolist() == [2, 4]
    assert logs["i"].tolist() == [0, 1]
    assert logs["inner"].tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize("kind", ["lax", "checkpointed"])
def test_the_condition_is_logged_as_in_a_loop_of_jax(kind: str) -> None:
    def fun(x, n):
        return powers(kind, x, n, everywhere=True)

    assert counts(fun, 2.0, 2)["condition"] == 3
    found = counts(jax.vmap(fun), XS, COUNTS)
    assert found["condition"] == [2, 4]


@KINDS
def test_vmap_inside_and_outside(kind: str) -> None:
    def fun(x, n):
        return powers(kind, x, n)

    _, logs = sawlog.spool(jax.vmap(fun), capacity=8)(XS, COUNTS)
    assert logged(logs, "value") == [[2], [3, 9, 27]]
    _, logs = jax.vmap(sawlog.spool(fun, capacity=32))(XS, COUNTS)
    values, mask = np.asarray(logs["value"]), np.asarray(logs.mask["value"])
    assert [v[m].tolist() for v, m in zip(values, mask, strict=True)] == [[2], [3, 9, 27]]


@KINDS
def test_nested_vmap(kind: str) -> None:
    def fun(x, n):
        return powers(kind, x, n)

    found = counts(jax.vmap(jax.vmap(fun, (0, None)), (None, 0)), XS, COUNTS)
    assert found["value"] == [[1, 1], [3, 3]]
    found = counts(jax.vmap(jax.vmap(fun, (None, 0)), (0, None)), XS, COUNTS)
    assert found["value"] == [[1, 3], [1, 3]]


@KINDS
def test_vmap_of_tap(kind: str) -> None:
    seen: list = []
    tapped = sawlog.tap(lambda x, n: powers(kind, x, n), seen.append, argnames="value")
    jax.vmap(tapped)(XS, COUNTS)
    jax.effects_barrier()
    assert sorted(float(logs["value"]) for logs in seen) == [2, 3, 9, 27]


@REVERSIBLE
def test_grad(kind: str) -> None:
    def fun(x):
        return powers(kind, x, 3, everywhere=True)

    out, logs = sawlog.spool(jax.grad(fun), capacity=32)(2.0)
    assert out == 32
    assert logs["value"].tolist() == [2, 4, 8]
    assert logs["inner"].tolist() == [2, 3, 4, 5, 8, 9]
    assert logs["flows_back"].tolist() == [2, 4, 8]


def test_grad_with_a_checkpoint_for_every_step() -> None:
    def fun(x):
        return powers("checkpointed", x, 3, everywhere=True, checkpoints=5)

    _, logs = sawlog.spool(jax.grad(fun), capacity=32)(2.0)
    assert logs["value"].tolist() == [2, 4, 8]
    assert logs["flows_back"].tolist() == [2, 4, 8]


@REVERSIBLE
def test_grad_of_spool(kind: str) -> None:
    def fun(x):
        return sawlog.spool(lambda x: powers(kind, x, 3), capacity=32)(x)

    out, logs = jax.grad(fun, has_aux=True)(2.0)
    assert out == 32
    assert logs["value"].tolist() == [2, 4, 8]


def test_vmap_of_grad_masks_what_flows_back() -> None:
    def fun(x, n):
        return powers("checkpointed", x, n, everywhere=True)

    _, logs = sawlog.spool(jax.vmap(jax.grad(fun)), capacity=32)(XS, COUNTS)
    assert logged(logs, "value") == [[2], [3, 9, 27]]
    assert logged(logs, "flows_back") == [[2], [3, 9, 27]]


def test_a_select_of_the_user_is_no_mask() -> None:
    """A loop that keeps lanes alive by hand logs in all of them."""

    def fun(x, alive):
        def body(carry, _):
            x, alive = carry
            sawlog.log("x", x)
            return (jnp.where(alive, x * 2, x), alive & (x < 4)), None

        return lax.scan(body, (x, alive), length=3)[0][0]

    assert counts(jax.vmap(fun), XS, np.array([True, False]))["x"] == [3, 3]
