"""The first equation that made a NaN or an infinity, with its line; and dead units."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog
from sawlog.errors import ArgumentError
from sawlog.jax import source_text, watch
from tests.jax.watch.test_watch import ALL, PARAMS, X, step


def log_of_zero(x: Any) -> Any:
    y = x + 1
    y = jnp.log(x)  # here
    return y * 0


def in_a_loop(x: Any) -> Any:
    def body(h: Any, i: Any) -> Any:
        h = h / (2 - i)  # here
        return h, h

    return lax.scan(body, x + 1, jnp.arange(4.0))[1]


def in_a_while_loop(x: Any) -> Any:
    return lax.while_loop(
        lambda c: c[0] < 5,
        lambda c: (c[0] + 1, c[1] * 1e30),  # here
        (0, x + 1),
    )[1]


def in_a_branch(x: Any) -> Any:
    return lax.cond(
        x[0] >= 0,
        lambda x: jnp.sqrt(x - 1),  # here
        lambda x: x,
        x,
    )


def backward(x: Any) -> Any:
    def root(x: Any) -> Any:
        return jnp.sum(jnp.sqrt(x))  # here

    return jax.grad(root)(x)


def masked_softmax(x: Any) -> Any:
    scores = jnp.where(x > 1, x, -jnp.inf)
    return jax.nn.softmax(scores)  # here


def in_a_custom_derivative(x: Any) -> Any:
    @jax.custom_jvp
    def f(x: Any) -> Any:
        return 1 / x  # here

    f.defjvp(lambda p, t: (f(*p), t[0]))
    return jax.jit(f)(x)


MADE = {
    log_of_zero: "log made an infinity",
    in_a_loop: "div made an infinity",
    in_a_while_loop: "mul made an infinity",
    in_a_branch: "sqrt made a NaN",
    backward: "made an infinity",
    masked_softmax: "sub made a NaN",
    in_a_custom_derivative: "div made an infinity",
}


def line_of(fun: Any) -> int:
    """The line with the comment `here`."""
    lines, first = inspect.getsourcelines(fun)
    return first + next(i for i, line in enumerate(lines) if line.rstrip().endswith("# here"))


@pytest.mark.parametrize("fun", MADE, ids=lambda fun: fun.__name__)
def test_line(fun: Any) -> None:
    _, logs = sawlog.spool(watch(fun, activations=False, gradients=False))(jnp.zeros(2))
    assert set(logs) == {"nonfinite/line", "nonfinite/source"}
    text = source_text(logs["nonfinite/source"])
    assert logs["nonfinite/line"] == line_of(fun)
    assert f"test_nonfinite.py:{line_of(fun)}" in text
    assert text.endswith(MADE[fun])


def test_nothing_where_all_is_finite() -> None:
    def masks(x: Any) -> Any:
        """Minus infinity as a mask is made by nothing."""
        return jax.nn.softmax(jnp.where(jnp.arange(2) > 0, x, -jnp.inf))

    assert set(sawlog.spool(watch(masks))(jnp.zeros(2))[1]) == set()
    assert set(sawlog.spool(watch(in_a_loop))(-jnp.ones(2))[1]) == {
        "nonfinite/line",
        "nonfinite/source",
    }


def test_everything_at_once() -> None:
    """A training step whose update overflows: all logs, and its line."""
    _, logs = sawlog.spool(watch(step))(PARAMS, 1e30 * X)
    assert set(logs) == ALL | {"nonfinite/line", "nonfinite/source"}
    assert "(loss): integer_pow made an infinity" in source_text(logs["nonfinite/source"])


def test_an_argument() -> None:
    fun = watch(lambda params, x: x * params["w"])
    _, logs = sawlog.spool(fun)({"w": jnp.ones(2)}, jnp.array([1.0, np.nan]))
    assert source_text(logs["nonfinite/source"]) == "argument [0][1]: is a NaN"
    _, logs = sawlog.spool(fun)({"w": jnp.array([np.inf, 1])}, jnp.ones(2))
    assert source_text(logs["nonfinite/source"]) == "argument w: is an infinity"


def test_lanes_and_steps() -> None:
    """Each lane of a vmap, and each call in a loop, has a first equation of its own."""
    xs = jnp.array([[1.0], [0.0], [2.0]])
    _, logs = sawlog.spool(jax.vmap(watch(log_of_zero, gradients=False)))(xs)
    assert logs["nonfinite/line"].tolist() == [0, line_of(log_of_zero), 0]
    assert logs.mask["nonfinite/line"].tolist() == [False, True, False]

    def loop(xs: Any) -> Any:
        return lax.map(watch(log_of_zero), xs)

    _, logs = sawlog.spool(loop)(xs)
    assert logs["nonfinite/line"].tolist() == [line_of(log_of_zero)]


def test_source_text_of_something_else() -> None:
    with pytest.raises(ArgumentError, match="uint8 with one axis"):
        source_text(np.zeros((2, 3), np.uint8))


# -- dead units ------------------------------------------------------------------------------------


def where(x: Any) -> Any:
    return jnp.where(x > 0, x, 0)


@pytest.mark.parametrize("switch", [jax.nn.relu, jax.nn.relu6, where, lambda x: jnp.maximum(0, x)])
def test_dead_units(switch: Any) -> None:
    """Of four units two are zero for the whole batch, one for half of it."""
    weight = np.array([[-1.0, 0, 1, 2]], np.float32)
    bias = np.array([0.0, 0, -1.5, 0], np.float32)

    def model(params: Any, x: Any) -> Any:
        return switch(x @ params["a"]["w"] + params["a"]["b"])

    _, logs = sawlog.spool(watch(model))({"a": {"w": weight, "b": bias}}, jnp.array([[1.0], [2]]))
    assert set(logs) == {"activation/a", "dead/a"}
    assert logs["dead/a"] == 0.5


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_dead_channels(layout: str) -> None:
    """The units of a convolution are its channels, wherever their axis is."""
    numbers = lax.conv_dimension_numbers((2, 4, 4, 4), (1, 4, 1, 1), (layout, "OIHW", layout))
    weight = np.ones((3, 4, 1, 1), np.float32) * np.array([1, -1, 1]).reshape(3, 1, 1, 1)

    def model(params: Any, x: Any) -> Any:
        y = lax.conv_general_dilated(x, params["w"], (1, 1), "SAME", dimension_numbers=numbers)
        return jax.nn.relu(y)

    _, logs = sawlog.spool(watch(model))({"w": weight}, jnp.ones((2, 4, 4, 4)))
    np.testing.assert_allclose(logs["dead/w"], 1 / 3, rtol=1e-6)


def test_large_numbers_do_not_overflow() -> None:
    _, logs = sawlog.spool(watch(lambda p, x: x * p))(jnp.float32(1e30), jnp.ones(4, jnp.float32))
    np.testing.assert_allclose(logs["activation/params"], 2e30, rtol=1e-5)
