"""spool(f) and tap(f) compile to the program of jax.jit, also nested."""

from __future__ import annotations

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
from tests.jax.same import gaps

from .like_jit_programs import both, logs_x, tap_to_list

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
    assert "test_like_jit_programs.py" in text


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
