"""Micro-batches, loops over examples and meshes give the rows of the whole batch, in float64."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import sawlog
from sawlog.errors import CaptureError
from sawlog.jax._capture.program import random_matrices
from tests.jax.capture import splitting
from tests.jax.capture.oracle import assert_equal, assert_pairs, gradients
from tests.jax.capture.splitting import EXAMPLES, ROWS, each, mesh, sharded


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_rows_are_those_of_the_whole_batch(row):
    with jax.enable_x64(True):
        params, batch = splitting.make()
        losses = jax.eval_shape(row.loss, params, batch)
        assert losses.shape == (() if row.reduction != "none" else (EXAMPLES,))
        options = {"reduction": row.reduction}
        whole = sawlog.jax.capture(row.loss, what=("grad", "pairs"), **options)
        plan = whole.plan(params, batch)
        assert {each.block.name for each in plan.layouts if each.factored} == {*row.factored}
        matrices = random_matrices(plan.blocks, 2)
        small = sawlog.jax.capture(row.loss, projection=matrices, **options)

        def both(params, batch):
            captured = whole(params, batch)
            wanted = gradients(plain(row), params, batch)
            return captured, small(params, batch).grads, wanted, row.loss(params, batch)

        captured, projected, wanted, losses = jax.jit(both)(params, batch)
        np.testing.assert_allclose(captured.losses, losses, rtol=1e-12)
        assert_equal(captured.grads, wanted)
        assert_pairs(captured, plan, projected, matrices)


def plain(row):
    """The loss of a batch that is not split, whose rows are the answer."""
    return PLAIN.get(row.name, each)


def branches(p, x):
    small = jnp.where(x[:, :1] > 0, x, 2 * x) @ p["w"]
    return ((jnp.tanh(small) + p["b"]) @ p["v"]).sum(-1)


def positions(p, x):
    first, second = x[:, :2] @ p["w"][:2], x[:, :2] @ p["w"][1:]
    hidden = jnp.tanh(jnp.where(x[:, :1] > 0, second, first) + p["b"])
    return (hidden @ p["v"]).sum(-1)


PLAIN = {
    "a_branch_for_each_example": branches,
    "rows_at_a_position_of_the_example": positions,
    "scanned_layers_on_each_device": splitting.layers,
}


def test_explicit_meshes():
    with jax.enable_x64(True):
        params, batch = splitting.make()
        wanted = gradients(each, params, batch)
        for sharding in splitting.explicit():
            placed = jax.device_put(batch, sharding)
            with jax.set_mesh(sharding.mesh):
                captured = sawlog.jax.capture(each, what=("grad", "pairs"), prove=True)(
                    params, placed
                )
                small = sawlog.jax.capture(each, projection=2)(params, placed).grads
            assert_equal(captured.grads, wanted)
            captured.check()
            for rows in (*captured.grads.values(), *small.values(), captured.losses):
                assert rows.sharding.spec[0] == sharding.spec[0]


def test_shard_map_on_an_explicit_mesh():
    with jax.enable_x64(True):
        params, batch = splitting.make()
        wanted = gradients(each, params, batch)
        on = splitting.explicit()[1].mesh
        placed = jax.device_put(batch, NamedSharding(on, P("d")))
        loss = over_devices(each, on=on)
        with jax.set_mesh(on):
            captured = jax.jit(sawlog.jax.capture(loss, what=("grad", "pairs")))(params, placed)
        assert_equal(captured.grads, wanted)
        for rows in jax.tree.leaves(captured):
            assert rows.sharding.spec[0] == "d"


@pytest.mark.parametrize(
    ("sizes", "manual", "batch"),
    [((1,), "d", P("d")), ((4,), "d", P()), ((2, 2), "m", P())],
    ids=["one device", "a batch that is whole on each device", "another axis of the mesh"],
)
def test_an_explicit_mesh_that_does_not_split_the_batch(sizes, manual, batch):
    """Inside of `shard_map` the zeros of examples have no sharding, wherever the examples are."""
    on = mesh(*sizes, kind=AxisType.Explicit)
    params, x = splitting.make()
    placed = jax.device_put(x, NamedSharding(on, batch if manual == "d" else P("d")))
    loss = jax.shard_map(each, in_specs=(P(), batch), out_specs=batch, axis_names={manual})
    with jax.set_mesh(on):
        plan = sawlog.jax.capture(loss).plan(params, placed)
    assert plan.unused == ()
    assert {*plan.uses} == {"w", "b", "v"}


def test_nothing_is_gathered():
    """A batch that `jit` has sharded stays where it is: rows, inputs and cotangents."""
    with jax.enable_x64(True):
        params, batch = splitting.make()
        by_batch, whole = (NamedSharding(mesh(4), P(*spec)) for spec in (["d"], []))
        placed, params = jax.device_put(batch, by_batch), jax.device_put(params, whole)
        for options in ({"what": ("grad", "pairs")}, {"projection": 2}):
            capture = sawlog.jax.capture(each, **options)
            compiled = jax.jit(capture).lower(params, placed).compile()
            moved = r"all-gather|all-to-all|collective-permute|all-reduce|reduce-scatter"
            assert not re.findall(moved, compiled.as_text())
            for rows in jax.tree.leaves(capture(params, placed)):
                assert rows.sharding.is_equivalent_to(by_batch, rows.ndim)


def carried(p, x):
    def step(state, x):
        losses = each(p, x)
        return losses, losses * state

    return lax.scan(step, jnp.ones(4), x.reshape(2, 4, 3))[1].reshape(EXAMPLES)


def over_devices(how, out=None, **options):
    out = P("d") if out is None else out
    return lambda p, x: sharded(how, P(), P("d"), out=out, **options)(p, x)


REFUSED = {
    "a value of other micro-batches": (carried, "hands a value of some examples on"),
    "all examples in each step": (
        lambda p, x: lax.map(lambda one: each(p, x).sum() + one[0], x),
        "uses all examples in each step",
    ),
    "two ways of splitting": (
        lambda p, x: each(p, x.reshape(2, 4, 3) + x.reshape(4, 2, 3).swapaxes(0, 1)).reshape(8),
        "in different ways|not in the order",
    ),
    "another order": (
        lambda p, x: each(p, x.reshape(2, 4, 3)).T.reshape(8),
        "not in the order",
    ),
    "unequal parts": (
        lambda p, x: each(p, jnp.concatenate([x, x], 1).reshape(3, 16)[:, :3]).repeat(3)[:8],
        "reshape",
    ),
    "parameters handed on": (
        lambda p, x: lax.scan(
            lambda w, x: (w / jnp.linalg.norm(w), each({**p, "w": w}, x)), p["w"], x[:, None]
        )[1].reshape(8),
        "hands parameters on",
    ),
    "a mean of all devices": (
        over_devices(lambda p, x: each(p, x - lax.pmean(x.mean(0), "d"))),
        "reduce_sum|psum",
    ),
    "statistics of examples over devices": (
        over_devices(lambda p, x: each(p, x) / lax.pmean(each(p, x), "d")),
        "psum",
    ),
    "examples of other devices": (
        over_devices(
            lambda p, x: lax.ppermute(each(p, x), "d", [(i, (i + 1) % 4) for i in range(4)])
        ),
        "moves examples between devices",
    ),
    "all examples on each device": (
        over_devices(
            lambda p, x: each(p, lax.all_gather(x, "d", tiled=True)), P(), check_vma=False
        ),
        "moves examples between devices",
    ),
    "parameters that are split as the batch is": (
        lambda p, x: sharded(
            lambda p, x: each({**p, "w": lax.all_gather(p["w"], "d", tiled=True)[:3]}, x),
            {"w": P("d"), "b": P(), "v": P()},
            P("d"),
            out=P("d"),
            check_vma=False,
        )({**p, "w": jnp.concatenate([p["w"], p["w"][:1]])}, x),
        "split over the devices",
    ),
    "a sum of parameters over devices": (
        over_devices(lambda p, x: each({**p, "w": lax.psum(p["w"], "d")}, x), check_vma=False),
        "combines parameters over the devices",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    loss, words = REFUSED[name]
    params, batch = splitting.make()
    jax.eval_shape(loss, params, batch)  # it is a loss function
    with pytest.raises(CaptureError, match=words):
        sawlog.jax.capture(loss).plan(params, batch)


def test_declared_sums_are_still_linear():
    params, batch = splitting.make()

    def product(p, x):
        return lax.scan(lambda t, x: (t * each(p, x).sum(), None), 1.0, x.reshape(2, 4, 3))[0]

    def with_parameters(p, x):
        def step(total, x):
            return total + each(p, x).sum() + (p["w"] ** 2).sum(), None

        return lax.scan(step, 0.0, x.reshape(2, 4, 3))[0]

    for loss in (product, with_parameters):
        with pytest.raises(CaptureError, match=r"constant factor|with a parameter"):
            sawlog.jax.capture(loss, reduction="sum").plan(params, batch)
