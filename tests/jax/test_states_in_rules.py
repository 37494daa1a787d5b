"""States of collectors and taps in functions with rules of their own: each log counts, once.

The oracle is a list of the numbers that the program logs, and numpy.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sawlog

XS = np.array([3.0, 1.0, 4.0, 1.5, 9.0], np.float32)


def logged(x):
    sawlog.log({"x": x})
    return 2 * x


def with_jvp(x):
    @jax.custom_jvp
    def function(x):
        return logged(x)

    function.defjvp(lambda primals, tangents: (2 * primals[0], 2 * tangents[0]))
    return function(x)


def with_vjp(x):
    @jax.custom_vjp
    def function(x):
        return logged(x)

    function.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))
    return function(x)


def with_vmap(x):
    function = jax.custom_batching.custom_vmap(logged)
    function.def_vmap(lambda size, mapped, x: (2 * x, mapped[0]))
    return function(x)


def with_solve(x):
    return jax.lax.custom_linear_solve(
        lambda y: y / 2, x, lambda _, b: logged(b), lambda _, b: 2 * b
    )


RULES = [logged, with_jvp, with_vjp, with_vmap, with_solve]


def scanned(function):
    def program(xs):
        return jax.lax.scan(lambda total, x: (total + function(x), None), 0.0, xs)[0]

    return program


def looped(function):
    """A loop of unknown length."""

    def program(xs):
        def body(state):
            i, total = state
            return i + 1, total + function(xs[i])

        return jax.lax.while_loop(lambda state: state[0] < len(XS), body, (0, 0.0))[1]

    return program


@pytest.mark.parametrize(
    ("program", "options", "expected"),
    [
        (scanned, {"reduce": "sum"}, XS.sum()),
        (scanned, {"window": 2}, XS[-2:]),
        (looped, {"capacity": 2, "interval": 2, "keep": "last"}, XS[2::2]),
    ],
)
@pytest.mark.parametrize("function", RULES)
def test_reductions_and_buffers(function, program, options, expected):
    total, logs = sawlog.spool(program(function), **options)(jnp.asarray(XS))
    np.testing.assert_allclose(logs["x"], expected, rtol=1e-6)
    np.testing.assert_allclose(total, 2 * XS.sum(), rtol=1e-6)


@pytest.mark.parametrize("function", RULES)
def test_every_other_entry_is_sent(function):
    calls = []
    tapped = sawlog.tap(scanned(function), lambda logs: calls.append(logs["x"]), interval=2)
    np.testing.assert_allclose(tapped(jnp.asarray(XS)), 2 * XS.sum(), rtol=1e-6)
    np.testing.assert_array_equal(calls, XS[::2])


@pytest.mark.parametrize("function", [logged, with_jvp, with_vjp, with_solve])
def test_reductions_of_a_function_that_is_differentiated(function):
    collected = sawlog.spool(scanned(function), reduce="sum")
    slope, logs = jax.grad(lambda scale: collected(scale * XS), has_aux=True)(2.0)
    np.testing.assert_allclose(slope, 2 * XS.sum(), rtol=1e-6)
    np.testing.assert_allclose(logs["x"], 2 * XS.sum(), rtol=1e-6)
