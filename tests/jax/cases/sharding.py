"""Programs on four devices: `shard_map` and `pmap`.

Per-shard logs gain the mesh axes after the entry axis; tap calls back once a shard.
"""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import sawlog

from .base import ONE, X4, X8, Program, case, many, once

M44 = np.arange(16, dtype=np.float32).reshape(4, 4)


def line() -> Mesh:
    """Four devices in a row."""
    return Mesh(np.array(jax.devices()[:4]), ("i",))


def square() -> Mesh:
    """Four devices in a square."""
    return Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("i", "j"))


@case("shard_map", args=(X8,), mesh_ndim=1, tap_ordered=False, vmap=False, grad=False)
def shard_map_one_shot() -> Program:
    """One log: [mesh, ...]."""

    def fun(x):
        def shard(x):
            sawlog.log("x", x * 2)
            return x + 1

        return jax.shard_map(shard, mesh=line(), in_specs=P("i"), out_specs=P("i"))(x)

    def answer(x):
        return x + 1, {"x": once((x * 2).reshape(4, 2))}

    return fun, answer


@case(
    "shard_map",
    "several_sites",
    "steps",
    args=(X8,),
    mesh_ndim=1,
    tap_ordered=False,
    vmap=False,
    grad=False,
)
def shard_map_two_sites() -> Program:
    """Two logs: [entries, mesh, ...], and steps [entries, mesh]."""

    def fun(x):
        def shard(x):
            sawlog.log("x", x, step=lax.axis_index("i"))
            sawlog.log("x", x * 2, step=7)
            return x

        return jax.shard_map(shard, mesh=line(), in_specs=P("i"), out_specs=P("i"))(x)

    def answer(x):
        rows = x.reshape(4, 2)
        steps = [np.arange(4, dtype=np.int32), np.full(4, 7, np.int32)]
        return x, {"x": many([rows, rows * 2], step=steps)}

    return fun, answer


@case("shard_map", "psum", args=(X8,), mesh_ndim=1, tap_ordered=False, vmap=False, grad=False)
def shard_map_psum() -> Program:
    """A sum over the mesh, and the part of each shard."""

    def fun(x):
        def shard(x):
            part = x.sum()
            total = lax.psum(part, "i")
            sawlog.log({"part": part, "total": total})
            return total

        return jax.shard_map(shard, mesh=line(), in_specs=P("i"), out_specs=P())(x)

    def answer(x):
        parts = np.sum(x.reshape(4, 2), axis=1)
        total = np.sum(x)
        return total, {"part": once(parts), "total": once(np.full(4, total))}

    return fun, answer


@case(
    "shard_map",
    "replicated",
    args=(X8, ONE),
    mesh_ndim=1,
    tap_ordered=False,
    vmap=False,
    grad=False,
)
def shard_map_replicated_value() -> Program:
    """A value that is the same on each shard is there once for each."""

    def fun(x, scale):
        def shard(x, scale):
            sawlog.log({"scale": scale, "constant": 3})
            return x * scale

        specs = (P("i"), P())
        return jax.shard_map(shard, mesh=line(), in_specs=specs, out_specs=P("i"))(x, scale)

    def answer(x, scale):
        logs = {"scale": once(np.full(4, scale)), "constant": once(np.full(4, 3, np.int32))}
        return x * scale, logs

    return fun, answer


@case("shard_map", "scan", args=(X8,), mesh_ndim=1, tap_ordered=False, vmap=False, grad=False)
def shard_map_scan_inside() -> Program:
    """A loop in each shard: [entries, mesh]."""

    def fun(x):
        def shard(x):
            def body(carry, v):
                carry = carry + v
                sawlog.log("carry", carry)
                return carry, None

            return lax.scan(body, x[0] * 0, x)[0][None]

        return jax.shard_map(shard, mesh=line(), in_specs=P("i"), out_specs=P("i"))(x)

    def answer(x):
        sums = np.cumsum(x.reshape(4, 2), axis=1)
        return sums[:, -1], {"carry": many([sums[:, 0], sums[:, 1]])}

    return fun, answer


@case("shard_map", "scan", args=(X4,), mesh_ndim=1, tap_ordered=False, vmap=False, grad=False)
def shard_map_inside_scan() -> Program:
    """shard_map in a loop: [entries, mesh, ...]."""

    def fun(x):
        def shard(x):
            sawlog.log("x", x)
            return x * 2

        sharded = jax.shard_map(shard, mesh=line(), in_specs=P("i"), out_specs=P("i"))
        return lax.scan(lambda c, _: (sharded(c), None), x, length=2)[0]

    def answer(x):
        return x * 4, {"x": many([x.reshape(4, 1), x.reshape(4, 1) * 2])}

    return fun, answer


@case("shard_map", "mesh_2x2", args=(M44,), mesh_ndim=2, tap_ordered=False, vmap=False, grad=False)
def shard_map_square_mesh() -> Program:
    """Two mesh axes: [i, j, ...]."""

    def fun(m):
        def shard(block):
            sawlog.log({"block": block, "sum": block.sum()})
            return block * 2

        specs = P("i", "j")
        return jax.shard_map(shard, mesh=square(), in_specs=specs, out_specs=specs)(m)

    def answer(m):
        blocks = m.reshape(2, 2, 2, 2).transpose(0, 2, 1, 3)
        return m * 2, {"block": once(blocks), "sum": once(np.sum(blocks, axis=(2, 3)))}

    return fun, answer


@case(
    "shard_map",
    "mesh_2x2",
    "psum",
    args=(M44,),
    mesh_ndim=2,
    tap_ordered=False,
    vmap=False,
    grad=False,
)
def shard_map_square_mesh_psum() -> Program:
    """A sum over one of two axes; the argument is split over one axis only."""

    def fun(m):
        def shard(rows):
            total = lax.psum(rows.sum(), "i")
            sawlog.log({"rows": rows[:, 0], "total": total})
            return rows + total

        return jax.shard_map(shard, mesh=square(), in_specs=P("i"), out_specs=P("i"))(m)

    def answer(m):
        total = np.sum(m)
        rows = np.stack([[m[:2, 0], m[:2, 0]], [m[2:, 0], m[2:, 0]]])
        return m + total, {"rows": once(rows), "total": once(np.full((2, 2), total))}

    return fun, answer


@case("shard_map", "jit", args=(X8,), mesh_ndim=1, tap_ordered=False, vmap=False, grad=False)
def shard_map_with_jit() -> Program:
    """jit around and in a shard_map, on an argument that is sharded already."""

    @jax.jit
    def helper(x):
        sawlog.log("x", x)
        return x * 2

    def fun(x):
        sharded = jax.shard_map(helper, mesh=line(), in_specs=P("i"), out_specs=P("i"))
        placed = jax.device_put(x, NamedSharding(line(), P("i")))
        return jax.jit(sharded)(placed)

    def answer(x):
        return x * 2, {"x": once(x.reshape(4, 2))}

    return fun, answer


@case("shard_map", "grad", args=(X8,), mesh_ndim=1, tap_ordered=False, vmap=False, grad=False)
def grad_of_shard_map() -> Program:
    """A sharded loss under grad: each shard's log once."""

    def fun(x):
        def shard(x):
            y = x * x
            sawlog.log("y", y)
            return lax.psum(y.sum(), "i")

        loss = jax.shard_map(shard, mesh=line(), in_specs=P("i"), out_specs=P())
        return jax.grad(loss)(x)

    def answer(x):
        return 2 * x, {"y": once((x * x).reshape(4, 2))}

    return fun, answer


@case("shard_map", "outside", args=(X8,), tap_ordered=False, vmap=False, grad=False)
def log_beside_shard_map() -> Program:
    """A log outside of the shard_map is an ordinary one."""

    def fun(x):
        sharded = jax.shard_map(
            lambda x: lax.psum(x.sum(), "i"), mesh=line(), in_specs=P("i"), out_specs=P()
        )
        total = sharded(x)
        sawlog.log("total", total)
        return total

    def answer(x):
        return np.sum(x), {"total": once(np.sum(x))}

    return fun, answer


@case("pmap", args=(X8.reshape(4, 2),), mesh_ndim=1, tap_ordered=False, vmap=False, grad=False)
def pmap() -> Program:
    """pmap is a map over devices: [devices, ...]."""

    def fun(x):
        def device(row):
            sawlog.log("row", row)
            return row.sum()

        return jax.pmap(device)(x)

    def answer(x):
        return np.sum(x, axis=1), {"row": once(x)}

    return fun, answer


@case("pmap", "psum", "scan", args=(X4,), mesh_ndim=1, tap_ordered=False, vmap=False, grad=False)
def pmap_psum_in_scan() -> Program:
    """A collective in a loop in a pmap."""

    def fun(x):
        def device(v):
            def body(carry, i):
                carry = carry + lax.psum(v, "d")
                sawlog.log("carry", carry, step=i)
                return carry, None

            return lax.scan(body, v, jnp.arange(2))[0]

        return jax.pmap(device, axis_name="d")(x)

    def answer(x):
        total = np.sum(x)
        seen = [x + total, x + total + total]
        steps = [np.full(4, i, np.int32) for i in range(2)]
        return seen[-1], {"carry": many(seen, step=steps)}

    return fun, answer


@case("sharding_constraint", args=(X8,), tap_ordered=False, vmap=False, grad=False)
def automatic_sharding() -> Program:
    """Sharding by constraint changes no shapes."""

    @jax.jit
    def helper(x):
        x = lax.with_sharding_constraint(x, NamedSharding(line(), P("i")))
        sawlog.log("x", x * 2)
        return x.sum()

    def fun(x):
        return helper(x)

    def answer(x):
        return np.sum(x), {"x": once(x * 2)}

    return fun, answer
