"""Programs whose values are sharded along explicit axes of a mesh, in their types.

Shapes and values are those of the same program on one device; `test_explicit_meshes` looks at the
shardings, and at options.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import sawlog

from .base import X8, Program, case, many, once

M48 = np.arange(32, dtype=np.float32).reshape(4, 8)


@functools.cache
def line() -> Mesh:
    """Four devices in a row, an explicit axis."""
    return jax.make_mesh((4,), ("x",), axis_types=(AxisType.Explicit,))


@functools.cache
def square() -> Mesh:
    """Four devices in a square, two explicit axes."""
    return jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)


def placed(array: Any, mesh: Mesh, *spec: Any) -> jax.Array:
    """An array on the devices of a mesh."""
    return jax.device_put(array, NamedSharding(mesh, P(*spec)))


def vector() -> tuple[jax.Array]:
    """Eight numbers on four devices."""
    return (placed(X8, line(), "x"),)


def matrix() -> tuple[jax.Array]:
    """A matrix, both of whose axes are sharded."""
    return (placed(M48, square(), "x", "y"),)


@case("explicit_mesh", "scan", "steps", args=matrix, vmap=False, grad=False, tap_ordered=False)
def explicit_scan() -> Program:
    """A loop around a sharded value, in nested loops."""

    def fun(x):
        def body(x, i):
            sawlog.log({"x": x, "total": x.sum()}, step=i)
            return x + 1, None

        def twice(x, _):
            return lax.scan(body, x, jnp.arange(2))[0], None

        return lax.scan(twice, x, length=2)[0]

    def answer(x):
        x, steps = np.asarray(x), np.array([0, 1, 0, 1], np.int32)
        values = [x + i for i in range(4)]
        totals = [value.sum() for value in values]
        return x + 4, {"x": many(values, step=steps), "total": many(totals, step=steps)}

    return fun, answer


@case("explicit_mesh", "scan_reverse", args=vector, vmap=False, grad=False, tap_ordered=False)
def explicit_reverse_scan() -> Program:
    """The last index comes first."""

    def fun(x):
        def body(x, i):
            sawlog.log("x", x * i)
            return x, None

        return lax.scan(body, x, jnp.arange(3), reverse=True)[0]

    def answer(x):
        x = np.asarray(x)
        return x, {"x": many([x * 2, x, x * 0])}

    return fun, answer


@case("explicit_mesh", "cond", "scan", args=matrix, vmap=False, grad=False, tap_ordered=False)
def explicit_branches() -> Program:
    """One branch logs once, the other twice: blank entries are sharded as the real ones."""

    def fun(x):
        def odd(x, i):
            sawlog.log({"x": x}, step=i)
            return x * 2

        def even(x, i):
            sawlog.log({"x": x + 1}, step=i)
            sawlog.log({"x": x + 2}, step=i)
            return x

        def body(x, i):
            return lax.cond(i % 2 == 1, odd, even, x, i), None

        return lax.scan(body, x, jnp.arange(3))[0]

    def answer(x):
        x = np.asarray(x)
        values = [x + 1, x + 2, x, x * 2 + 1, x * 2 + 2]
        steps = np.array([0, 0, 1, 2, 2], np.int32)
        return x * 2, {"x": many(values, step=steps)}

    return fun, answer


@case("explicit_mesh", "several_sites", args=vector, vmap=False, grad=False, tap_ordered=False)
def explicit_sites_sharded_otherwise() -> Program:
    """One name, logged where it is sharded and where it is not."""

    def fun(x):
        sawlog.log("x", x)
        whole = jax.sharding.reshard(x, NamedSharding(jax.typeof(x).sharding.mesh, P(None)))
        sawlog.log("x", whole * 2)
        return x

    def answer(x):
        x = np.asarray(x)
        return x, {"x": many([x, x * 2])}

    return fun, answer


@case("explicit_mesh", "vmap", "cond", args=matrix, vmap=False, grad=False, tap_ordered=False)
def explicit_lanes() -> Program:
    """The mapped axis is sharded, and so is another one; only some lanes log."""

    def fun(x):
        def lane(row):
            def body(row, i):
                lax.cond(
                    row.sum() > 100,
                    lambda: sawlog.log({"row": row}, step=i),
                    lambda: None,
                )
                return row + 1, None

            return lax.scan(body, row, jnp.arange(2))[0]

        return jax.vmap(lane)(x)

    def answer(x):
        x = np.asarray(x)
        masks = [(x + i).sum(axis=1) > 100 for i in range(2)]
        values = [np.where(mask[:, None], x + i, 0) for i, mask in enumerate(masks)]
        steps = [np.where(mask, i, 0).astype(np.int32) for i, mask in enumerate(masks)]
        return x + 2, {"row": many(values, mask=masks, step=steps)}

    return fun, answer


@case("explicit_mesh", "grad", "checkpoint", args=vector, vmap=False, tap_ordered=False)
def explicit_gradient() -> Program:
    """A differentiated loop; what flows back is sharded as well."""

    def fun(x):
        def loss(x):
            @jax.checkpoint
            def body(x, _):
                x = sawlog.log_cotangent("dx", x * x)
                sawlog.log("x", x)
                return x, None

            return lax.scan(body, x, length=2)[0].sum()

        return jax.jit(jax.grad(loss))(x)

    def answer(x):
        x = np.asarray(x)
        logs = {"x": many([x**2, x**4]), "dx": many([np.ones_like(x), 2 * x**2])}
        return 4 * x**3, logs

    return fun, answer


@case(
    "explicit_mesh",
    "shard_map",
    args=vector,
    mesh_ndim=1,
    vmap=False,
    grad=False,
    tap_ordered=False,
)
def explicit_shard_map() -> Program:
    """The axis is manual inside, and leads the logs outside."""

    def fun(x):
        def shard(x):
            sawlog.log("part", x)
            return x * 2

        mesh = jax.typeof(x).sharding.mesh
        return jax.shard_map(shard, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(x)

    def answer(x):
        x = np.asarray(x)
        return x * 2, {"part": once(x.reshape(4, 2))}

    return fun, answer
