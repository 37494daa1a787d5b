"""Kinds of functions and of arguments, as `jax.jit` takes them."""

from __future__ import annotations

import functools

import jax
import numpy as np
from jax import numpy as jnp

import sawlog

from .base import M23, ONE, X3, Program, case, f32, many, once


@case("partial", args=(X3,))
def functools_partial() -> Program:
    """A partial application, with an array and a keyword bound."""

    def scaled(scale, x, *, shift):
        y = x * scale + shift
        sawlog.log("y", y)
        return y

    fun = functools.partial(scaled, f32(2.0), shift=1.0)

    def answer(x):
        return x * 2 + 1, {"y": once(x * 2 + 1)}

    return fun, answer


@case("method", args=(X3,))
def bound_method() -> Program:
    """A bound method."""

    class Model:
        def __init__(self) -> None:
            self.weight = f32(1.0, -1.0, 0.5)

        def apply(self, x):
            y = x * self.weight
            sawlog.log("y", y)
            return y.sum()

    model = Model()

    def answer(x):
        return np.sum(x * model.weight), {"y": once(x * model.weight)}

    return model.apply, answer


@case("method", args=(X3,))
def callable_object() -> Program:
    """An object with `__call__`."""

    class Model:
        def __call__(self, x):
            sawlog.log("x", x)
            return x * 2

    def answer(x):
        return x * 2, {"x": once(x)}

    return Model(), answer


@case("closure", args=(X3,))
def closure_over_jax_array() -> Program:
    """An array of the enclosing scope."""
    weight = jnp.asarray(f32(2.0, 3.0, 4.0))

    def fun(x):
        sawlog.log({"weight": weight, "product": weight * x})
        return x

    def answer(x):
        w = f32(2.0, 3.0, 4.0)
        return x, {"weight": once(w), "product": once(w * x)}

    return fun, answer


@case("kwargs", args=(X3,), kwargs={"scale": f32(2.0), "bias": f32(1.0)})
def keyword_arguments() -> Program:
    """Arrays given by keyword."""

    def fun(x, *, scale, bias):
        y = x * scale + bias
        sawlog.log("y", y)
        return y

    def answer(x, *, scale, bias):
        return x * scale + bias, {"y": once(x * scale + bias)}

    return fun, answer


@case("default_arguments", args=(X3,))
def default_arguments() -> Program:
    """Defaults stay defaults."""

    def fun(x, power=2, flag=None):
        y = x**power if flag is None else x
        sawlog.log("y", y)
        return y

    def answer(x):
        return x * x, {"y": once(x * x)}

    return fun, answer


@case("none_args", args=(X3, None, {"a": None, "b": ONE}))
def none_in_arguments() -> Program:
    """None is an empty pytree."""

    def fun(x, nothing, tree):
        assert nothing is None
        assert tree["a"] is None
        sawlog.log({"sum": x.sum() + tree["b"]})
        return x

    def answer(x, nothing, tree):
        return x, {"sum": once(np.sum(x) + tree["b"])}

    return fun, answer


@case("scalar_args", args=(X3, 2.0, 3, True), vmap=False, grad=False)
def python_scalar_arguments() -> Program:
    """Python numbers as arguments are traced, like `jax.jit` does."""

    def fun(x, scale, count, flag):
        sawlog.log({"scaled": x * scale, "count": jnp.asarray(count), "flag": jnp.asarray(flag)})
        return x + count

    def answer(x, scale, count, flag):
        logs = {
            "scaled": once(x * np.float32(scale)),
            "count": once(np.int32(count)),
            "flag": once(np.bool_(flag)),
        }
        return x + np.float32(count), logs

    return fun, answer


@case("static_args", args=(X3, 3), static_argnums=(1,), vmap=False)
def static_argument_of_jit() -> Program:
    """`jax.jit` with a static argument that is used as a Python number."""

    def power(x, n):
        for i in range(n):
            x = x * 2
            sawlog.log("x", x, step=i)
        return x

    def answer(x, n):
        return x * 8, {"x": many([x * 2, x * 4, x * 8], step=range(3))}

    return jax.jit(power, static_argnums=1), answer


@case("static_args", args=(X3, "sum"), static_argnums=(1,), vmap=False)
def string_argument() -> Program:
    """A leaf that is no array is static."""

    def fun(x, how):
        y = x.sum() if how == "sum" else x.mean()
        sawlog.log(how, y)
        return y

    def answer(x, how):
        return np.sum(x), {"sum": once(np.sum(x))}

    return fun, answer


@case("static_args", args=(X3, np.tanh), static_argnums=(1,), vmap=False, grad=False)
def function_argument() -> Program:
    """A function as an argument is static."""

    def fun(x, activation):
        assert activation is np.tanh
        sawlog.log("double", x * 2)
        return x

    def answer(x, activation):
        return x, {"double": once(x * 2)}

    return fun, answer


@case("numpy_args", args=([[1.0, 2.0], 3.0], np.float32(2)), vmap=False, grad=False)
def lists_of_numbers() -> Program:
    """Lists are pytrees of Python numbers; a numpy scalar is an array."""

    def fun(tree, scale):
        sawlog.log({"tree": tree, "scaled": jax.tree.map(lambda leaf: leaf * scale, tree)})
        return scale

    def answer(tree, scale):
        return scale, {
            "tree": once([[f32(1.0), f32(2.0)], f32(3.0)]),
            "scaled": once([[f32(2.0), f32(4.0)], f32(6.0)]),
        }

    return fun, answer


@case("numpy_args", args=(M23, np.array([1, 2, 3], np.int32)))
def numpy_arguments() -> Program:
    """numpy arrays are traced."""

    def fun(m, n):
        y = m @ n.astype(m.dtype)
        sawlog.log({"y": y, "n": n})
        return y

    def answer(m, n):
        y = m @ n.astype(np.float32)
        return y, {"y": once(y), "n": once(n)}

    return fun, answer


@case("named_scope", args=(X3,))
def named_scope() -> Program:
    """A log in a named scope keeps its plain name."""

    def fun(x):
        with jax.named_scope("layer"):
            y = x * 2
            sawlog.log("y", y)
        return jax.named_call(lambda z: z + 1, name="tail")(y)

    def answer(x):
        return x * 2 + 1, {"y": once(x * 2)}

    return fun, answer


@case("compile_time_eval", args=(X3,))
def compile_time_eval() -> Program:
    """`ensure_compile_time_eval` around code without logs."""

    def fun(x):
        with jax.ensure_compile_time_eval():
            size = int(jnp.arange(4).sum())
        y = x * size
        sawlog.log("y", y)
        return y

    def answer(x):
        return x * 6, {"y": once(x * 6)}

    return fun, answer


@case("pure_callback", args=(X3,), vmap=False, grad=False)
def beside_a_pure_callback() -> Program:
    """A host callback of the user's own in the same program."""

    def fun(x):
        shape = jax.ShapeDtypeStruct((3,), jnp.float32)
        y = jax.pure_callback(lambda v: np.asarray(v) + 1, shape, x)
        sawlog.log("y", y)
        return y

    def answer(x):
        return x + 1, {"y": once(x + 1)}

    return fun, answer


@case("user_effect", args=(X3,))
def beside_a_debug_print() -> Program:
    """Another effect in the same program."""

    def fun(x):
        sawlog.log("x", x)
        jax.debug.callback(lambda v: None, x)
        sawlog.log("x", x + 1)
        return x

    def answer(x):
        return x, {"x": many([x, x + 1])}

    return fun, answer
