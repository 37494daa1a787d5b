"""spool(f) and tap(f) treat arguments, outputs and exceptions as jax.jit does."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.export
import numpy as np
import pytest
from jax import numpy as jnp

import sawlog
import sawlog.errors
from sawlog.errors import ArgumentError

from .like_jit_programs import Model, both, last_of

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
