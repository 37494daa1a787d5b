"""`log_cotangent`: what flows back, in every way to differentiate."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

import sawlog

from .place_programs import XS, close, f32, mesh, spooled, tapped
from .places import BACK, FOLDS, chain, fold_steps


def cubed(x: Any) -> Any:
    """3 y where y = x ** 3; what flows back through y is 3, and through x 9 x ** 2."""
    x = sawlog.log_cotangent("dx", x)
    y = sawlog.log_cotangent("dy", x**3)
    return 3 * y


GRADIENTS = {
    "grad": jax.grad,
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](jnp.float32(1))[0],
    "value_and_grad": lambda f: lambda x: jax.value_and_grad(f)(x)[1],
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "grad of jit": lambda f: jax.grad(jax.jit(f)),
    "grad of remat": lambda f: jax.grad(jax.checkpoint(f)),
    "grad of jit of remat": lambda f: jax.grad(jax.jit(jax.checkpoint(f))),
    "linearize and transpose": lambda f: (
        lambda x: jax.linear_transpose(jax.linearize(f, x)[1], x)(jnp.float32(1))[0]
    ),
    "jacrev": jax.jacrev,
    "forward over reverse": lambda f: lambda x: jax.jvp(jax.grad(f), (x,), (x,))[0],
}


@pytest.mark.parametrize("way", GRADIENTS)
def test_cotangent(way: str) -> None:
    gradient, logs = sawlog.spool(GRADIENTS[way](cubed))(f32(2))
    close(gradient, f32(36))
    rows = (1,) if way == "jacrev" else ()  # which maps over the rows of the Jacobian
    close(dict(logs.items()), {"dy": np.full(rows, 3), "dx": np.full(rows, 36)})


def test_cotangent_leaves_everything_as_it_was() -> None:
    plain = lambda x: 3 * x**3
    for fun in (cubed, jax.jit(cubed)):
        assert fun(f32(2)) == plain(f32(2))
        assert jax.grad(fun)(f32(2)) == jax.grad(plain)(f32(2))
        assert sawlog.spool(jax.grad(fun))(f32(2))[0] == jax.grad(plain)(f32(2))
        assert jax.hessian(fun)(f32(2)) == jax.hessian(plain)(f32(2))
        assert sawlog.spool(jax.hessian(fun))(f32(2))[0] == jax.hessian(plain)(f32(2))
    assert str(jax.make_jaxpr(cubed)(1.0)) == str(jax.make_jaxpr(plain)(1.0))


NO_GRADIENT = {
    "no differentiation": cubed,
    "jvp": lambda x: jax.jvp(cubed, (x,), (x,)),
    "jacfwd": jax.jacfwd(cubed),
    "linearize": lambda x: jax.linearize(cubed, x)[1](x),
    "stop_gradient": jax.grad(lambda x: x * lax.stop_gradient(cubed(x))),
    "not used": jax.grad(lambda x: (cubed(x), x)[1]),
    "an integer": lambda n: sawlog.log_cotangent("dn", jnp.int32(3)) + n,
    "gradient outside": None,
}


@pytest.mark.parametrize("way", NO_GRADIENT)
def test_no_gradient_nothing_logged(way: str) -> None:
    if way == "gradient outside":
        gradient, logs = jax.grad(sawlog.spool(cubed), has_aux=True)(f32(2))
        close(gradient, f32(36))
    else:
        logs = spooled(NO_GRADIENT[way], f32(2))
    assert dict(logs) == {}


CHAIN_BACK = jax.grad(chain)


@pytest.mark.parametrize("remat", [False, True])
def test_cotangents_of_a_scan(remat: bool) -> None:
    """In the order of the backward pass, from the last iteration."""
    f = jax.checkpoint(chain) if remat else chain
    logs = spooled(jax.grad(f), f32(3))
    close(logs["dx"], BACK)
    assert logs.step["dx"].tolist() == [3, 2, 1, 0]
    assert [int(one.step["dx"]) for one in tapped(jax.grad(f), f32(3))] == [3, 2, 1, 0]


@pytest.mark.parametrize("mode", FOLDS)
def test_reduced_cotangents(mode: str) -> None:
    logs = spooled(CHAIN_BACK, f32(3), reduce=mode)
    close(logs["dx"], FOLDS[mode](BACK))
    close(logs.step["dx"], fold_steps(mode, [3, 2, 1, 0]))


def test_bounded_cotangents() -> None:
    close(spooled(CHAIN_BACK, f32(3), interval=2)["dx"], BACK[::2])
    close(spooled(CHAIN_BACK, f32(3), window=3)["dx"], BACK[1:])
    close(spooled(CHAIN_BACK, f32(3), capacity={"dx": 3})["dx"], BACK[:3])
    close(sawlog.logify(CHAIN_BACK)(f32(3))[1].asdict(), {"dx": {"replace": BACK[3]}})


def test_cotangent_with_a_reduction_and_tags() -> None:
    def f(x: Any) -> Any:
        def body(x: Any, i: Any) -> Any:
            x = sawlog.log_cotangent("dx", x, reduction="sum", tags="back")
            return x * 0.5, None

        return lax.scan(body, x, jnp.arange(4))[0]

    close(spooled(jax.grad(f), f32(3))["dx"], BACK.sum())
    assert set(spooled(jax.grad(f), f32(3), tags="back")) == {"dx"}
    assert dict(spooled(jax.grad(f), f32(3), tags="front")) == {}
    assert set(spooled(jax.grad(f), f32(3), prefix="p/")) == {"p/dx"}


def test_cotangents_beside_forward_logs() -> None:
    """One name for both directions: what the forward pass logs comes first."""

    def f(x: Any) -> Any:
        sawlog.log({"k": x})
        x = sawlog.log_cotangent("k", x * 2)
        sawlog.log({"k": x})
        return x * 5

    close(spooled(jax.grad(f), f32(3))["k"], f32([3, 6, 5]))


def test_cotangents_in_a_branch() -> None:
    def f(x: Any) -> Any:
        return lax.cond(
            x > 0,
            lambda x: 2 * sawlog.log_cotangent("up", x),
            lambda x: 7 * sawlog.log_cotangent("down", x),
            x,
        )

    close(dict(spooled(jax.grad(f), f32(1)).items()), {"up": f32(2)})
    close(dict(spooled(jax.grad(f), f32(-1)).items()), {"down": f32(7)})
    logs = spooled(jax.vmap(jax.grad(f)), f32([1, -1, 2]))
    assert logs.mask["up"].tolist() == [True, False, True]
    assert logs.mask["down"].tolist() == [False, True, False]
    close(logs["up"][logs.mask["up"]], f32([2, 2]))
    close(logs["down"][logs.mask["down"]], f32([7]))


def test_cotangents_in_a_branch_in_a_scan() -> None:
    def f(xs: Any) -> Any:
        def body(total: Any, x: Any) -> Any:
            y = lax.cond(x > 2, lambda x: x * sawlog.log_cotangent("dx", x), lambda x: x, x)
            return total + y, None

        return lax.scan(body, jnp.float32(0), xs)[0]

    close(spooled(jax.grad(f), XS)["dx"], XS[XS > 2][::-1])


def test_cotangents_in_lanes() -> None:
    xs = f32([1, 2, 3])
    both = {"dy": f32([3, 3, 3]), "dx": 9 * xs**2}
    for fun in (
        sawlog.spool(jax.vmap(jax.grad(cubed))),
        jax.vmap(sawlog.spool(jax.grad(cubed))),
        sawlog.spool(jax.grad(lambda xs: jax.vmap(cubed)(xs).sum())),
    ):
        gradient, logs = fun(xs)
        close(gradient, 9 * xs**2)
        close(dict(logs.items()), both)
    inside = spooled(jax.vmap(jax.grad(chain)), xs)
    close(inside["dx"], np.stack([BACK] * 3, axis=1))
    assert inside.step["dx"].tolist() == [[3] * 3, [2] * 3, [1] * 3, [0] * 3]
    _, outside = jax.vmap(sawlog.spool(jax.grad(chain)))(xs)
    close(outside["dx"], np.stack([BACK] * 3))


def test_cotangent_of_something_that_lanes_share() -> None:
    """A value without the mapped axis gets one gradient, the sum over the lanes."""

    def loss(w: Any, xs: Any) -> Any:
        w = sawlog.log_cotangent("dw", w)
        return jax.vmap(lambda x: w * x)(xs).sum()

    gradient, logs = sawlog.spool(jax.grad(loss))(f32(2), XS)
    close(gradient, XS.sum())
    close(logs["dw"], XS.sum())


def test_cotangent_for_each_example() -> None:
    """Logged inside of vmap, the gradient of every example is seen."""

    def loss(w: Any, xs: Any) -> Any:
        return jax.vmap(lambda x: sawlog.log_cotangent("dw", w * x) ** 2)(xs).sum()

    _, logs = sawlog.spool(jax.grad(loss))(f32(2), XS)
    close(logs["dw"], 2 * 2 * XS)


def test_cotangent_before_a_custom_vjp() -> None:
    @jax.custom_vjp
    def clipped(x: Any) -> Any:
        return 100 * x

    def backward(_: Any, ct: Any) -> Any:
        ct = jnp.clip(100 * ct, -1, 1)
        sawlog.log({"rule": ct})
        return (ct,)

    clipped.defvjp(lambda x: (100 * x, None), backward)

    def f(x: Any) -> Any:
        return 2 * sawlog.log_cotangent("after", clipped(sawlog.log_cotangent("before", x)))

    logs = spooled(jax.grad(f), f32(1))
    close(dict(logs.items()), {"after": f32(2), "rule": f32(1), "before": f32(1)})


def test_cotangent_inside_a_custom_vjp() -> None:
    """The forward rule runs instead of the function, and what it does is not differentiated."""

    @jax.custom_vjp
    def f(x: Any) -> Any:
        return sawlog.log_cotangent("inside", x) ** 2

    f.defvjp(lambda x: (x**2, x), lambda x, ct: (5 * ct,))
    logs = spooled(jax.grad(f), f32(3))
    assert dict(logs) == {}


def test_cotangent_in_a_custom_jvp() -> None:
    @jax.custom_jvp
    def f(x: Any) -> Any:
        return x**2

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        return f(primals[0]), 7 * tangents[0]

    logs = spooled(jax.grad(lambda x: 2 * f(sawlog.log_cotangent("dx", x))), f32(3))
    close(dict(logs.items()), {"dx": f32(14)})


def test_cotangents_of_pytrees() -> None:
    def f(p: Any) -> Any:
        p = sawlog.log_cotangent("dp", p)
        return 2 * p["u"] + (p["v"][0] * jnp.array([3.0, 4.0])).sum()

    p = {"u": f32(1), "v": [f32([1, 2])]}
    logs = spooled(jax.grad(f), p)
    close(logs["dp"], {"u": f32(2), "v": [f32([3, 4])]})


def test_cotangents_of_what_is_not_used_are_zero() -> None:
    def f(p: Any) -> Any:
        p = sawlog.log_cotangent("dp", p)
        return 2 * p["u"]

    logs = spooled(jax.grad(f), {"u": f32(1), "v": f32(1)})
    close(logs["dp"], {"u": f32(2), "v": f32(0)})


def test_cotangents_of_integers_beside_floats() -> None:
    """What has no gradient passes, and stays out."""

    def f(x: Any) -> Any:
        p = sawlog.log_cotangent("dp", {"x": x, "n": jnp.int32(3), "flag": True})
        assert p["n"].dtype == jnp.int32
        return p["x"] * p["n"] * p["flag"]

    logs = spooled(jax.grad(f), f32(2))
    assert logs["dp"]["n"] is None
    assert logs["dp"]["flag"] is None
    close(logs["dp"]["x"], f32(3))


def test_cotangents_have_the_dtype_of_the_value() -> None:
    def f(x: Any) -> Any:
        return 3 * sawlog.log_cotangent("dx", x.astype(jnp.bfloat16)).astype(jnp.float32)

    assert spooled(jax.grad(f), f32(2))["dx"].dtype == jnp.bfloat16


def test_cotangents_of_jacrev() -> None:
    """One backward pass for each row of the Jacobian."""
    a = f32([[1, 2], [3, 4], [5, 6]])
    jacobian, logs = sawlog.spool(jax.jacrev(lambda x: a @ sawlog.log_cotangent("dx", x)))(
        f32([1, 1])
    )
    close(jacobian, a)
    close(logs["dx"], a)


def test_cotangents_of_vjp_called_twice() -> None:
    def f(x: Any) -> Any:
        _, pull = jax.vjp(cubed, x)
        return pull(jnp.float32(1))[0] + pull(jnp.float32(10))[0]

    close(dict(spooled(f, f32(2)).items()), {"dy": f32([3, 30]), "dx": f32([36, 360])})


def test_cotangents_of_a_gradient_step_in_a_scan() -> None:
    """Training: one gradient at every step of an outer scan."""

    def step(w: Any, i: Any) -> Any:
        gradient = jax.grad(lambda w: sawlog.log_cotangent("dw", w, step=i) ** 2)(w)
        return w - 0.25 * gradient, None

    logs = spooled(lambda w: lax.scan(step, w, jnp.arange(3))[0], f32(8))
    close(logs["dw"], f32([16, 8, 4]))
    assert logs.step["dw"].tolist() == [0, 1, 2]
    logs = spooled(
        lambda w: lax.fori_loop(0, w.astype(int), lambda i, w: step(w, i)[0], w), f32(8), capacity=3
    )
    close(logs["dw"], f32([16, 8, 4]))
    assert logs.dropped["dw"] == 5


def test_cotangents_in_shards() -> None:
    def shard(xs: Any) -> Any:
        xs = sawlog.log_cotangent("dx", xs)
        return xs**2

    def f(xs: Any) -> Any:
        mapped = jax.shard_map(shard, mesh=mesh(), in_specs=P("i"), out_specs=P("i"))
        return mapped(xs).sum()

    xs = np.arange(8, dtype=f32)
    close(spooled(jax.grad(f), xs)["dx"], (2 * xs).reshape(4, 2))


def test_double_grad() -> None:
    """The gradient is logged where it is computed; that of the gradient is not what was asked."""

    def f(x: Any) -> Any:
        sawlog.log({"x": x})
        return sawlog.log_cotangent("dx", x) ** 3

    second, logs = sawlog.spool(jax.grad(jax.grad(f)))(f32(2))
    close(second, f32(12))
    close(logs["x"], f32(2))
    close(np.reshape(logs["dx"], -1)[0], f32(12))
    second, logs = sawlog.spool(jax.hessian(f))(f32(2))
    close(second, f32(12))
    close(logs["x"], f32(2))
    product, logs = sawlog.spool(lambda x: jax.jvp(jax.grad(f), (x,), (f32(10),)))(f32(2))
    close(product, (f32(12), f32(120)))
    close(dict(logs.items()), {"x": f32(2), "dx": f32(12)})
    product, logs = sawlog.spool(lambda x: jax.linearize(jax.grad(f), x)[1](f32(10)))(f32(2))
    close(product, f32(120))
    close(dict(logs.items()), {"x": f32(2), "dx": f32(12)})


@pytest.mark.parametrize("options", [{}, {"reduce": "sum"}, {"window": 2}, {"interval": 2}])
def test_cotangents_and_hessian_vector_products(options: dict[str, Any]) -> None:
    """Forward over reverse through a scan with both kinds of logs."""

    def f(x: Any) -> Any:
        def body(x: Any, i: Any) -> Any:
            sawlog.log({"x": x}, step=i)
            x = sawlog.log_cotangent("dx", x)
            return x * x, None

        return lax.scan(body, x, jnp.arange(3))[0]

    def product(x: Any) -> Any:
        return jax.jvp(jax.grad(f), (x,), (f32(1),))

    x = 1.25
    forward = np.array([x, x**2, x**4])
    backward = np.array([2 * x**4, 4 * x**6, 8 * x**7])
    keep = {
        "reduce": np.sum,
        "window": lambda v: v[-2:],
        "interval": lambda v: v[::2],
    }.get(next(iter(options), ""), lambda v: v)
    (gradient, second), logs = sawlog.spool(product, **options)(f32(x))
    close(gradient, f32(8 * x**7))
    close(second, f32(56 * x**6))
    close(logs["x"], keep(forward))
    close(logs["dx"], keep(backward))
