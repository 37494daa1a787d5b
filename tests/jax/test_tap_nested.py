"""tap: several taps, derivatives and loops around, and the callback."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog
from tests.thorough import pairs

from .tap_programs import Boom, called, column, failing_site, labelled, pair

# -- several taps ----------------------------------------------------------------------------------


def test_tapping_twice_takes_from_the_inside() -> None:
    inner, outer = [], []

    def f(x: Any) -> Any:
        sawlog.log({"outside": x})
        return sawlog.tap(labelled, inner.append, argnames="a")(x)

    out = sawlog.tap(f, outer.append)(1.0)
    jax.effects_barrier()
    assert out == 1
    assert inner == [{"a": 1}]
    assert outer == [{"outside": 1}]
    again = []
    sawlog.tap(sawlog.tap(labelled, inner.append), again.append)(1.0)
    assert again == []


def with_a_rule(rule: str) -> Callable[..., Any]:
    """A function that logs "own", whose rule logs "rule"; mapped or differentiated in its way."""

    def double(x: Any) -> Any:
        sawlog.log({"own": x})
        return 2 * x

    if rule == "custom_vmap":
        mapped = jax.custom_batching.custom_vmap(double)
        mapped.def_vmap(lambda size, there, xs: (sawlog.log({"rule": xs}), (2 * xs, True))[1])
        return lambda x: jax.vmap(sawlog.spool(mapped))(jnp.stack([x, x]))[1]["own"]
    if rule == "custom_jvp":
        doubled = jax.custom_jvp(double)
        doubled.defjvp(lambda x, t: (sawlog.log({"rule": t[0]}), (2 * x[0], 2 * t[0]))[1])
        return lambda x: jax.jvp(sawlog.spool(doubled), (x,), (x,))[0][1]["own"]
    halves = jax.custom_vjp(double)
    halves.defvjp(
        lambda x: (sawlog.log({"rule": x}), (2 * x, None))[1],
        lambda _, t: (sawlog.log({"rule": t}), (2 * t,))[1],
    )
    return lambda x: jax.vjp(sawlog.spool(halves), x)[0][1]["own"]


@pytest.mark.parametrize("rule", ["custom_vmap", "custom_jvp", "custom_vjp"])
def test_what_a_rule_inside_of_spool_logs_reaches_no_tap(rule: str) -> None:
    """The spool has taken the log of the function; its rule only gives the outputs."""
    seen: list[Any] = []
    own = sawlog.tap(with_a_rule(rule), seen.append)(jnp.float32(3))
    jax.effects_barrier()
    assert np.unique(own).tolist() == [3]
    assert seen == []


def test_one_function_tapped_and_spooled_inside_another() -> None:
    seen = []

    def f(x: Any) -> Any:
        out, logs = sawlog.spool(labelled)(x)
        sawlog.tap(labelled, seen.append, argnames="c")(x)
        return logs["a"] + out

    for wrap in (lambda f: f, jax.jit):
        seen.clear()
        assert wrap(f)(2.0) == 4
        jax.effects_barrier()
        assert seen == [{"c": 10}]


def test_a_jitted_tap_called_twice() -> None:
    seen = []
    fun = jax.jit(sawlog.tap(pair, seen.append, argnames="x"))
    for x in (1.0, 2.0):
        fun(x).block_until_ready()
    jax.effects_barrier()
    assert column(seen, "x") == [1, 2]


def test_two_callbacks_do_not_retrace() -> None:
    traces = []

    def f(x: Any) -> Any:
        traces.append(x)
        sawlog.log({"x": x})
        return x

    one, two = [], []
    sawlog.tap(f, one.append)(1.0)
    sawlog.tap(f, two.append, prefix="p/")(2.0)
    sawlog.tap(f, one.append)(3.0)
    assert len(traces) == 1
    assert one == [{"x": 1}, {"x": 3}]
    assert two == [{"p/x": 2}]


# -- differentiation and loops around -------------------------------------------------------------


def chain(x: Any) -> Any:
    sawlog.log({"first": x})
    y = x * x

    def body(c: Any, i: Any) -> Any:
        sawlog.log({"loop": c}, step=i)
        return c * x, None

    y = lax.scan(body, y, jnp.arange(2))[0]
    sawlog.log({"last": y})
    return y


CHAIN = [("first", 2), ("loop", 4), ("loop", 8), ("last", 16)]


def one_by_one(seen: list[Any]) -> list[tuple[str, float]]:
    assert all(len(one) == 1 for one in seen)
    return [(key, float(value)) for one in seen for key, value in one.items()]


AROUND = {
    "grad": lambda f: jax.grad(f),
    "value_and_grad": lambda f: jax.value_and_grad(f),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (1.0,)),
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](1.0),
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](1.0),
    "remat": lambda f: jax.checkpoint(f),
    "grad of remat": lambda f: jax.grad(jax.checkpoint(f)),
    "grad of jit": lambda f: jax.grad(jax.jit(f)),
    "hessian": lambda f: jax.hessian(f),
    "jacfwd": lambda f: jax.jacfwd(f),
    "jacrev": lambda f: jax.jacrev(f),
}


@pytest.mark.turns(2)
@pytest.mark.parametrize(("around", "jit"), pairs(AROUND, [False, True], few=1))
def test_derivatives_call_once_and_in_order(around: str, jit: bool) -> None:
    """With tap inside of the derivative, and outside."""
    wrap = jax.jit if jit else (lambda f: f)
    want = AROUND[around](chain)(2.0)
    inside, seen = called(lambda c: wrap(AROUND[around](sawlog.tap(chain, c))), 2.0)
    assert one_by_one(seen) == CHAIN
    outside, seen = called(lambda c: wrap(sawlog.tap(AROUND[around](chain), c)), 2.0)
    assert one_by_one(seen) == CHAIN
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-6), inside, want)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-6), outside, want)


def test_scan_of_tap() -> None:
    def make(callback: Any) -> Any:
        tap = sawlog.tap(chain, callback)
        return lambda x: lax.scan(lambda c, _: (tap(c) / 8, None), x, length=2)[0]

    out, seen = called(make, 2.0)
    assert out == 2
    assert one_by_one(seen) == CHAIN * 2


def test_grad_of_scan_of_tap() -> None:
    """A value that does not change in the loop is still logged in each iteration."""

    def make(callback: Any) -> Any:
        def f(w: Any) -> Any:
            def body(c: Any, x: Any) -> Any:
                sawlog.log({"w": w, "c": c})
                return c + w * x, None

            return lax.scan(body, 0.0, jnp.arange(3.0))[0]

        return jax.grad(sawlog.tap(f, callback))

    out, seen = called(make, 2.0)
    assert out == 3
    assert column(seen, "w") == [2, 2, 2]
    assert column(seen, "c") == [0, 0, 2]


# -- the callback ----------------------------------------------------------------------------------


def test_callbacks_may_use_jax() -> None:
    seen = []

    def callback(logs: Any) -> None:
        seen.append(float(jnp.sum(jnp.asarray(logs["x"]) ** 2)))

    def f(x: Any) -> Any:
        return lax.scan(lambda c, i: (c + 1, sawlog.log({"x": c})), x, jnp.arange(3))[0]

    sawlog.tap(f, callback)(jnp.zeros(2))
    assert seen == [0, 2, 8]


def test_callbacks_may_use_the_logdict() -> None:
    kept = []

    def callback(logs: Any) -> None:
        kept.append(logs)

    sawlog.tap(failing_site, callback)(0)
    total = kept[0]
    for one in kept[1:]:
        total = total + one
    assert total["c"].tolist() == [0, 1, 2, 3, 4, 5]
    assert total.step["c"].tolist() == [0, 1, 2, 3, 4, 5]
    assert isinstance(total["c"], np.ndarray)
    assert total.reduce("mean")["c"] == 2.5


def test_callbacks_from_several_threads_go_to_the_right_place() -> None:
    """One function, one compiled program, many callbacks at the same time."""
    start, results, failures = threading.Barrier(6), {}, []

    def f(x: Any) -> Any:
        return lax.scan(lambda c, i: (c, sawlog.log({"x": c}, step=i)), x, jnp.arange(20))[0]

    def work(number: int) -> None:
        try:
            start.wait(30)
            for _ in range(5):
                seen: list[Any] = []
                sawlog.tap(f, seen.append)(number)
                results.setdefault(number, []).append([int(one["x"]) for one in seen])
                assert [int(one.step["x"]) for one in seen] == list(range(20))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
    assert results == {number: [[number] * 20] * 5 for number in range(6)}


def test_an_exception_in_one_thread_stays_there() -> None:
    start, caught, seen = threading.Barrier(2), [], []

    def bad(logs: Any) -> None:
        raise Boom

    def work() -> None:
        start.wait(30)
        for _ in range(5):
            try:
                sawlog.tap(failing_site, bad)(0)
            except Boom as error:
                caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    start.wait(30)
    for _ in range(5):
        sawlog.tap(failing_site, seen.append)(0)
    thread.join(60)
    assert len(caught) == 5
    assert column(seen, "c") == [*range(6)] * 5


def test_the_callback_is_checked() -> None:
    with pytest.raises(sawlog.SawlogError, match=re.compile("callback", re.IGNORECASE)):
        sawlog.tap(pair, "print")
