"""Losses that see some of the examples at a time: micro-batches, loops over examples, meshes.

Each is a function that splits the batch, and one that does not: its rows are the answer.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

EXAMPLES = 8

PARAMS = {"w": (3, 4), "b": (4,), "v": (4, 2)}


def make() -> tuple[dict[str, Any], Any]:
    """Return parameters and a batch."""
    rng = np.random.default_rng(5)
    params = {name: jnp.asarray(rng.normal(size=shape)) for name, shape in PARAMS.items()}
    return params, jnp.asarray(rng.normal(size=(EXAMPLES, 3)))


@functools.cache
def mesh(*sizes: int, kind: AxisType = AxisType.Auto) -> Any:
    """Return a mesh of the four devices of tests, with the axes ``d`` and ``m``."""
    return jax.make_mesh(sizes, ("d", "m")[: len(sizes)], axis_types=(kind,) * len(sizes))


def sharded(fun: Any, *specs: Any, out: Any, on: Any = None, check_vma: bool = True) -> Any:
    """Return a function of a shard on each device; the parameters are its first argument."""
    on = mesh(4) if on is None else on
    specs = (specs[0] if isinstance(specs[0], dict) else P(), *specs[1:])
    return jax.shard_map(fun, mesh=on, in_specs=specs, out_specs=out, check_vma=check_vma)


def each(p: Any, x: Any) -> Any:
    """Return the loss of each example; they may be along several dimensions."""
    hidden = jnp.tanh(x @ p["w"] + p["b"])
    return ((hidden @ p["v"]) ** 2).sum(-1)


def one(p: Any, x: Any) -> Any:
    """Return the loss of one example ``[3]``."""
    return each(p, x)


@dataclasses.dataclass(frozen=True)
class Splitting:
    """A loss that splits the batch.

    Args:
        name: Its name.
        loss: The loss function.
        reduction: What it returns.
        factored: The blocks whose gradients are projected by factors.
    """

    name: str
    loss: Callable[[Any, Any], Any]
    reduction: str = "none"
    factored: tuple[str, ...] = ("v", "w")


ROWS: list[Splitting] = []


def row(reduction: str = "none", **facts: Any) -> Callable[[Any], Any]:
    """Enter a loss function into the table."""

    def enter(loss: Any) -> Any:
        ROWS.append(Splitting(loss.__name__, loss, reduction, **facts))
        return loss

    return enter


def layers(p: Any, x: Any) -> Any:
    """Return losses behind scanned layers with checkpoints, made of the same parameters."""
    stack = jnp.stack([p["w"][:, :3], p["w"][:, 1:]])
    body = jax.checkpoint(lambda h, w: (jnp.tanh(h @ w), None))
    return each(p, lax.scan(body, x, stack)[0])


# -- loops ------------------------------------------------------------------------------------


@row()
def one_after_the_other(p, x):
    return lax.map(lambda x: one(p, x), x)


@row()
def mapped_in_batches(p, x):
    return lax.map(lambda x: one(p, x), x, batch_size=4)


@row()
def micro_batches(p, x):
    return lax.scan(lambda c, x: (c, each(p, x)), 0, x.reshape(2, 4, 3))[1].reshape(EXAMPLES)


@row()
def every_other_example(p, x):
    parts = jnp.swapaxes(x.reshape(4, 2, 3), 0, 1)
    return lax.scan(lambda c, x: (c, each(p, x)), 0, parts)[1].T.reshape(EXAMPLES)


@row()
def micro_batches_without_a_loop(p, x):
    return each(p, x.reshape(2, 2, 2, 3)).reshape(EXAMPLES)


@row()
def loops_in_a_loop(p, x):
    def step(c, x):
        return c, jax.checkpoint(lambda x: lax.map(lambda x: one(p, x), x))(x)

    return lax.scan(step, 0, x.reshape(2, 4, 3), reverse=True)[1].reshape(EXAMPLES)


@row()
def a_branch_for_each_example(p, x):
    def of(x):
        small = lax.cond(x[0] > 0, lambda x: x @ p["w"], lambda x: 2 * x @ p["w"], x)
        return ((jnp.tanh(small) + p["b"]) @ p["v"]).sum()

    return lax.map(of, x)


@row(factored=("v",))
def rows_at_a_position_of_the_example(p, x):
    def of(x):
        start = jnp.where(x[0] > 0, 1, 0)
        part = lax.dynamic_slice_in_dim(p["w"], start, 2)
        return (jnp.tanh(x[:2] @ part + p["b"]) @ p["v"]).sum()

    return lax.map(of, x)


@row("sum")
def accumulated(p, x):
    def step(total, x):
        return total + each(p, x).sum(), None

    return lax.scan(step, 1.0, x.reshape(4, 2, 3))[0]


@row("mean")
def accumulated_means(p, x):
    def step(total, x):
        return total + each(p, x).mean() / 2, each(p, x).max()

    return lax.scan(step, jnp.zeros(()), x.reshape(2, 4, 3))[0]


@row("mean")
def accumulated_one_by_one(p, x):
    return lax.scan(lambda total, x: (total + one(p, x), None), 0.0, x)[0] / EXAMPLES


@row("sum")
def stacked_sums(p, x):
    return lax.map(lambda x: each(p, x).sum(), x.reshape(2, 4, 3)).sum()


# -- meshes -----------------------------------------------------------------------------------


@row()
def shards(p, x):
    return sharded(each, P(), P("d"), out=P("d"))(p, x)


@row()
def shards_without_types(p, x):
    return sharded(each, P(), P("d"), out=P("d"), check_vma=False)(p, x)


@row("sum")
def psum(p, x):
    return sharded(lambda p, x: lax.psum(each(p, x).sum(), "d"), P(), P("d"), out=P())(p, x)


@row("mean")
def pmean(p, x):
    return sharded(lambda p, x: lax.pmean(each(p, x).mean(), "d"), P(), P("d"), out=P())(p, x)


@row("mean")
def pmean_without_types(p, x):
    def shard(p, x):
        return lax.pmean(each(p, x).mean(), "d")

    return sharded(shard, P(), P("d"), out=P(), check_vma=False)(p, x)


@row("sum")
def gathered_sums(p, x):
    def shard(p, x):
        return lax.all_gather(each(p, x).sum(), "d")

    return sharded(shard, P(), P("d"), out=P(), check_vma=False)(p, x).sum()


@row()
def one_example_on_each_device(p, x):
    def pair(x):
        return sharded(lambda p, x: one(p, x[0])[None], P(), P("d"), out=P("d"))(p, x)

    return lax.map(pair, x.reshape(2, 4, 3)).reshape(EXAMPLES)


@row()
def micro_batches_on_each_device(p, x):
    def shard(p, x):
        return lax.scan(lambda c, x: (c, each(p, x)), 0, x)[1]

    losses = sharded(shard, P(), P(None, "d"), out=P(None, "d"))(p, x.reshape(2, 4, 3))
    return losses.reshape(EXAMPLES)


@row(factored=())
def two_axes_of_the_mesh(p, x):
    """The batch over both axes, then over one, with the features over the other."""

    def features(p, x):
        hidden = jnp.tanh(lax.psum(x @ p["w"], "m") + p["b"])
        return ((hidden @ p["v"]) ** 2).sum(-1)

    split = {"w": P("m"), "b": P(), "v": P()}
    padded = jnp.concatenate([x, jnp.zeros((EXAMPLES, 1))], 1)
    more = {**p, "w": jnp.concatenate([p["w"], jnp.zeros((1, 4))])}
    on = mesh(2, 2)
    half = sharded(features, split, P("d", "m"), out=P("d"), on=on)(more, padded)
    return (half + sharded(each, P(), P(("d", "m")), out=P(("d", "m")), on=on)(p, x)) / 2


@row(factored=())
def positions_on_other_devices(p, x):
    """The same rows as positions that are split over the second axis."""

    def shard(p, x):
        return lax.psum(each(p, x).sum(-1), "m") / 2

    both = jnp.stack([x, x], 1)
    return sharded(shard, P(), P("d", "m"), out=P("d"), on=mesh(2, 2))(p, both)


@row(factored=("v",))
def scanned_layers_on_each_device(p, x):
    return sharded(layers, P(), P("d"), out=P("d"))(p, x)


@row(factored=("w",))
def parameters_on_each_device(p, x):
    """Values of parameters alone leave the devices, and are used outside and inside."""

    def shard(p, x):
        return jax.nn.softplus(p["v"]) + jnp.log(2.0), jnp.tanh(x @ p["w"] + p["b"])

    positive, hidden = sharded(shard, P(), P("d"), out=(P(), P("d")))(p, x)
    return ((hidden @ (jnp.log(jnp.expm1(positive - jnp.log(2.0))))) ** 2).sum(-1)


def explicit() -> list[Any]:
    """Return explicit meshes with the sharding of the batch on them."""
    line, square = mesh(4, kind=AxisType.Explicit), mesh(2, 2, kind=AxisType.Explicit)
    return [
        NamedSharding(jax.make_mesh((4,), ("d",)), P("d")),  # what it is by default
        NamedSharding(line, P("d")),
        NamedSharding(square, P("d")),
        NamedSharding(square, P(("d", "m"))),
    ]
