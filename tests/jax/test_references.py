"""References to arrays that can be changed (`jax.new_ref`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog
from sawlog.errors import UnsupportedPrimitiveError


def doubled(x: Any) -> Any:
    """Four times x, by a reference that a loop changes."""
    ref = jax.new_ref(x)

    def body(i: Any, carry: Any) -> Any:
        sawlog.log({"ref": ref[...]}, step=i)
        ref[...] = ref[...] * 2
        return carry

    lax.fori_loop(0, 2, body, None)
    return ref[...]


def with_own_rule(x: Any) -> Any:
    """The same with another derivative: 10."""
    fun = jax.custom_vjp(doubled)
    fun.defvjp(lambda x: (doubled(x), None), lambda _, gradient: (gradient * 10,))
    return fun(x)


def keeping_the_gradient(x: Any) -> Any:
    """An argument is a reference, to which the backward pass writes; the forward pass adds."""

    @jax.custom_vjp
    def through(ref: Any, x: Any) -> Any:
        ref[...] = ref[...] + x
        sawlog.log({"ref": ref[...]})
        return x

    def forward(ref: Any, x: Any) -> Any:
        return through(ref, x), ref

    def backward(ref: Any, gradient: Any) -> Any:
        sawlog.log({"gradient": gradient})
        ref[...] = gradient
        return None, gradient

    through.defvjp(forward, backward)
    ref = jax.new_ref(jnp.zeros_like(x))
    through(ref, x)
    gradient = jax.grad(lambda x: 3 * through(ref, x))(x)
    return ref[...] + gradient


PROGRAMS: dict[str, tuple[Callable[[Any], Any], dict[str, list]]] = {
    "loop": (doubled, {"ref": [1, 2]}),
    "custom_vjp": (with_own_rule, {"ref": [1, 2]}),
    "grad": (jax.grad(with_own_rule), {"ref": [1, 2]}),
    "argument": (keeping_the_gradient, {"ref": [1, 2], "gradient": [3]}),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_logs_beside_references(program: str) -> None:
    fun, expected = PROGRAMS[program]
    out, logs = sawlog.spool(fun)(1.0)
    assert out == jax.jit(fun)(1.0)
    assert {key: value.tolist() for key, value in logs.entries().items()} == expected
    _, counts = sawlog.spool(fun, reduce="count")(1.0)
    assert dict(counts) == {key: len(values) for key, values in expected.items()}
    calls: dict[str, list] = {}

    def collect(logs: Any) -> None:
        for key in logs:
            calls.setdefault(key, []).append(float(logs[key]))

    assert sawlog.tap(fun, collect)(1.0) == out
    jax.effects_barrier()
    assert calls == expected


def test_differentiated_from_outside() -> None:
    """The user's rule has the gradient of the output; logged values have their own."""
    spooled = sawlog.spool(with_own_rule)
    gradient, logs = jax.grad(spooled, has_aux=True)(1.0)
    assert gradient == 10
    np.testing.assert_array_equal(logs["ref"], [1, 2])
    assert jax.grad(lambda x: spooled(x)[1]["ref"].sum())(1.0) == 3


def test_a_reference_is_not_changed_twice() -> None:
    """Nothing can evaluate such a function a second time for its logs."""
    with pytest.raises(UnsupportedPrimitiveError, match=r"jax\.Ref.*test_references.*Hint"):
        jax.grad(lambda x: sawlog.spool(keeping_the_gradient)(x)[0])(1.0)


def halved(x: Any) -> Any:
    """A reference that a loop changes, beside values that are differentiated."""
    ref = jax.new_ref(lax.stop_gradient(x))

    def body(carry: Any, i: Any) -> Any:
        ref[...] = ref[...] * 0.5
        sawlog.log({"ref": ref[...], "carry": carry}, step=i)
        return carry * 2, ref[...]

    carry, refs = lax.scan(body, x, jnp.arange(3))
    return carry * refs.sum()


@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.everything_saveable])
def test_recomputed_loops_with_references(policy: Any) -> None:
    fun = jax.grad(jax.checkpoint(halved, policy=policy))
    slope, logs = sawlog.spool(fun)(2.0)
    assert slope == jax.jit(fun)(2.0) == 14
    np.testing.assert_array_equal(logs["ref"], [1, 0.5, 0.25])
    np.testing.assert_array_equal(logs["carry"], [2, 4, 8])


def only_in_a_reference(x: Any) -> Any:
    """A loop of unknown length that changes nothing with a tangent but a reference."""
    ref = jax.new_ref(x)

    def body(i: Any) -> Any:
        sawlog.log({"ref": ref[...]}, step=i)
        ref[...] = ref[...] * 2
        return i + 1

    lax.while_loop(lambda i: i < 3, body, 0)
    return ref[...]


def in_a_reference_and_the_carry(x: Any) -> Any:
    """The same, beside a carry with a tangent."""
    ref = jax.new_ref(x)

    def body(carry: Any) -> Any:
        i, y = carry
        sawlog.log({"ref": ref[...]}, step=i)
        ref[...] = ref[...] * 2
        return i + 1, y * 2

    _, y = lax.while_loop(lambda carry: carry[0] < 3, body, (0, x))
    return ref[...] / 2 + y / 2


def twice_in_a_scan(x: Any) -> Any:
    """Loops of unknown length in a loop of known length."""
    ref = jax.new_ref(x)

    def body(i: Any) -> Any:
        sawlog.log({"ref": ref[...]}, step=i)
        ref[...] = ref[...] * 2
        return i + 1

    lax.scan(lambda _, __: (lax.while_loop(lambda i: i < 3, body, 0), None), 0, None, length=2)
    return ref[...] / 8


def pushed(fun: Callable[[Any], Any], times: int = 1) -> Callable[[Any], Any]:
    """The derivative, by pushing tangents through a linearised function."""

    def derivative(x: Any) -> Any:
        _, push = jax.linearize(fun, x)
        return jnp.stack([push(1.0) for _ in range(times)]).mean()

    return derivative


LINEARIZED: dict[str, Callable[[Callable], Callable]] = {
    "linearize": pushed,
    "pushed twice": lambda f: pushed(f, 2),
    "pushed never": lambda f: lambda x: jax.linearize(f, x)[0] / x,
    "in jit": lambda f: jax.jit(pushed(f)),
    "in vmap": lambda f: lambda x: jax.vmap(pushed(f))(x[None])[0],
    "of linearize": lambda f: pushed(lambda x: x * pushed(f)(x)),
    "of jvp": lambda f: pushed(lambda x: jax.jvp(f, (x,), (x,))[1]),
    "jvp of": lambda f: lambda x: jax.jvp(lambda x: x * pushed(f)(x), (x,), (1.0,))[1],
}


@pytest.mark.parametrize("how", LINEARIZED)
@pytest.mark.parametrize("fun", [only_in_a_reference, in_a_reference_and_the_carry])
def test_linearized_loops_with_references(fun: Callable[[Any], Any], how: str) -> None:
    """JAX runs such a loop again where tangents are pushed, only for the reference."""
    check_linearized(fun, how, [1, 2, 4])


@pytest.mark.parametrize("how", ["linearize", "pushed twice"])
def test_linearized_loops_in_a_loop(how: str) -> None:
    check_linearized(twice_in_a_scan, how, [1, 2, 4, 8, 16, 32])


def check_linearized(fun: Callable[[Any], Any], how: str, expected: list[float]) -> None:
    derivative = LINEARIZED[how](fun)
    seen: list[Any] = []
    x = jnp.float32(1)
    out, logs = sawlog.spool(derivative, capacity=20)(x)
    assert out == sawlog.tap(derivative, lambda logs: seen.append(logs["ref"]))(x) == 8
    jax.effects_barrier()
    assert np.ravel(logs["ref"]).tolist() == np.ravel(seen).tolist() == expected
