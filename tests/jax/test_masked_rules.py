"""Functions with a derivative of their own, in branches and loops that only some lanes run.

JAX maps the branch first and differentiates it later, so the logs of a rule for derivatives get
their mask before the rule is traced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog

X = jnp.array([1.0, -1.0, 3.0])
RAN = np.array([True, False, True])
Logs = dict[str, list[tuple[list[float], list[bool]]]]


def backwards(primal: bool, **options: Any) -> Callable[[Any], Any]:
    """Twice x, whose rules for reverse mode log; so does the function if ``primal``."""

    @jax.custom_vjp
    def double(x):
        if primal:
            sawlog.log("primal", x)
        return x * 2

    def forward(x):
        sawlog.log("forward", x)
        return x * 2, x

    def backward(x, gradient):
        sawlog.log("backward", gradient + x)
        return (gradient * 2,)

    double.defvjp(forward, backward, **options)
    return double


def forwards(primal: bool) -> Callable[[Any], Any]:
    """Twice x, whose rule for forward mode logs."""

    @jax.custom_jvp
    def double(x):
        if primal:
            sawlog.log("primal", x)
        return x * 2

    @double.defjvp
    def rule(primals, tangents):
        sawlog.log("jvp", primals[0])
        return primals[0] * 2, tangents[0] * 2

    return double


def branch(double: Any) -> Any:
    return lambda x: lax.cond(x > 0, double, lambda x: x, x)


def three(double: Any) -> Any:
    return lambda x: lax.switch(
        jnp.where(x > 2, 2, x > 0).astype(int), [lambda x: x, double, double], x
    )


WITHIN: dict[str, Callable[[Any], Any]] = {
    "cond": branch,
    "switch": three,
    "jit in cond": lambda f: branch(jax.jit(f)),
    "cond in jit": lambda f: jax.jit(branch(f)),
    "checkpoint": lambda f: branch(jax.checkpoint(f)),
    "scan in cond": lambda f: branch(
        lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0]
    ),
    "cond in scan": lambda f: (
        lambda x: lax.scan(lambda c, _: (branch(f)(c), None), x, None, length=1)[0]
    ),
    "cond in cond": lambda f: branch(branch(f)),
}
RULES = {
    "backwards": (lambda: backwards(False), {"forward", "backward"}),
    "backwards, and its function": (lambda: backwards(True), {"forward", "backward"}),
    "forwards": (lambda: forwards(False), {"jvp"}),
    "forwards, and its function": (lambda: forwards(True), {"jvp"}),
}
EXPECTED = {"forward": X, "jvp": X, "backward": X + 1}


def check(logs: Any, names: set[str]) -> None:
    """Every name is logged once, in the lanes that ran."""
    assert set(logs) == names
    for name in names:
        np.testing.assert_array_equal(np.squeeze(logs.mask[name]), RAN)
        np.testing.assert_array_equal(np.squeeze(logs[name])[RAN], EXPECTED[name][RAN])


@pytest.mark.parametrize("within", WITHIN)
@pytest.mark.parametrize("rules", RULES)
def test_gradients_of_lanes(rules: str, within: str) -> None:
    make, names = RULES[rules]
    lane = WITHIN[within](make())
    for fun in (
        jax.grad(lambda x: jax.vmap(lane)(x).sum()),
        jax.vmap(jax.grad(lane)),
        jax.jit(jax.grad(lambda x: jax.vmap(lane)(x).sum())),
    ):
        slope, logs = sawlog.spool(fun)(X)
        np.testing.assert_array_equal(slope, [2, 1, 2])
        check(logs, names)


def test_without_differentiation() -> None:
    """The function logs, and its rules do not."""
    for make in (backwards, forwards):
        out, logs = sawlog.spool(jax.vmap(branch(make(True))))(X)
        np.testing.assert_array_equal(out, [2, -1, 6])
        assert list(logs) == ["primal"]
        np.testing.assert_array_equal(logs.mask["primal"], RAN)
        assert not sawlog.spool(jax.vmap(branch(make(False))))(X)[1]


def test_taps_and_reductions() -> None:
    fun = jax.grad(lambda x: jax.vmap(branch(backwards(False)))(x).sum())
    _, logs = sawlog.spool(fun, reduce="sum")(X)
    np.testing.assert_array_equal(logs["forward"][RAN], [1, 3])
    np.testing.assert_array_equal(logs.mask["backward"], RAN)
    seen: list = []
    sawlog.tap(fun, seen.append)(X)
    jax.effects_barrier()
    assert sorted(name for logs in seen for name in logs) == ["backward", "forward"]
    for logs in seen:
        for name in logs:
            np.testing.assert_array_equal(logs.mask[name], RAN)


def test_loops_in_forward_mode() -> None:
    """The condition of the loop is different in every lane."""
    start = jnp.array([1.0, 2.0, 5.0])
    for primal in (False, True):
        double = forwards(primal)

        def loop(x, double=double):
            return lax.while_loop(lambda c: c < 4, double, x)

        for fun in (
            lambda x, loop=loop: jax.jvp(jax.vmap(loop), (x,), (x,)),
            lambda x, loop=loop: jax.vmap(lambda x: jax.jvp(loop, (x,), (x,)))(x),
        ):
            (out, _), logs = sawlog.spool(fun, capacity=4)(start)
            np.testing.assert_array_equal(out, [4, 4, 5])
            assert set(logs) == {"jvp"}
            mask = np.array([[True, True, False], [True, False, False]])
            np.testing.assert_array_equal(logs.mask["jvp"], mask)
            np.testing.assert_array_equal(logs["jvp"][mask], [1, 2, 2])


def test_two_derivatives() -> None:
    """The rule for the derivative has a rule of its own."""

    @jax.custom_jvp
    def inner(x):
        return x * 3

    @inner.defjvp
    def inner_rule(primals, tangents):
        sawlog.log("second", primals[0])
        return primals[0] * 3, tangents[0] * 3

    @jax.custom_jvp
    def cube(x):
        return x**3

    @cube.defjvp
    def rule(primals, tangents):
        (x,), (dx,) = primals, tangents
        return x**3, inner(x * x) * dx

    def total(x):
        return jax.vmap(branch(cube))(x).sum()

    slope, logs = sawlog.spool(jax.grad(lambda x: jax.grad(total)(x).sum()))(X)
    np.testing.assert_array_equal(slope, [6, 0, 18])
    assert list(logs) == ["second"]
    np.testing.assert_array_equal(np.squeeze(logs.mask["second"]), RAN)


def test_other_arguments() -> None:
    """Integers, symbolic zeros and several outputs."""

    @jax.custom_vjp
    def power(n, x, unused):
        return x**n, n, unused

    def forward(n, x, unused):
        sawlog.log({"perturbed": jnp.float32(unused.perturbed), "n": n.value})
        return (x.value**n.value, n.value, unused.value), (n.value, x.value)

    def backward(kept, gradients):
        n, x = kept
        return None, gradients[0] * n * x ** (n - 1), None

    power.defvjp(forward, backward, symbolic_zeros=True)

    def lane(x):
        return lax.cond(x > 0, lambda x: power(3, x, 2.0)[0], lambda x: x, x)

    slope, logs = sawlog.spool(jax.grad(lambda x: jax.vmap(lane)(x).sum()))(X)
    np.testing.assert_array_equal(slope, [3, 1, 27])
    assert set(logs) == {"perturbed", "n"}
    np.testing.assert_array_equal(logs.mask["n"], RAN)


def test_linear_solves() -> None:
    """The product is logged in the forward pass, and in the transposed solve."""

    def lane(x):
        def product(v):
            sawlog.log("v", v)
            return v * 2

        def solve(product, b):
            return product(b) / 4

        return lax.cond(
            x > 0,
            lambda x: lax.custom_linear_solve(product, x, solve, symmetric=True),
            lambda x: x,
            x,
        )

    slope, logs = sawlog.spool(jax.grad(lambda x: jax.vmap(lane)(x).sum()))(X)
    np.testing.assert_array_equal(slope, [0.5, 1, 0.5])
    np.testing.assert_array_equal(logs.mask["v"], [RAN, RAN])
    np.testing.assert_array_equal(logs["v"][:, RAN], [[1, 3], [1, 1]])


def test_roots() -> None:
    """An object in newer JAX, whose rules are in it."""

    def lane(a):
        def residual(x):
            sawlog.log("residual", x)
            return x - a

        def root(a):
            del a
            return lax.custom_root(residual, 0.0, lambda g, x: x - g(x), lambda g, y: y / g(1.0))

        return lax.cond(a > 0, root, lambda a: a, a)

    slope, logs = sawlog.spool(jax.grad(lambda x: jax.vmap(lane)(x).sum()))(X)
    np.testing.assert_array_equal(slope, [1, 1, 1])
    np.testing.assert_array_equal(logs.mask["residual"], [RAN] * 3)
    np.testing.assert_array_equal(logs["residual"][:, RAN], [[0, 0], [1, 3], [1, 3]])


@pytest.mark.parametrize("moves", [(True, False), (False, True), (True, True)])
def test_only_some_operands_are_differentiated(moves: tuple[bool, bool]) -> None:
    """What is not differentiated has no tangent in the rule, which is masked as well."""

    @jax.custom_jvp
    def product(x: Any, y: Any) -> Any:
        return x * y

    @product.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (x, y), (dx, dy) = primals, tangents
        sawlog.log("jvp", x)
        return x * y, dx * y + x * dy

    def lane(x: Any, y: Any) -> Any:
        return lax.cond(x > 0, product, lambda x, y: x + y, x, y)

    ys = 2 * X + 1
    places = tuple(i for i, moved in enumerate(moves) if moved)
    fun = jax.grad(lambda x, y: jax.vmap(lane)(x, y).sum(), places)
    found, logs = sawlog.spool(fun)(X, ys)
    wanted = (np.where(RAN, ys, 1), np.where(RAN, X, 1))
    for place, own in zip(places, found, strict=True):
        np.testing.assert_allclose(own, wanted[place])
    np.testing.assert_array_equal(np.squeeze(logs.mask["jvp"]), RAN)
    np.testing.assert_array_equal(np.squeeze(logs["jvp"])[RAN], X[RAN])


def test_a_lane_that_stopped_does_not_go_on() -> None:
    """Its condition would be true again after one more turn."""

    def lane(x: Any) -> Any:
        def body(x: Any) -> Any:
            sawlog.log("x", x)
            return x + 2

        return lax.while_loop(lambda x: x != 4, body, x)

    xs = jnp.array([0, 4, -6, 2])
    for options in ({"reduce": "sum"}, {"capacity": 8}):
        out, logs = sawlog.spool(jax.vmap(lane), **options)(xs)
        np.testing.assert_array_equal(out, [4] * 4)
        total = logs.reduce("sum")["x"] if "capacity" in options else logs["x"]
        np.testing.assert_array_equal(np.where([1, 0, 1, 1], total, 0), [2, 0, -10, 2])
