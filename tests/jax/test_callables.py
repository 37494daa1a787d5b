"""Whatever can be called, jitted with static and donated arguments: methods, partials, modules."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import sawlog
from sawlog.errors import ArgumentError


@jax.tree_util.register_pytree_node_class
class Scale:
    """An object that is a pytree."""

    def __init__(self, w: Any) -> None:
        self.w = w

    def tree_flatten(self) -> Any:
        return (self.w,), None

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Scale:
        return cls(*children)

    @functools.partial(jax.jit, donate_argnums=1)
    def donates_first(self, x: Any, y: Any) -> Any:
        sawlog.log({"x": x * self.w})
        return x + y

    @functools.partial(jax.jit, donate_argnames="y")
    def donates_second(self, x: Any, y: Any) -> Any:
        sawlog.log({"x": x * self.w})
        return x + y


@pytest.mark.parametrize(
    ("name", "gone"), [("donates_first", (True, False)), ("donates_second", (False, True))]
)
@pytest.mark.parametrize(
    "bind", [getattr, lambda a, name: functools.partial(getattr(Scale, name), a)]
)
def test_bound_functions_donate_what_they_say(name: str, gone: tuple, bind: Callable) -> None:
    x, y = jnp.arange(3.0), jnp.arange(3.0) + 1
    out, logs = sawlog.spool(bind(Scale(jnp.float32(2)), name))(x, y)
    assert (x.is_deleted(), y.is_deleted()) == gone
    assert out.tolist() == [1, 3, 5]
    assert logs["x"].tolist() == [0, 2, 4]


class Agent:
    """An object that is none."""

    @functools.partial(jax.jit, static_argnums=0)
    def step(self, x: Any) -> Any:
        sawlog.log({"x": x})
        return x + 1

    @functools.partial(jax.jit, static_argnums=(0, 2))
    def by_number(self, x: Any, n: int) -> Any:
        return self.repeated(x, n)

    @functools.partial(jax.jit, static_argnames=("self", "n"))
    def by_name(self, x: Any, n: int) -> Any:
        return self.repeated(x, n)

    @functools.partial(jax.jit, static_argnums=(0, -1))
    def from_the_end(self, x: Any, n: int) -> Any:
        return self.repeated(x, n)

    def repeated(self, x: Any, n: int) -> Any:
        for _ in range(n):
            sawlog.log({"x": x})
            x = x + 1
        return x


WAYS: dict[str, Callable[[Any, list], Any]] = {
    "spool": lambda f, seen: lambda *args, **kw: sawlog.spool(f)(*args, **kw)[0],
    "tap": lambda f, seen: sawlog.tap(f, seen.append),
    "spool in jit": lambda f, seen: lambda x, *n: jax.jit(lambda x: sawlog.spool(f)(x, *n)[0])(x),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["step", "by_number", "by_name", "from_the_end"])
def test_methods_with_static_arguments(way: str, name: str) -> None:
    more = () if name == "step" else (3,)
    seen: list = []
    out = WAYS[way](getattr(Agent(), name), seen)(1.0, *more)
    assert float(out) == (2 if name == "step" else 4)
    if way == "tap":
        assert [float(logs["x"]) for logs in seen] == [1.0, 2.0, 3.0][: len(seen)]
        assert len(seen) == (1 if name == "step" else 3)


@functools.partial(jax.jit, static_argnums=0, static_argnames="m")
def powers(n: int, x: Any, *, m: int = 1) -> Any:
    sawlog.log({"x": x * len(range(n)) * len(range(m))})
    return x


def test_partials_with_static_arguments() -> None:
    assert sawlog.spool(functools.partial(powers, m=4))(3, 2.0)[1]["x"] == 24
    assert sawlog.spool(functools.partial(powers, 3))(2.0, m=5)[1]["x"] == 30
    assert sawlog.spool(functools.partial(powers, 3, m=2))(2.0)[1]["x"] == 12


def test_a_static_argument_that_nobody_can_see() -> None:
    def f(n: Any, x: Any) -> Any:
        return powers(n, x)

    with pytest.raises(ArgumentError, match="static_argnums"):
        sawlog.spool(f)(3, 2.0)
    assert sawlog.spool(f, static_argnums=0)(3, 2.0)[1]["x"] == 6


class Counter(nnx.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = nnx.Variable(jnp.float32(0))

    def __call__(self, x: Any) -> Any:
        self.calls[...] += 1
        sawlog.log({"calls": self.calls[...]})
        return x

    def method(self, x: Any) -> Any:
        return self(x)

    @nnx.jit
    def jitted(self, x: Any) -> Any:
        return self(x)


MODULES: dict[str, Callable[[Counter], Any]] = {
    "module": lambda m: m,
    "method": lambda m: m.method,
    "jitted method": lambda m: m.jitted,
    "partial": lambda m: functools.partial(lambda m, x, y: m(x + y), m, y=1.0),
}


@pytest.mark.parametrize("way", ["spool", "tap"])
@pytest.mark.parametrize("kind", MODULES)
def test_what_a_module_of_nnx_counts_arrives(kind: str, way: str) -> None:
    counter, seen = Counter(), []
    fun = MODULES[kind](counter)
    wrapped = sawlog.tap(fun, seen.append) if way == "tap" else sawlog.spool(fun)
    for _ in range(2):
        out = wrapped(1.0)
        if way == "spool":
            seen.append(out[1])
    assert [float(logs["calls"]) for logs in seen] == [1, 2]
    assert float(counter.calls[...]) == 2


def test_static_numbers_of_nnx_jit() -> None:
    def several(m: Counter, k: int, x: Any) -> Any:
        for _ in range(k):
            m(x)
        return x

    counter = Counter()
    _, logs = sawlog.spool(nnx.jit(several, static_argnums=1))(counter, 2, 1.0)
    assert logs["calls"].tolist() == [1, 2]
    assert float(counter.calls[...]) == 2


def test_options_of_the_compiler() -> None:
    options = {"xla_cpu_enable_fast_math": False}
    f = jax.jit(lambda x: (sawlog.log({"x": x}), x + 1)[1], compiler_options=options)
    out, logs = sawlog.spool(f)(1.0)
    assert (float(out), float(logs["x"])) == (2, 1)


def test_jet_logs_the_primal_value() -> None:
    from jax.experimental.jet import jet

    def f(x: Any) -> Any:
        sawlog.log({"x": x})
        return jnp.sin(x)

    (out, terms), logs = sawlog.spool(lambda x: jet(f, (x,), ((1.0,),)))(1.0)
    assert logs["x"].tolist() == 1
    np.testing.assert_allclose([out, terms[0]], [np.sin(1), np.cos(1)], rtol=1e-6)


def test_custom_vjp_with_optimised_checkpoints() -> None:
    @jax.custom_vjp
    def f(x: Any) -> Any:
        return jnp.sin(x)

    def forward(x: Any) -> Any:
        sawlog.log({"forward": x})
        return jnp.sin(x), x

    f.defvjp(forward, lambda x, g: (jnp.cos(x) * g,), optimize_remat=True)
    grad, logs = sawlog.spool(jax.grad(f))(1.0)
    np.testing.assert_allclose(grad, np.cos(1), rtol=1e-6)
    assert logs["forward"].tolist() == 1
    _, logs = sawlog.spool(jax.vmap(jax.grad(f)))(jnp.arange(3.0))
    assert logs["forward"].tolist() == [0, 1, 2]
