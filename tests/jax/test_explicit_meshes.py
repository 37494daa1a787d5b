"""Explicit meshes: what is collected has the sharding of what is logged, and costs no gathering."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

import sawlog
from sawlog.errors import LogValueError

from .cases.explicit import M48, line, placed, square
from .mesh_helpers import OPTIONS, ROWS, STEPS, collectives, context, halve, some, spec_of, train

pytestmark = pytest.mark.turns(3)


options = pytest.mark.parametrize(
    ("chosen", "expected"), OPTIONS, ids=["-".join(map(str, o.values())) for o, _ in OPTIONS]
)


@options
def test_spool(chosen: dict, expected: Callable) -> None:
    """Every option gives the values of one device, sharded as they were logged, for nothing."""
    x = placed(M48, square(), "x", "y")
    with jax.set_mesh(square()):
        fun = sawlog.spool(train, **chosen)
        out, logs = fun(x)
        assert collectives(fun, x) == []
    found, want = logs["x"], expected(ROWS)
    np.testing.assert_allclose(found, want, rtol=1e-6)
    assert spec_of(found) == (None,) * (want.ndim - 2) + ("x", "y")
    assert spec_of(out) == ("x", "y")


def test_collectives_are_seen() -> None:
    """The check above would find one."""
    x = placed(M48, square(), "x", "y")
    with jax.set_mesh(square()):
        assert collectives(lambda x: jax.sharding.reshard(x, P(None, "y")), x) == ["all-gather"]


def test_collectives_are_seen_in_loops() -> None:
    """A program that logs a sum has the communication of the sum alone."""
    x = placed(M48, square(), "x", "y")

    def fun(x: Any) -> Any:
        def body(x: Any, i: Any) -> Any:
            sawlog.log({"x": x, "sum": x.sum()}, step=i)
            return x * 0.5, None

        return lax.scan(body, x, jnp.arange(STEPS))[0]

    def threaded(x: Any) -> Any:
        def body(carry: Any, i: Any) -> Any:
            x, mean, sums = carry
            return (x * 0.5, mean + x / STEPS, sums + x.sum() / STEPS), None

        return lax.scan(body, (x, x * 0, jnp.float32(0)), jnp.arange(STEPS))[0]

    with jax.set_mesh(square()):
        plain = collectives(threaded, x)
        assert collectives(sawlog.spool(fun, reduce="mean"), x) == plain != []


@options
def test_branches(chosen: dict, expected: Callable) -> None:
    """What a branch may not log is masked; without a context."""
    x = placed(M48, line(), None, "x")
    _, logs = sawlog.spool(some, **chosen)(x)
    want = expected(ROWS[::2])
    np.testing.assert_allclose(logs["x"], want, rtol=1e-6)
    assert spec_of(logs["x"]) == (None,) * (want.ndim - 1) + ("x",)


@pytest.mark.parametrize("entered", [True, False], ids=["context", "no_context"])
@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"capacity": 3}, np.stack(ROWS[:3])),
        ({"capacity": 3, "keep": "last"}, np.stack(ROWS[2:5])),
        ({"reduce": "mean"}, np.mean(ROWS[:5], axis=0)),
    ],
)
def test_loop_of_unknown_length(chosen: dict, expected: Any, entered: bool) -> None:
    """A while loop, whose state is its carry."""
    x = placed(M48, square(), "x", "y")
    with context(square(), entered):
        _, logs = sawlog.spool(halve, **chosen)(x)
    np.testing.assert_allclose(logs["x"], expected, rtol=1e-6)
    assert spec_of(logs["x"])[-2:] == ("x", "y")


@pytest.mark.parametrize("transform", [sawlog.spool, lambda f: sawlog.tap(f, lambda logs: None)])
def test_a_sum_that_is_not_reduced_is_refused(transform: Callable) -> None:
    """Each device has a term; no array of numpy could hold them."""

    def fun(x, w):
        y = jnp.dot(x, w, out_sharding=P(None, None, unreduced={"x"}))
        sawlog.log({"y": y})
        return jax.sharding.reshard(y, P(None, None))

    x = placed(np.ones((2, 4), np.float32), square(), None, "x")
    w = placed(np.ones((4, 2), np.float32), square(), "x", None)
    with jax.set_mesh(square()), pytest.raises(LogValueError, match=r"not reduced over 'x'.*Hint"):
        transform(fun)(x, w)
