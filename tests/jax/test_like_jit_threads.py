"""spool(f) and tap(f) in threads, and lower, trace and eval_shape."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.export
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog
import sawlog.errors
from sawlog.loggers import MemoryLogger

from .like_jit_programs import Counted, logs_x, tap_to_list

# -- threads ---------------------------------------------------------------------------------------


def test_threads() -> None:
    """Eight threads, each with functions of its own and one they share, all at the same time."""
    shared = Counted().fun
    start, failures = threading.Barrier(8), []

    def work(number: int) -> None:
        def own(x: Any) -> Any:
            def body(c: Any, i: Any) -> Any:
                sawlog.log({f"x{number}": c + number}, step=i)
                return c + 1, None

            return lax.scan(body, x, jnp.arange(4))[0]

        try:
            start.wait(30)
            for _ in range(4):
                out, logs = sawlog.spool(own)(0)
                assert out == 4
                assert set(logs) == {f"x{number}"}
                np.testing.assert_array_equal(logs[f"x{number}"], np.arange(4) + number)
                out, seen = tap_to_list(own)(0)
                assert [int(one[f"x{number}"]) for one in seen] == [number + i for i in range(4)]
                assert sawlog.spool(shared)(float(number))[1]["x"] == number
                assert [float(one["x"]) for one in tap_to_list(shared)(float(number))[1]] == [
                    number
                ]
                assert jax.jit(own)(0) == 4
        except BaseException as error:
            failures.append((number, error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []


def test_listening_in_one_thread_is_not_heard_in_another() -> None:
    jaxprs = []

    def f(x: Any) -> Any:
        thread = threading.Thread(target=lambda: jaxprs.append(jax.make_jaxpr(logs_x)(1.0)))
        thread.start()
        thread.join()
        sawlog.log({"x": x})
        return x

    assert set(sawlog.spool(f)(1.0)[1]) == {"x"}
    assert [eqn.primitive.name for eqn in jaxprs[0].eqns] == ["mul"]


# --- What jax.jit gives besides calling -----------------------------------------------------------


def squares(n: int, name: str, x: Any) -> Any:
    """Logs n values under a name; both are part of the program."""
    for i in range(n):
        sawlog.log({name: x * i})
    return x


@pytest.mark.parametrize(
    ("options", "args", "kwargs"),
    [
        ({"static_argnums": (0, 1)}, (3, "a", 2.0), {}),
        ({"static_argnums": (-3, -2)}, (3, "a", 2.0), {}),
        ({"static_argnames": ("n", "name")}, (), {"n": 3, "name": "a", "x": 2.0}),
        ({"static_argnames": ["n", "name"]}, (3, "a"), {"x": 2.0}),
        ({"static_argnums": 0}, (3, "a", 2.0), {}),  # a string is static anyway
    ],
)
def test_static_arguments_of_plain_functions(options: Any, args: Any, kwargs: Any) -> None:
    _, logs = sawlog.spool(squares, **options)(*args, **kwargs)
    np.testing.assert_array_equal(logs["a"], [0, 2, 4])
    calls: list = []
    sawlog.tap(squares, calls.append, **options)(*args, **kwargs)
    assert [float(logs["a"]) for logs in calls] == [0, 2, 4]
    assert float(sawlog.logify(squares, **options)(*args, **kwargs)[1]["a"]) == 4
    with MemoryLogger() as logger:
        state = logger.init(0)
        logger.spool(squares, state, **options)(*args, **kwargs)
        logger.tap(squares, state, **options)(*args, **kwargs)
        (run,) = logger.runs.values()
    np.testing.assert_array_equal(run.logs["a"], [0, 2, 4, 0, 2, 4])


@pytest.mark.parametrize("options", [{"static_argnums": "n"}, {"static_argnames": (0,)}], ids=str)
def test_static_arguments_of_the_wrong_kind(options: Any) -> None:
    (name,) = options
    with pytest.raises(sawlog.errors.ArgumentError, match=name):
        sawlog.spool(squares, **options)


def test_static_values_are_told_apart_by_type() -> None:
    def f(flag: Any, x: Any) -> Any:
        sawlog.log({type(flag).__name__: x})
        return x

    fun = sawlog.spool(f, static_argnums=0)
    assert [list(fun(flag, 1.0)[1]) for flag in (True, 1, 1.0)] == [["bool"], ["int"], ["float"]]


def looped(xs: Any) -> Any:
    """One value logged always, one sometimes, one in a loop."""
    sawlog.log({"once": xs})
    lax.cond(xs[0] > 0, lambda: sawlog.log({"maybe": xs[0]}), lambda: None)

    def body(c: Any, x: Any) -> Any:
        sawlog.log({"loop": x}, step=c)
        return c + 1, x

    return lax.scan(body, 0, xs)[1]


def test_lower_trace_and_eval_shape() -> None:
    xs = jnp.arange(1.0, 4.0)
    fun = sawlog.spool(looped)
    expected = fun(xs)[1]
    out, logs = fun.lower(xs).compile()(xs)
    np.testing.assert_array_equal(out, xs)
    for key in expected:
        np.testing.assert_array_equal(logs[key], expected[key])
    assert "looped" in fun.lower(xs).as_text()
    assert len(fun.trace(xs).jaxpr.in_avals) == 1
    out, logs = fun.eval_shape(xs)
    assert out.shape == (3,)
    assert {key: x.shape for key, x in logs.entries().items()} == {
        "once": (1, 3),
        "maybe": (1,),
        "loop": (3,),
    }
    assert logs.reduce("mean")["loop"].shape == ()
    assert logs.prefix("train/")["train/loop"].dtype == np.float32
    assert jax.eval_shape(fun, xs)[1]["loop"].shape == (3,)


def test_tap_can_be_lowered() -> None:
    calls: list = []
    fun = sawlog.tap(looped, calls.append)
    compiled = fun.lower(jnp.arange(3.0)).compile()
    jax.block_until_ready(compiled(jnp.arange(3.0)))
    jax.effects_barrier()
    assert [list(logs) for logs in calls] == [["once"], ["loop"], ["loop"], ["loop"]]
    assert fun.eval_shape(jnp.arange(3.0)).shape == (3,)


def test_what_is_made_of_a_transformed_function_lowers_on_its_own() -> None:
    """jax.vmap copies the attributes of a function, and asks it for its shape if it can tell."""
    xs = jnp.ones((4, 3))
    for fun in (sawlog.spool(looped), sawlog.tap(looped, lambda logs: None)):
        mapped = jax.vmap(fun)
        assert jax.tree.leaves(jax.eval_shape(mapped, xs))[0].shape == (4, 3)
        assert jax.jit(mapped).lower(xs).in_avals[0][0].shape == (4, 3)
        assert jax.make_jaxpr(mapped)(xs).in_avals[0].shape == (4, 3)
        assert not {"lower", "trace", "eval_shape", "_call", "_program"} & set(vars(fun))


def test_a_method_can_be_transformed_in_its_class() -> None:
    class Model:
        w = 2.0

        @sawlog.spool
        def predict(self, x: Any) -> Any:
            sawlog.log({"x": x})
            return self.w * x

    out, logs = Model().predict(3.0)
    assert (out, logs["x"]) == (6, 3)
