"""What `spool` and `tap` share with `jax.jit`: caching, arguments, outputs, names, threads."""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.extend.core import jaxpr_as_fun
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import sawlog
import sawlog.errors
from sawlog.errors import ArgumentError
from sawlog.loggers import MemoryLogger
from tests.jax.same import gaps


def tap_to_list(fun: Callable[..., Any], **options: Any) -> Callable[..., tuple[Any, list]]:
    """`tap` in the shape of `spool`: the output, and a list of what the callback was given."""

    def call(*args: Any, **kwargs: Any) -> tuple[Any, list]:
        seen: list[Any] = []
        return sawlog.tap(fun, seen.append, **options)(*args, **kwargs), seen

    return call


def last_of(logs: Any) -> Any:
    """The last thing logged under x, by spool or by tap."""
    return (logs[-1] if isinstance(logs, list) else logs)["x"]


both = pytest.mark.parametrize("transform", [sawlog.spool, tap_to_list], ids=["spool", "tap"])


class Counted:
    """A function that logs its argument and counts how often it is traced."""

    def __init__(self) -> None:
        self.traces = 0

        def fun(x: Any, scale: Any = 2) -> Any:
            self.traces += 1
            sawlog.log({"x": x})
            return x * scale

        self.fun = fun


# -- caching ---------------------------------------------------------------------------------------


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


@pytest.mark.turns(2)
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


# -- arguments -------------------------------------------------------------------------------------


def powers(x: Any, n: int, name: str = "x") -> Any:
    assert isinstance(n, int)
    sawlog.log({name: x})
    for _ in range(n):
        x = x * 2
    return x


STATIC = [
    ({"static_argnums": 1}, (3.0, 2), {}),
    ({"static_argnums": -1}, (3.0, 2), {}),
    ({"static_argnums": (1, 2)}, (3.0, 2, "x"), {}),
    ({"static_argnums": (-1, -2)}, (3.0, 2, "x"), {}),
    ({"static_argnames": "n"}, (3.0,), {"n": 2}),
    ({"static_argnames": "n"}, (3.0, 2), {}),
    ({"static_argnums": 1}, (3.0,), {"n": 2}),
    ({"static_argnames": ("n", "name")}, (3.0,), {"n": 2, "name": "x"}),
]


@both
@pytest.mark.parametrize(("options", "args", "kwargs"), STATIC)
def test_static_arguments(transform: Any, options: Any, args: Any, kwargs: Any) -> None:
    if options == {"static_argnums": -1}:
        jitted = jax.jit(lambda x, n: powers(x, n), **options)
    else:
        jitted = jax.jit(powers, **options)
    for _ in range(2):
        out, logs = transform(jitted)(*args, **kwargs)
        assert out == jitted(*args, **kwargs) == 12
        assert last_of(logs) == 3


@both
def test_static_arguments_retrace_by_value(transform: Any) -> None:
    jitted = jax.jit(powers, static_argnums=1)
    assert [float(transform(jitted)(1.0, n)[0]) for n in (0, 3, 5, 3)] == [1, 8, 32, 8]


@both
@pytest.mark.parametrize(
    "options", [{"donate_argnums": 0}, {"donate_argnums": -2}, {"donate_argnames": "x"}], ids=str
)
def test_donation(transform: Any, options: Any) -> None:
    """The buffer is given away where the plain call does it; older JAX ignores negative numbers."""

    def f(x: Any, y: Any) -> Any:
        sawlog.log({"x": y})
        return x + y

    jitted = jax.jit(f, **options)
    gone = []
    for fun in (jitted, lambda *args: transform(jitted)(*args)[0]):
        x, y = jnp.arange(4.0), jnp.ones(4)
        np.testing.assert_array_equal(fun(x, y), np.arange(4.0) + 1)
        gone.append(x.is_deleted())
        assert not y.is_deleted()
    assert gone[0] == gone[1]
    assert gone[0] or options == {"donate_argnums": -2}


@both
def test_a_donated_value_can_be_logged(transform: Any) -> None:
    jitted = jax.jit(lambda x: (sawlog.log({"x": x}), x + 1)[1], donate_argnums=0)
    out, logs = transform(jitted)(jnp.arange(3.0))
    np.testing.assert_array_equal(out, [1, 2, 3])
    np.testing.assert_array_equal(last_of(logs), [0, 1, 2])


@both
def test_keywords_defaults_and_variadic_functions(transform: Any) -> None:
    def f(x: Any, /, y: Any = 2.0, *rest: Any, z: Any, w: Any = 5.0, **more: Any) -> Any:
        sawlog.log({"x": x})
        return x + 10 * y + 100 * sum(rest) + 1000 * z + 1e4 * w + 1e5 * more.get("v", 0.0)

    for args, kwargs in [
        ((1.0,), {"z": 3.0}),
        ((1.0, 4.0), {"z": 3.0}),
        ((1.0, 4.0, 1.0, 2.0), {"z": 3.0, "w": 1.0}),
        ((1.0,), {"z": 3.0, "y": 1.0, "v": 2.0}),
    ]:
        out, logs = transform(f)(*args, **kwargs)
        assert out == f(*args, **kwargs)
        assert last_of(logs) == 1


@both
def test_wrong_arguments_are_the_error_of_the_function(transform: Any) -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'y'"):
        transform(lambda x, y: x)(1.0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        transform(lambda x: x)(1.0, z=2.0)


@both
def test_none_strings_and_functions_as_arguments(transform: Any) -> None:
    traces = []

    def f(x: Any, none: Any, name: str, fun: Any, nested: Any) -> Any:
        traces.append(name)
        assert none is None
        assert isinstance(name, str)
        sawlog.log({"x": x})
        return fun(x) if name == "use" else x + nested["v"]

    def call(x: float, name: str, fun: Any, v: float) -> Any:
        return transform(f)(x, None, name, fun, {"v": v, "kind": "k"})

    out, logs = call(2.0, "use", jnp.square, 1.0)
    assert out == 4
    assert last_of(logs) == 2
    assert call(3.0, "use", jnp.square, 1.0)[0] == 9
    assert traces == ["use"]
    assert call(3.0, "other", jnp.square, 4.0)[0] == 7
    assert call(3.0, "other", jnp.square, 5.0)[0] == 8
    assert traces == ["use", "other"]
    assert call(4.0, "use", jnp.sqrt, 1.0)[0] == 2


@both
@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((1.0, {"u": set()}), {}, ["u", "set"]),
        ((1.0,), {"other": [2.0, bytearray()]}, ["other", "[1]", "bytearray"]),
    ],
)
def test_unhashable_arguments_are_named(
    transform: Any, args: Any, kwargs: Any, words: list[str]
) -> None:
    def f(x: Any, other: Any) -> Any:
        sawlog.log({"x": x})
        return x

    with pytest.raises(ArgumentError) as caught:
        transform(f)(*args, **kwargs)
    for word in (*words, "Hint:"):
        assert word in str(caught.value)


@both
def test_partials(transform: Any) -> None:
    def f(a: Any, x: Any, *, b: Any) -> Any:
        sawlog.log({"x": x})
        return a * x + b

    assert transform(functools.partial(f, 2.0, b=1.0))(3.0)[0] == 7
    assert transform(functools.partial(f, 4.0, b=1.0))(3.0)[0] == 13
    partial = functools.partial(f, 2.0, b="no array" and 5.0)
    assert [float(transform(partial)(x)[0]) for x in (1.0, 2.0)] == [7, 9]
    assert last_of(transform(partial)(8.0)[1]) == 8
    assert transform(functools.partial(f, 2.0))(3.0, b=0.5)[0] == 6.5


class Model:
    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, x: Any) -> Any:
        sawlog.log({"x": self.weight * x})
        return self.weight * x

    def method(self, x: Any) -> Any:
        return self(x)

    @classmethod
    def build(cls, x: Any) -> Any:
        return cls(7.0)(x)

    @staticmethod
    def plain(x: Any) -> Any:
        return Model(9.0)(x)


@both
def test_methods_see_the_present_state(transform: Any) -> None:
    model = Model(2.0)
    assert transform(model.method)(3.0)[0] == 6
    model.weight = 5.0
    out, logs = transform(model.method)(3.0)
    assert out == last_of(logs) == 15
    assert transform(Model.build)(1.0)[0] == 7
    assert transform(Model.plain)(1.0)[0] == transform(model.plain)(1.0)[0] == 9


@both
def test_methods_of_two_objects_are_two_functions(transform: Any) -> None:
    one, two = Model(1.0), Model(2.0)
    for _ in range(2):
        assert transform(one.method)(3.0)[0] == 3
        assert transform(two.method)(3.0)[0] == 6


@both
def test_a_transformed_method_does_not_retrace(transform: Any) -> None:
    class Counting:
        traces = 0

        def method(self, x: Any) -> Any:
            self.traces += 1
            sawlog.log({"x": x})
            return x

    thing = Counting()
    transformed = sawlog.spool(thing.method) if transform is sawlog.spool else None
    transformed = transformed or sawlog.tap(thing.method, lambda logs: None)
    for x in (1.0, 2.0):
        transformed(x)
    assert thing.traces == 1


@both
def test_callable_objects(transform: Any) -> None:
    model = Model(2.0)
    out, logs = transform(model)(3.0)
    assert out == last_of(logs) == 6


@both
def test_equal_objects_do_not_share_programs(transform: Any) -> None:
    class Same(Model):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Same)

        def __hash__(self) -> int:
            return 0

    one, two = Same(1.0), Same(2.0)
    assert one == two
    for _ in range(2):
        assert transform(one)(3.0)[0] == 3
        assert transform(two)(3.0)[0] == 6
    partials = functools.partial(one), functools.partial(two)
    assert [float(transform(p)(3.0)[0]) for p in partials] == [3, 6]


@both
def test_objects_that_cannot_be_hashed_or_held_weakly(transform: Any) -> None:
    class Slotted:
        __slots__ = ("weight",)
        __hash__ = None

        def __call__(self, x: Any) -> Any:
            sawlog.log({"x": x})
            return self.weight * x

    thing = Slotted()
    thing.weight = 3.0
    assert transform(thing)(2.0)[0] == 6


@both
def test_a_new_function_at_an_old_address(transform: Any) -> None:
    """Programs are told apart by identity, and an identity can come again."""
    for i in range(20):
        f = lambda x, i=i: (sawlog.log({"x": x}), x + i)[1]
        assert transform(f)(np.float32(1))[0] == 1 + i
        del f


# -- outputs and exceptions ------------------------------------------------------------------------


@both
def test_outputs_that_are_no_arrays(transform: Any) -> None:
    token = object()

    def f(x: Any) -> Any:
        sawlog.log({"x": x})
        return {"a": x, "s": "text", "f": jnp.sin, "o": [token, None, 3, True, 1.5], "t": ()}

    for _ in range(2):
        out, logs = transform(f)(2.0)
        assert out["a"] == 2
        assert out["s"] == "text"
        assert out["f"] is jnp.sin
        assert out["o"][0] is token
        assert out["o"][1] is None
        assert out["o"][2:] == [3, True, 1.5]
        assert out["t"] == ()
        assert last_of(logs) == 2


@both
def test_no_output_and_no_logs(transform: Any) -> None:
    out, logs = transform(lambda: None)()
    assert out is None
    assert len(logs) == 0


@both
@pytest.mark.parametrize("kind", [ValueError, TypeError, KeyError, AttributeError, StopIteration])
@pytest.mark.parametrize("argument", [1.0, "text"], ids=["array", "string"])
def test_exceptions_pass_unchanged(transform: Any, kind: Any, argument: Any) -> None:
    error = kind("mine")
    calls = []

    def f(x: Any) -> Any:
        calls.append(x)
        sawlog.log({"x": 1.0})
        raise error

    with pytest.raises(kind) as caught:
        transform(f)(argument)
    assert caught.value is error
    assert len(calls) == 1


@both
def test_a_failed_trace_leaves_nothing_behind(transform: Any) -> None:
    """Neither a listening context nor a cached half of a program."""
    fail = [True]

    def f(x: Any) -> Any:
        sawlog.log({"x": x})
        if fail:
            raise ValueError("not yet")
        return x

    with pytest.raises(ValueError, match="not yet"):
        transform(f)(1.0)
    assert str(jax.make_jaxpr(lambda x: (sawlog.log({"x": x}), x)[1])(1.0)).count("log") == 0
    fail.clear()
    assert last_of(transform(f)(1.0)[1]) == 1


@both
def test_names_and_docs_are_kept(transform: Any) -> None:
    def some_function(x: Any) -> Any:
        """Its docstring."""
        return x

    if transform is sawlog.spool:
        wrapped = sawlog.spool(some_function)
    else:
        wrapped = sawlog.tap(some_function)
    assert wrapped.__name__ == "some_function"
    assert wrapped.__doc__ == "Its docstring."
    assert sawlog.strip(some_function).__name__ == "some_function"


# -- the program that results ----------------------------------------------------------------------


def equations(jaxpr: Any, name: str) -> list[Any]:
    """Every equation of a primitive, however deep."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == name:
            found.append(eqn)
        for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(inner):
                found.extend(equations(getattr(inner, "jaxpr", inner), name))
    return found


def _is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def test_an_inner_jit_keeps_name_donation_and_shardings() -> None:
    sharding = NamedSharding(jax.make_mesh((4,), ("d",)), P("d"))

    def my_inner_function(x: Any, y: Any) -> Any:
        sawlog.log({"x": x, "y": y})
        return x + y

    inner = jax.jit(
        my_inner_function,
        donate_argnums=1,
        in_shardings=(sharding, None),
        out_shardings=sharding,
        keep_unused=True,
    )
    args = jnp.arange(4.0), jnp.ones(4)
    plain = equations(jax.make_jaxpr(lambda *a: inner(*a))(*args).jaxpr, "jit")
    spooled = jax.make_jaxpr(sawlog.spool(lambda *a: inner(*a)))(*args)
    found = [e for e in equations(spooled.jaxpr, "jit") if e.params["name"] == "my_inner_function"]
    assert len(plain) == len(found) == 1
    want, got = plain[0].params, found[0].params
    assert got["name"] == want["name"] == "my_inner_function"
    assert got["donated_invars"] == want["donated_invars"] == (False, True)
    assert got["in_shardings"] == want["in_shardings"]
    assert got["in_shardings"][0] == sharding
    assert got["out_shardings"][:1] == want["out_shardings"] == (sharding,)
    assert len(got["out_shardings"]) == len(got["out_layouts"]) == 3
    assert got["keep_unused"] == want["keep_unused"] is True
    out, x, y = jaxpr_as_fun(spooled)(*args)
    np.testing.assert_array_equal(out, np.arange(4.0) + 1)
    np.testing.assert_array_equal(x, np.arange(4.0))
    np.testing.assert_array_equal(y, np.ones(4))


def test_the_compiled_program_has_the_name_of_the_function() -> None:
    def my_function(x: Any) -> Any:
        sawlog.log({"x": x})
        return jnp.sin(x)

    assert "my_function" in str(jax.make_jaxpr(sawlog.spool(jax.jit(my_function)))(1.0))
    text = jax.jit(sawlog.spool(my_function)).lower(1.0).as_text()
    assert "@jit_my_function" in text


def test_scopes_and_sources_are_kept() -> None:
    def f(x: Any) -> Any:
        with jax.named_scope("my_scope"):
            y = jnp.sin(x)
        sawlog.log({"y": y})
        return y

    closed = jax.make_jaxpr(sawlog.spool(f))(1.0)
    (sine,) = equations(closed.jaxpr, "sin")
    assert "my_scope" in str(sine.source_info.name_stack)
    text = jax.jit(sawlog.spool(f)).lower(1.0).as_text(debug_info=True)
    assert "my_scope" in text
    assert "test_like_jit.py" in text


def program(kind: str, log: Callable[..., None]) -> Callable[..., Any]:
    """Programs that are the same but for their logs."""

    def step(x: Any, i: Any) -> Any:
        y = jnp.sin(x) * 2
        log({"y": y, "t": (x, i)}, step=i)
        return y

    def scan(x: Any) -> Any:
        return lax.scan(lambda c, i: (step(c, i), c), x, jnp.arange(3))

    def cond(x: Any) -> Any:
        return lax.cond(x > 0, lambda: step(x, 0), lambda: x - 1)

    def loop(x: Any) -> Any:
        return lax.while_loop(lambda v: v < 10, lambda v: step(v, 0) + 11, x)

    def nested(x: Any) -> Any:
        log("outer", x, tags="t")
        return jax.jit(jax.checkpoint(lambda x: scan(x)[0]))(x)

    return {
        "straight": lambda x: step(x, 0),
        "scan": scan,
        "cond": cond,
        "while": loop,
        "nested": nested,
        "grad": jax.grad(lambda x: scan(x)[0]),
        "grad nested": jax.value_and_grad(nested),
        "vmap": lambda x: jax.vmap(lambda v: cond(v) + scan(v)[0])(jnp.stack([x, -x])),
        "hessian": jax.hessian(nested),
        "unused": lambda x: (log({"dead": jnp.cos(x)}), x)[1],
    }[kind]


PROGRAMS = (
    "straight", "scan", "cond", "while", "nested", "grad", "grad nested", "vmap", "hessian",
    "unused",
)  # fmt: skip


@pytest.mark.turns(3)
@pytest.mark.parametrize("kind", PROGRAMS)
def test_without_a_transformation_nothing_is_there(kind: str) -> None:
    """The same HLO and the same jaxpr, without effects, as without the logs."""
    texts, compiled = [], []
    for log in (sawlog.log, lambda *args, **kwargs: None):
        fun = program(kind, log)
        closed = jax.make_jaxpr(fun)(1.0)
        assert not closed.effects
        assert not equations(closed.jaxpr, "log")
        lowered = jax.jit(fun).lower(1.0)
        texts.append(lowered.as_text())
        compiled.append(lowered.compile().as_text().count("custom-call"))
    assert texts[0] == texts[1]
    assert compiled[0] == compiled[1]
    assert "stablehlo.sine" in texts[0] or "stablehlo.cosine" in texts[0] or kind == "unused"


@pytest.mark.parametrize("kind", [k for k in PROGRAMS if k != "while"])
def test_no_effect_is_left_after_spool(kind: str) -> None:
    closed = jax.make_jaxpr(sawlog.spool(program(kind, sawlog.log)))(1.0)
    assert not closed.effects
    assert not equations(closed.jaxpr, "log")


@pytest.mark.turns(3)
@pytest.mark.parametrize("kind", PROGRAMS)
def test_strip_leaves_nothing(kind: str) -> None:
    fun = program(kind, sawlog.log)
    assert sawlog.spool(sawlog.strip(fun))(1.0)[1] == {}
    for got, want in zip(
        jax.tree.leaves(sawlog.strip(fun)(1.0)), jax.tree.leaves(fun(1.0)), strict=True
    ):
        np.testing.assert_array_equal(got, want)


def test_a_plain_jitted_call_after_spool_has_no_effects() -> None:
    fun = jax.jit(program("scan", sawlog.log))
    sawlog.spool(fun)(1.0)
    tap_to_list(fun)(1.0)
    assert not jax.make_jaxpr(fun)(1.0).effects
    assert "custom_call" not in fun.lower(1.0).as_text()


@pytest.mark.turns(2)
@pytest.mark.parametrize("kind", ["scan", "cond", "nested", "grad", "vmap"])
def test_export(kind: str) -> None:
    """Of a program with logs, and of the spooled one."""
    fun = program(kind, sawlog.log)
    plain = jax.export.deserialize(jax.export.export(jax.jit(fun))(1.0).serialize())
    for got, want in zip(jax.tree.leaves(plain.call(1.0)), jax.tree.leaves(fun(1.0)), strict=True):
        np.testing.assert_allclose(got, want, 1e-6)
    exported = jax.export.export(jax.jit(sawlog.spool(fun)))(np.float32(1))
    logs = jax.export.deserialize(exported.serialize()).call(np.float32(1))[1]
    want = sawlog.spool(fun)(np.float32(1))[1]
    assert set(logs) == set(want) >= {"y", "t"}
    for key in want:
        jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, 1e-6), logs[key], want[key])
        np.testing.assert_array_equal(logs.steps.get(key, 0), want.steps.get(key, 0))


def test_lower_and_compile() -> None:
    compiled = jax.jit(sawlog.spool(program("scan", sawlog.log))).lower(1.0).compile()
    _, logs = compiled(1.0)
    assert logs["y"].shape == (3,)


# -- nesting ---------------------------------------------------------------------------------------


def logs_x(x: Any) -> Any:
    sawlog.log({"x": x}, step=1)
    return x * x


def test_spool_in_scan_vmap_and_grad() -> None:
    xs = jnp.arange(3.0)
    in_scan = lax.scan(lambda c, x: (c, sawlog.spool(logs_x)(x)), 0, xs)[1]
    in_vmap = jax.vmap(sawlog.spool(logs_x))(xs)
    for out, logs in (in_scan, in_vmap):
        np.testing.assert_array_equal(out, xs**2)
        np.testing.assert_array_equal(logs["x"], xs)
        np.testing.assert_array_equal(logs.step["x"], [1, 1, 1])
    value, grad = jax.value_and_grad(lambda x: sawlog.spool(logs_x)(x)[1]["x"] ** 3)(2.0)
    assert (value, grad) == (8, 12)
    grads, logs = jax.vmap(jax.grad(sawlog.spool(logs_x), has_aux=True))(xs)
    np.testing.assert_array_equal(grads, 2 * xs)
    np.testing.assert_array_equal(logs["x"], xs)


def test_consumed_logs_do_not_reach_further_out() -> None:
    def outer(x: Any) -> Any:
        sawlog.log({"outer": x})
        _, inner = sawlog.spool(logs_x)(x)
        return inner["x"]

    out, logs = sawlog.spool(outer)(2.0)
    assert out == 2
    assert set(logs) == {"outer"}
    (_, inner), rest = sawlog.spool(sawlog.spool(logs_x))(2.0)
    assert set(inner) == {"x"}
    assert rest == {}
    (_, inner), rest = sawlog.spool(sawlog.spool(logs_x, keep_logs=True))(2.0)
    assert set(inner) == set(rest) == {"x"}
    _, seen = tap_to_list(sawlog.spool(logs_x))(2.0)
    assert seen == []
    (_, inner), seen = tap_to_list(sawlog.spool(logs_x, keep_logs=True))(2.0)
    assert set(inner) == {"x"}
    assert [set(one) for one in seen] == [{"x"}]


def test_keep_logs_with_nobody_around() -> None:
    out, logs = sawlog.spool(logs_x, keep_logs=True)(2.0)
    assert (out, logs["x"]) == (4, 2)
    assert not jax.make_jaxpr(sawlog.spool(logs_x, keep_logs=True))(2.0).effects


def test_log_on_its_own_does_nothing() -> None:
    assert set(sawlog.log({"x": 1.0}, step=3)) == {"x"}
    sawlog.log("x", jnp.ones(3))
    assert logs_x(3.0) == 9
    jaxpr = jax.make_jaxpr(logs_x)(3.0)
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["mul"]


@both
def test_disable_jit(transform: Any) -> None:
    def f(x: Any) -> Any:
        def body(c: Any, i: Any) -> Any:
            sawlog.log({"x": c}, step=i)
            return c + 1, c

        return lax.scan(body, x, jnp.arange(3))[0]

    with jax.disable_jit():
        out, logs = transform(f)(1.0)
    assert out == 4
    if isinstance(logs, list):
        assert [float(one["x"]) for one in logs] == [1, 2, 3]
        assert [int(one.step["x"]) for one in logs] == [0, 1, 2]
    else:
        np.testing.assert_array_equal(logs["x"], [1, 2, 3])
        np.testing.assert_array_equal(logs.step["x"], [0, 1, 2])


def test_disable_jit_with_branches() -> None:
    """Concrete logs hold real entries only, however they came about."""

    def f(xs: Any) -> None:
        def body(c: Any, x: Any) -> Any:
            lax.cond(x > 1, lambda: sawlog.log({"x": x}), lambda: sawlog.log({"y": x}))
            return c, None

        lax.scan(body, 0, xs)

    with jax.disable_jit():
        logs = sawlog.spool(f)(jnp.array([2.0, 0.0, 3.0]))[1]
    assert set(logs) == {"x", "y"}
    assert gaps(logs) == set()
    np.testing.assert_array_equal(logs["x"], [2, 3])
    np.testing.assert_array_equal(logs["y"], [0])


def test_constants_and_closures() -> None:
    """Values closed over, concrete and traced."""
    weights = jnp.arange(3.0)

    def outer(x: Any) -> Any:
        def inner(y: Any) -> Any:
            sawlog.log({"y": y + x + weights})
            return lax.map(lambda v: (sawlog.log({"v": v * x}), v * x)[1], weights).sum() + y

        return sawlog.spool(inner)(2.0)

    for fun in (outer, jax.jit(outer)):
        out, logs = fun(10.0)
        assert out == 32
        assert set(logs) == {"y", "v"}
        np.testing.assert_array_equal(logs["y"], [12, 13, 14])
        np.testing.assert_array_equal(logs["v"], [0, 10, 20])


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


@pytest.mark.turns(2)
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
