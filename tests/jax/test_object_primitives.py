"""Operations of JAX that are objects (``HiPrim``): their function and their rules may log."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.experimental import hijax

import sawlog
from sawlog.errors import UnsupportedPrimitiveError

from .test_masked_rules import RAN, backwards, branch

HiPrim: Any = getattr(hijax, "HiPrim", None) or hijax.VJPHiPrimitive
THREE = jnp.float32(3)
NEWER = jax.__version_info__ >= (0, 11)


class Base(HiPrim):
    """Twice x, and logs it."""

    def __init__(self, aval: Any) -> None:
        self.in_avals, self.out_aval, self.params = (aval,), aval, {}
        super().__init__()

    def expand(self, x):
        sawlog.log("function", x)
        return x * 2


class Double(Base):
    """The same with rules for reverse mode, which log."""

    def vjp_fwd(self, nonzero, x):
        sawlog.log("forward", x)
        return self(x), x

    def vjp_bwd_retval(self, x, gradient):
        sawlog.log("backward", gradient + x)
        return (gradient * 2,)


class DoubleForwards(Base):
    """The same with a rule for forward mode."""

    def jvp(self, primals, tangents):
        sawlog.log("jvp", primals[0])
        return self(*primals), tangents[0] * 2


def double(x: Any) -> Any:
    return Double(jax.typeof(x))(x)


def double_forwards(x: Any) -> Any:
    return DoubleForwards(jax.typeof(x))(x)


def twice(fun: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: lax.scan(lambda c, _: (fun(c), None), x, None, length=2)[0]


STAGED: dict[str, Callable[[Any], Any]] = {
    "plain": lambda f: f,
    "jit": jax.jit,
    "jit in jit": lambda f: jax.jit(jax.jit(f)),
    "cond": lambda f: lambda x: lax.cond(x > 0, f, lambda x: x, x),
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0],
}


@pytest.mark.parametrize("staged", STAGED)
def test_objects_of_users(staged: str) -> None:
    fun = STAGED[staged](double)
    for way in (lambda f: f, jax.jit):
        out, logs = sawlog.spool(way(fun))(THREE)
        assert out == 6
        assert {name: float(np.squeeze(logs[name])) for name in logs} == {"function": 3}
        slope, logs = sawlog.spool(way(jax.grad(fun)))(THREE)
        assert slope == 2
        found = {name: float(np.squeeze(logs[name])) for name in logs}
        assert found == {"function": 3, "forward": 3, "backward": 4}
        slope, logs = jax.grad(sawlog.spool(fun), has_aux=True)(THREE)
        assert (slope, list(logs)) == (2, ["function"])
    (_, slope), logs = sawlog.spool(lambda x: jax.jvp(STAGED[staged](double_forwards), (x,), (x,)))(
        THREE
    )
    assert slope == 6
    assert {name: float(np.squeeze(logs[name])) for name in logs} == {"function": 3, "jvp": 3}


def test_objects_in_loops() -> None:
    slope, logs = sawlog.spool(jax.grad(twice(double)))(THREE)
    assert slope == 4
    assert set(logs) == {"function", "forward", "backward"}
    np.testing.assert_array_equal(logs["forward"], [3, 6])
    np.testing.assert_array_equal(logs["function"], [3, 6])
    np.testing.assert_array_equal(logs["backward"], [7, 5])
    seen: list = []
    assert sawlog.tap(jax.grad(twice(double)), seen.append, argnames="backward")(THREE) == 4
    jax.effects_barrier()
    assert [float(logs["backward"]) for logs in seen] == [7, 5]
    assert sawlog.spool(twice(double), argnames="other")(THREE)[0] == 12
    assert sawlog.strip(jax.grad(twice(double)))(THREE) == 4


def test_unused_results_of_objects() -> None:
    """JAX removes an equation without effects whose result is not used."""

    def fun(x):
        def body(c, _):
            double(THREE)
            return c * 2, None

        return lax.scan(body, x, None, length=2)[0]

    for way in (fun, jax.grad(fun), jax.jit(jax.grad(fun))):
        _, logs = sawlog.spool(way)(THREE)
        np.testing.assert_array_equal(logs["function"], [3, 3])


@pytest.mark.skipif(not NEWER, reason="an option of newer JAX")
def test_custom_vjp_as_an_object() -> None:
    """Such a function is one that JAX maps in its own way."""
    fun = backwards(True, generic_batching=True)
    for way in (fun, jax.jit(fun), twice(fun)):
        assert list(sawlog.spool(way)(THREE)[1]) == ["primal"]
    for way in (jax.grad(fun), jax.grad(jax.jit(fun)), jax.jit(jax.grad(fun))):
        slope, logs = sawlog.spool(way)(THREE)
        assert slope == 2
        assert {name: float(logs[name]) for name in logs} == {"forward": 3, "backward": 4}
    slope, logs = sawlog.spool(jax.grad(twice(fun)))(THREE)
    assert (slope, set(logs)) == (4, {"forward", "backward"})
    np.testing.assert_array_equal(logs["forward"], [3, 6])
    np.testing.assert_array_equal(logs["backward"], [7, 5])
    lanes = jnp.array([1.0, -1.0, 3.0])
    for mapped in (jax.vmap(jax.grad(fun)), jax.grad(lambda x: jax.vmap(jax.jit(fun))(x).sum())):
        _, logs = sawlog.spool(mapped)(lanes)
        assert set(logs) == {"forward", "backward"}
        np.testing.assert_array_equal(logs["forward"], lanes)
        np.testing.assert_array_equal(logs["backward"], lanes + 1)
    for primal in (False, True):
        some = branch(backwards(primal, generic_batching=True))
        _, logs = sawlog.spool(jax.grad(lambda x, some=some: jax.vmap(some)(x).sum()))(lanes)
        assert set(logs) == {"forward", "backward"}
        for name in logs:
            np.testing.assert_array_equal(np.squeeze(logs.mask[name]), RAN)


def test_a_staged_root() -> None:
    """`custom_root` is such an object in newer JAX."""

    def root(a):
        def residual(x):
            sawlog.log("residual", x)
            return x - a

        def solve_tangent(g, y):
            sawlog.log("tangent", y)
            return y / g(1.0)

        return lax.custom_root(residual, 0.0, lambda g, x: x - g(x), solve_tangent)

    for way in STAGED.values():
        slope, logs = sawlog.spool(jax.grad(way(root)))(2.0)
        assert slope == 1
        np.testing.assert_array_equal(np.ravel(logs["residual"]), [0, 2, 2])
        _, logs = sawlog.spool(lambda a, way=way: jax.jvp(way(root), (a,), (1.0,)))(2.0)
        assert set(logs) == {"residual", "tangent"}
        assert np.squeeze(logs["tangent"]) == -1


# --- types of one's own ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Pair:
    """A value that JAX does not know."""

    one: Any
    two: Any


@dataclasses.dataclass(frozen=True)
class PairType(hijax.HiType):
    """The type of a :class:`Pair`."""

    of: Any

    def lo_ty(self):
        return [self.of, self.of]

    def lower_val(self, pair):
        return [pair.one, pair.two]

    def raise_val(self, one, two):
        return Pair(one, two)


class Joined(HiPrim):
    """A pair of x and its double."""

    def __init__(self, aval: Any) -> None:
        self.in_avals, self.out_aval, self.params = (aval,), PairType(aval), {}
        super().__init__()

    def expand(self, x):
        return Pair(x, 2 * x)


class Added(HiPrim):
    """The sum of a pair."""

    def __init__(self, aval: Any) -> None:
        self.in_avals, self.out_aval, self.params = (PairType(aval),), aval, {}
        super().__init__()

    def expand(self, pair):
        return pair.one + pair.two


class AddedWithLog(Added):
    """The same with a log, which JAX calls when the program is lowered."""

    def expand(self, pair):
        sawlog.log("one", pair.one)
        return super().expand(pair)


def through_a_pair(added: Any) -> Any:
    def fun(x):
        kind = jax.typeof(x)
        y = added(kind)(Joined(kind)(x))
        sawlog.log("y", y)
        return y

    return fun


@pytest.mark.parametrize("way", STAGED)
def test_logs_beside_types_of_ones_own(way: str) -> None:
    fun = STAGED[way](through_a_pair(Added))
    out, logs = sawlog.spool(fun)(THREE)
    assert out == 9
    assert np.squeeze(logs["y"]) == 9
    assert sawlog.tap(fun, lambda logs: None)(THREE) == 9


@pytest.mark.parametrize("transform", [sawlog.spool, lambda f: sawlog.tap(f, lambda logs: None)])
@pytest.mark.parametrize("used", [True, False])
def test_a_log_that_only_lowering_sees_is_an_error(transform: Any, used: bool) -> None:
    def fun(x):
        y = through_a_pair(AddedWithLog)(x)
        return y if used else x

    with pytest.raises(UnsupportedPrimitiveError, match=r"'one' at .*test_object_primitives"):
        transform(fun)(THREE)
