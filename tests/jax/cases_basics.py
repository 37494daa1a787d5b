"""Straight-line programs: sites, values, dtypes, steps, selection, and kinds of arguments."""

from __future__ import annotations

import functools

import jax
import ml_dtypes
import numpy as np
from jax import numpy as jnp

import sawlog

from .cases_base import M23, ONE, X3, X4, Program, case, f32, many, once

# --- Sites ------------------------------------------------------------------------------------


@case("plain", args=(X3,))
def one_site() -> Program:
    """One value, as it is."""

    def fun(x):
        y = x * 2
        sawlog.log({"y": y})
        return y.sum()

    def answer(x):
        return np.sum(x * 2), {"y": once(x * 2)}

    return fun, answer


@case("plain", args=(X3,))
def name_and_value() -> Program:
    """The two-argument form."""

    def fun(x):
        sawlog.log("total", x.sum())
        return x + 1

    def answer(x):
        return x + 1, {"total": once(np.sum(x))}

    return fun, answer


@case("plain", args=(X3,))
def no_site() -> Program:
    """A program without logs gives an empty logdict."""

    def fun(x):
        return x * 3

    def answer(x):
        return x * 3, {}

    return fun, answer


@case("plain", args=(X3,))
def empty_dict() -> Program:
    """Logging an empty dict is no log."""

    def fun(x):
        sawlog.log({})
        return x - 1

    def answer(x):
        return x - 1, {}

    return fun, answer


@case("several_sites", args=(X3,))
def two_sites_one_name() -> Program:
    """Two places under one name are stacked in program order."""

    def fun(x):
        sawlog.log({"v": x})
        y = x * x
        sawlog.log({"v": y})
        return y

    def answer(x):
        return x * x, {"v": many([x, x * x])}

    return fun, answer


@case("several_sites", args=(ONE,), order=("a", "b", "a", "c", "b"))
def interleaved_names() -> Program:
    """Callbacks come in program order, also between names."""

    def fun(x):
        sawlog.log("a", x)
        sawlog.log("b", x + 1)
        sawlog.log("a", x + 2)
        sawlog.log("c", x + 3)
        sawlog.log("b", x + 4)
        return x

    def answer(x):
        logs = {"a": many([x, x + 2]), "b": many([x + 1, x + 4]), "c": once(x + 3)}
        return x, logs

    return fun, answer


@case("several_sites", args=(X3,))
def python_loop() -> Program:
    """A Python loop is several calls of one line: stacked."""

    def fun(x):
        for i in range(3):
            x = x * (i + 1)
            sawlog.log({"x": x}, step=i)
        return x

    def answer(x):
        seen = [x, x * 2, x * 2 * 3]
        return seen[-1], {"x": many(seen, step=range(3))}

    return fun, answer


@case("several_sites", args=(X3,))
def helper_called_three_times() -> Program:
    """A plain Python helper with a log in it."""

    def helper(x):
        sawlog.log("in", x)
        return x * 2

    def fun(x):
        return helper(helper(helper(x)))

    def answer(x):
        return x * 8, {"in": many([x, x * 2, x * 4])}

    return fun, answer


@case("forty_keys", args=(X3,))
def forty_keys_in_one_dict() -> Program:
    """Forty keys in one call; order does not depend on their number."""

    def fun(x):
        sawlog.log({f"key{i}": x * i for i in range(40)})
        return x.sum()

    def answer(x):
        return np.sum(x), {f"key{i}": once(x * np.float32(i)) for i in range(40)}

    return fun, answer


@case("plain", args=(X3,))
def same_value_under_two_names() -> Program:
    """One array, two keys of one call."""

    def fun(x):
        sawlog.log({"a": x, "b": x})
        return x

    def answer(x):
        return x, {"a": once(x), "b": once(x)}

    return fun, answer


@case("plain", args=(X3,))
def constant_value() -> Program:
    """A value that does not depend on the arguments."""

    def fun(x):
        sawlog.log("constant", jnp.arange(3))
        sawlog.log("numpy", np.array([1.0, 2.0], np.float32))
        return x

    def answer(x):
        return x, {"constant": once(np.arange(3, dtype=np.int32)), "numpy": once(f32(1.0, 2.0))}

    return fun, answer


@case("plain", args=(X3,))
def argument_logged_unchanged() -> Program:
    """The argument itself is both the log and the output."""

    def fun(x):
        sawlog.log("x", x)
        return x

    def answer(x):
        return x, {"x": once(x)}

    return fun, answer


@case("plain", args=(X3,), grad=False)
def output_none() -> Program:
    """A program that returns nothing but logs."""

    def fun(x):
        sawlog.log("x", x + 1)

    def answer(x):
        return None, {"x": once(x + 1)}

    return fun, answer


@case("plain", args=({"w": X3, "b": ONE}, (X3, None)))
def output_pytree() -> Program:
    """Pytrees in, pytrees out."""

    def fun(params, batch):
        out = params["w"] * batch[0] + params["b"]
        sawlog.log("out", out)
        return {"out": out, "none": None, "pair": (out.sum(), params["b"])}

    def answer(params, batch):
        out = params["w"] * batch[0] + params["b"]
        return {"out": out, "none": None, "pair": (np.sum(out), params["b"])}, {"out": once(out)}

    return fun, answer


# --- Values -----------------------------------------------------------------------------------


@case("pytree_value", args=(X3,))
def pytree_value() -> Program:
    """A pytree as a value keeps its structure."""

    def fun(x):
        sawlog.log({"state": {"mean": x.mean(), "parts": (x, [x * 2])}})
        return x

    def answer(x):
        return x, {"state": once({"mean": np.mean(x), "parts": (x, [x * 2])})}

    return fun, answer


@case("pytree_value", args=(X3,))
def pytree_logged_twice() -> Program:
    """Two pytrees under one name are stacked leaf by leaf."""

    def fun(x):
        sawlog.log({"state": {"a": x, "b": x.sum()}}, step=0)
        sawlog.log({"state": {"a": x + 1, "b": x.max()}}, step=1)
        return x

    def answer(x):
        first, second = {"a": x, "b": np.sum(x)}, {"a": x + 1, "b": np.max(x)}
        return x, {"state": many([first, second], step=[0, 1])}

    return fun, answer


@case("pytree_value", "scan", args=(X3,))
def pytree_in_scan() -> Program:
    """A pytree in a loop gains the entry axis at each leaf."""

    def fun(xs):
        def body(carry, x):
            carry = carry + x
            sawlog.log({"tree": {"carry": carry, "pair": (x, -x)}})
            return carry, None

        return jax.lax.scan(body, jnp.float32(0), xs)[0]

    def answer(xs):
        total, seen = np.float32(0), []
        for x in xs:
            total = total + x
            seen.append({"carry": total, "pair": (x, -x)})
        return total, {"tree": many(seen)}

    return fun, answer


@case("dtypes", args=(X4,))
def dtype_small_floats() -> Program:
    """bfloat16 and float16 keep their dtype."""

    def fun(x):
        sawlog.log({"bf16": x.astype(jnp.bfloat16), "f16": x.astype(jnp.float16)})
        return x

    def answer(x):
        logs = {"bf16": once(x.astype(ml_dtypes.bfloat16)), "f16": once(x.astype(np.float16))}
        return x, logs

    return fun, answer


@case("dtypes", args=(np.array([0, 1, 2, 100], np.int32),), grad=False)
def dtype_integers() -> Program:
    """Integers of every width, signed and unsigned."""
    names = ("int8", "int16", "int32", "uint8", "uint16", "uint32")

    def fun(n):
        sawlog.log({name: n.astype(name) for name in names})
        return n * 2

    def answer(n):
        return n * 2, {name: once(n.astype(name)) for name in names}

    return fun, answer


@case("dtypes", args=(X4,))
def dtype_bool_and_complex() -> Program:
    """Truth values and complex numbers."""

    def fun(x):
        sawlog.log({"positive": x > 0, "wave": x + 2j * x})
        return x

    def answer(x):
        wave = (x + 2j * x).astype(np.complex64)
        return x, {"positive": once(x > 0), "wave": once(wave)}

    return fun, answer


@case("dtypes", "prng_key", args=lambda: (jax.random.key(7), X3), vmap=False)
def dtype_prng_key() -> Program:
    """New-style PRNG keys are values like any other."""

    def fun(key, x):
        sawlog.log("key", key)
        first, second = jax.random.split(key)
        sawlog.log({"split": first})
        sawlog.log({"split": second})
        return x + jax.random.uniform(first)

    def answer(key, x):
        first, second = jax.random.split(key)
        out = x + np.asarray(jax.random.uniform(first))
        return out, {"key": once(key), "split": many([first, second])}

    return fun, answer


@case("dtypes", "prng_key", "scan", args=lambda: (jax.random.key(3),), vmap=False, grad=False)
def prng_key_in_scan() -> Program:
    """A PRNG key logged in a loop."""

    def fun(key):
        def body(key, _):
            key, sub = jax.random.split(key)
            sawlog.log("sub", sub)
            return key, jax.random.bits(sub)

        return jax.lax.scan(body, key, length=3)[1]

    def answer(key):
        subs, bits = [], []
        for _ in range(3):
            key, sub = jax.random.split(key)
            subs.append(sub)
            bits.append(np.asarray(jax.random.bits(sub)))
        return np.stack(bits), {"sub": many(subs)}

    return fun, answer


@case("python_scalars", args=(X3,))
def python_scalar_values() -> Program:
    """Python numbers become scalar arrays."""

    def fun(x):
        sawlog.log({"float": 0.5, "int": 3, "flag": True})
        return x

    def answer(x):
        logs = {"float": once(f32(0.5)), "int": once(np.int32(3)), "flag": once(np.bool_(True))}
        return x, logs

    return fun, answer


@case("python_scalars", args=(X3,))
def python_scalar_twice() -> Program:
    """Python numbers under one name, stacked."""

    def fun(x):
        sawlog.log("rate", 0.5)
        sawlog.log("rate", 0.25)
        return x

    def answer(x):
        return x, {"rate": many([f32(0.5), f32(0.25)])}

    return fun, answer


@case("dtypes", args=(np.zeros((0, 3), np.float32),))
def empty_array_value() -> Program:
    """An array without elements."""

    def fun(x):
        sawlog.log("nothing", x)
        return x.sum()

    def answer(x):
        return np.sum(x), {"nothing": once(x)}

    return fun, answer


# --- Steps, tags, names -----------------------------------------------------------------------


@case("steps", args=(X3,))
def step_of_one_site() -> Program:
    """A step goes with its value: a scalar for a single log."""

    def fun(x):
        sawlog.log({"x": x}, step=5)
        return x

    def answer(x):
        return x, {"x": once(x, step=np.int32(5))}

    return fun, answer


@case("steps", args=(X3,), order=("loss", "loss"))
def two_step_axes() -> Program:
    """Several step axes at once."""

    def fun(x):
        sawlog.log({"loss": x.sum()}, step=1, episode=10)
        sawlog.log({"loss": x.max()}, step=2, episode=20)
        return x

    def answer(x):
        return x, {"loss": many([np.sum(x), np.max(x)], step=[1, 2], episode=[10, 20])}

    return fun, answer


@case("steps", args=(X3,))
def different_steps_per_key() -> Program:
    """One key has a step, another an episode, a third nothing."""

    def fun(x):
        sawlog.log({"a": x}, step=3)
        sawlog.log({"b": x}, episode=4)
        sawlog.log({"c": x})
        return x

    def answer(x):
        return x, {
            "a": once(x, step=np.int32(3)),
            "b": once(x, episode=np.int32(4)),
            "c": once(x),
        }

    return fun, answer


@case("steps", "scan", args=(X4,))
def steps_in_scan() -> Program:
    """Step axes of a loop: the index and a value of the carry."""

    def fun(xs):
        def body(carry, x):
            index, total = carry
            total = total + x
            sawlog.log({"total": total}, step=index, episode=index // 2)
            return (index + 1, total), None

        return jax.lax.scan(body, (0, jnp.float32(0)), xs)[0][1]

    def answer(xs):
        totals = list(np.cumsum(xs))
        logged = many(totals, step=range(4), episode=[0, 0, 1, 1])
        return totals[-1], {"total": logged}

    return fun, answer


@case("tags", args=(X3,), options={"tags": "debug"})
def tags_select() -> Program:
    """Only the sites with the tag are seen."""

    def fun(x):
        sawlog.log({"a": x}, tags=("debug", "slow"))
        sawlog.log({"b": x}, tags=("slow",))
        sawlog.log({"c": x})
        return x

    def answer(x):
        return x, {"a": once(x)}

    return fun, answer


@case("tags", "scan", args=(X3,), options={"tags": "inner"})
def tags_select_in_scan() -> Program:
    """Selection reaches into loops."""

    def fun(xs):
        def body(carry, x):
            sawlog.log({"x": x}, tags=["inner"])
            sawlog.log({"carry": carry}, tags=["outer"])
            return carry + x, None

        return jax.lax.scan(body, jnp.float32(0), xs)[0]

    def answer(xs):
        return np.sum(xs), {"x": many(list(xs))}

    return fun, answer


@case("argnames", args=(X3,), options={"argnames": "loss"})
def argnames_one_string() -> Program:
    """A string is one name, not its letters."""

    def fun(x):
        sawlog.log({"loss": x.sum(), "l": x, "o": x, "s": x})
        return x

    def answer(x):
        return x, {"loss": once(np.sum(x))}

    return fun, answer


@case("argnames", args=(X3,), options={"argnames": ["a", "c"]})
def argnames_list() -> Program:
    """Several names, over several sites."""

    def fun(x):
        sawlog.log({"a": x, "b": x})
        sawlog.log({"c": x + 1, "a": x + 2})
        return x

    def answer(x):
        return x, {"a": many([x, x + 2]), "c": once(x + 1)}

    return fun, answer


@case("argnames", "tags", args=(X3,), options={"argnames": ["a", "b"], "tags": "t"})
def argnames_and_tags() -> Program:
    """With both, a site must match both."""

    def fun(x):
        sawlog.log({"a": x, "c": x}, tags=("t",))
        sawlog.log({"b": x})
        return x

    def answer(x):
        return x, {"a": once(x)}

    return fun, answer


@case("prefix", args=(X3,))
def prefix_of_the_site() -> Program:
    """The site's prefix is put before each key."""

    def fun(x):
        sawlog.log({"loss": x.sum(), "x": x}, prefix="train/", step=1)
        return x

    def answer(x):
        one = np.int32(1)
        return x, {"train/loss": once(np.sum(x), step=one), "train/x": once(x, step=one)}

    return fun, answer


@case("prefix", args=(X3,), options={"prefix": "run/"})
def prefix_of_the_transformation() -> Program:
    """The transformation's prefix comes first."""

    def fun(x):
        sawlog.log({"a": x}, prefix="train/")
        sawlog.log({"b": x + 1})
        return x

    def answer(x):
        return x, {"run/train/a": once(x), "run/b": once(x + 1)}

    return fun, answer


# --- Kinds of functions and arguments ---------------------------------------------------------


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
        assert nothing is None and tree["a"] is None
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
