"""spool(f) and tap(f) cache as jax.jit does."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog
import sawlog.errors

from .like_jit_programs import Counted, both, last_of, tap_to_list


@both
def test_second_call_does_not_retrace(transform: Any) -> None:
    counted = Counted()
    transformed = transform(counted.fun)
    for value in (1.0, 2.0, 3.0):
        out, logs = transformed(value)
        assert out == 2 * value
        assert last_of(logs) == value
    assert counted.traces == 1


@both
def test_a_fresh_transformation_does_not_retrace(transform: Any) -> None:
    counted = Counted()
    for value in (1.0, 2.0):
        assert last_of(transform(counted.fun)(value)[1]) == value
    assert counted.traces == 1


@both
@pytest.mark.parametrize("values", [(1, 2, -3), (0.5, 1.5), (True, False), (1j, 2j)], ids=str)
def test_python_scalars_are_not_static(transform: Any, values: Any) -> None:
    counted = Counted()
    for value in values:
        assert transform(counted.fun)(np.float32(1), value)[0] == value
    assert counted.traces == 1


@both
def test_new_types_retrace_once(transform: Any) -> None:
    traces = []

    def f(x: Any) -> Any:
        traces.append(x)
        sawlog.log({"x": 1.0})
        return x

    arrays = [jnp.ones(2), jnp.ones(3), jnp.ones(3, jnp.int32), np.ones((3, 1), np.float32)]
    others = [{"a": 1.0}, {"b": 1.0}, (1.0, None), None, 1, 1.0, True]
    for expected, x in enumerate([*arrays, *others], start=1):
        for _ in range(2):
            assert last_of(transform(f)(x)[1]) == 1
        assert len(traces) == expected
    for x in (*arrays, *others):
        transform(f)(x)
    assert len(traces) == len(arrays) + len(others)


@both
def test_other_options_are_other_programs(transform: Any) -> None:
    counted = Counted()
    for _ in range(2):
        assert set_of(transform(counted.fun)(1.0)[1]) == {"x"}
        assert set_of(transform(counted.fun, argnames="y")(1.0)[1]) == set()
        assert set_of(transform(counted.fun, prefix="p/")(1.0)[1]) == {"p/x"}
    assert counted.traces <= 3
    assert set_of(transform(counted.fun)(1.0)[1]) == {"x"}


def set_of(logs: Any) -> set[str]:
    return {key for one in logs for key in one} if isinstance(logs, list) else set(logs)


def test_every_option_of_spool_is_told_apart() -> None:
    def f() -> None:
        for i in range(4):
            sawlog.log({"x": i, "y": 0}, tags="t")

    for _ in range(2):
        np.testing.assert_array_equal(sawlog.spool(f)()[1]["x"], [0, 1, 2, 3])
        np.testing.assert_array_equal(sawlog.spool(f, interval=2)()[1]["x"], [0, 2])
        np.testing.assert_array_equal(sawlog.spool(f, interval=3)()[1]["x"], [0, 3])
        assert sawlog.spool(f, reduce="sum")()[1]["x"] == 6
        assert sawlog.spool(f, reduce={"x": "max"})()[1]["x"] == 3
        assert set(sawlog.spool(f, argnames="y")()[1]) == {"y"}
        assert set(sawlog.spool(f, tags="t")()[1]) == {"x", "y"}
        assert set(sawlog.spool(f, tags="u")()[1]) == set()
        assert set(sawlog.spool(f, prefix="p")()[1]) == {"px", "py"}


def test_spool_and_plain_calls_do_not_disturb_each_other() -> None:
    """A jitted function that was called before, and is called after."""
    counted = Counted()
    jitted = jax.jit(counted.fun)
    assert jitted(1.0) == 2
    assert counted.traces == 1
    assert sawlog.spool(jitted)(1.0)[1]["x"] == 1
    assert counted.traces == 2
    assert jitted(3.0) == 6
    assert sawlog.spool(jitted)(3.0)[1]["x"] == 3
    assert tap_to_list(jitted)(3.0)[1][0]["x"] == 3
    assert jitted(3.0) == 6
    assert counted.traces <= 3


def test_jit_around_is_traced_once() -> None:
    counted = Counted()
    jitted = jax.jit(lambda x: sawlog.spool(counted.fun)(x)[0])
    assert [float(jitted(x)) for x in (1.0, 2.0)] == [2.0, 4.0]
    assert counted.traces == 1


def looping() -> Callable[..., Any]:
    def f(x: Any) -> Any:
        def body(carry: Any, i: Any) -> Any:
            sawlog.log({"x": carry}, step=i)
            return lax.cond(carry > 2, lambda: carry, lambda: carry + 1), None

        return lax.scan(body, x, jnp.arange(3))[0]

    return f


def spool_with_an_error(f: Any) -> None:
    with pytest.raises(TypeError):
        sawlog.spool(f)(1.0, 2.0)


USES = {
    "spool": lambda f: sawlog.spool(f)(1.0),
    "spool of jit": lambda f: sawlog.spool(jax.jit(f))(1.0),
    "jit of spool": lambda f: jax.jit(sawlog.spool(f))(1.0),
    "vmap of spool": lambda f: jax.vmap(sawlog.spool(f))(jnp.ones(2)),
    "grad of spool": lambda f: jax.grad(lambda x: sawlog.spool(f)(x)[0])(1.0),
    "tap": lambda f: sawlog.tap(f, lambda logs: None)(1.0),
    "strip": lambda f: sawlog.strip(f)(1.0),
    "failed spool": lambda f: spool_with_an_error(f),
}


@pytest.mark.parametrize("use", USES)
def test_functions_are_not_kept_alive(use: str) -> None:
    f = looping()
    USES[use](f)
    ref = weakref.ref(f)
    del f
    gc.collect()
    assert ref() is None


@pytest.mark.thorough
def test_objects_of_methods_and_partials_are_not_kept_alive() -> None:
    class Thing:
        def method(self, x: Any) -> Any:
            sawlog.log({"x": x})
            return x

    thing = Thing()
    partial = functools.partial(thing.method)
    sawlog.spool(thing.method)(1.0)
    sawlog.spool(partial)(1.0)
    sawlog.tap(thing.method, lambda logs: None)(1.0)
    ref = weakref.ref(thing)
    del thing, partial
    gc.collect()
    assert ref() is None


def test_a_transformed_function_keeps_its_function() -> None:
    """A lambda has no other owner."""
    spooled = sawlog.spool(lambda x: sawlog.log({"x": x}))
    tapped = sawlog.tap(lambda x: sawlog.log({"x": x}) and None, print)
    gc.collect()
    assert spooled(1.0)[1]["x"] == 1
    assert tapped(1.0) is None


@pytest.mark.thorough
def test_callbacks_are_not_kept_alive() -> None:
    f = looping()
    callback = lambda logs: None
    sawlog.tap(f, callback)(1.0)
    ref = weakref.ref(callback)
    del callback
    gc.collect()
    assert ref() is None


def test_a_callback_that_holds_the_function_does_not_keep_it_alive() -> None:
    f = looping()
    sawlog.tap(f, lambda logs, f=f: None)(1.0)
    ref = weakref.ref(f)
    del f
    gc.collect()
    assert ref() is None
