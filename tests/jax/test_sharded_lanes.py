"""`vmap` and derivatives around `shard_map`: shards and lanes that log different things."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

import sawlog

from .cases.explicit import line, placed

#: Two lanes of four shards of two elements. Which shard takes which branch depends on the lane.
XS = np.float32([[1, 2, -3, -4, 5, -6, -7, 8], [-1, -1, 2, 2, -3, 4, 5, -4]])
SHARDS = XS.reshape(2, 4, 2)

Logged = dict[str, list[float]]


def branch(x: Any) -> Any:
    """A branch in each shard."""
    return lax.cond(
        x.sum() > 0,
        lambda x: (sawlog.log({"up": x.sum()}), x)[1],
        lambda x: (sawlog.log({"down": -x.sum()}), 2 * x)[1],
        x,
    )


def branch_by_hand(x: np.ndarray) -> Logged:
    return {"up": [x.sum()]} if x.sum() > 0 else {"down": [-x.sum()]}


def in_a_scan(x: Any) -> Any:
    """A branch in a loop, with a step; the other branch logs nothing."""

    def body(x: Any, i: Any) -> Any:
        lax.cond(x.sum() > 0, lambda: sawlog.log({"up": x.sum()}, step=i), lambda: None)
        return -2 * x, None

    return lax.scan(body, x, jnp.arange(4))[0]


def in_a_scan_by_hand(x: np.ndarray) -> Logged:
    found = [x.sum() * (-2) ** i for i in range(4)]
    return {"up": [value for value in found if value > 0]}


def switched(x: Any) -> Any:
    """Three branches, one of which is silent."""
    up = lambda x: (sawlog.log({"up": x.sum()}), x)[1]
    down = lambda x: (sawlog.log({"down": x.sum()}), x)[1]
    return lax.switch(jnp.sign(x.sum()).astype(int) + 1, [down, lambda x: x, up], x)


def switched_by_hand(x: np.ndarray) -> Logged:
    return {"up": [x.sum()]} if x.sum() > 0 else {"down": [x.sum()]} if x.sum() < 0 else {}


def looped(x: Any) -> Any:
    """A loop whose length depends on the shard and the lane."""

    def body(carry: Any) -> Any:
        i, x = carry
        sawlog.log({"turn": x.sum()}, step=i)
        return i + 1, x / 2

    return lax.while_loop(lambda carry: carry[1].sum() > 1, body, (lax.axis_index("x"), x))[1]


def looped_by_hand(x: np.ndarray) -> Logged:
    found = []
    while x.sum() > 1:
        found.append(x.sum())
        x = x / 2
    return {"turn": found}


PROGRAMS: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], Logged]]] = {
    "branch": (branch, branch_by_hand),
    "in a scan": (in_a_scan, in_a_scan_by_hand),
    "switch": (switched, switched_by_hand),
    "while": (looped, looped_by_hand),
}

AROUND: dict[str, Callable[[Callable, dict], Callable]] = {
    "vmap(spool)": lambda f, options: jax.vmap(sawlog.spool(f, **options)),
    "spool(vmap)": lambda f, options: sawlog.spool(jax.vmap(f), **options),
    "jit(vmap(spool))": lambda f, options: jax.jit(jax.vmap(sawlog.spool(f, **options))),
    "vmap(jvp(spool))": lambda f, options: jax.vmap(
        lambda x: jax.jvp(sawlog.spool(f, **options), (x,), (x,))[0]
    ),
}


def on_shards(shard: Callable[[Any], Any], check: bool) -> Callable[[Any], Any]:
    """The program on four devices."""
    return jax.shard_map(shard, mesh=line(), in_specs=P("x"), out_specs=P("x"), check_vma=check)


@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", PROGRAMS)
def test_lanes_of_shards(name: str, around: str, check: bool) -> None:
    shard, by_hand = PROGRAMS[name]
    fun = on_shards(shard, check)
    with jax.set_mesh(line()):
        x = placed(XS, line(), None, "x")
        out, logs = AROUND[around](fun, {"capacity": 9} if name == "while" else {})(x)
        np.testing.assert_allclose(out, jax.vmap(fun)(x))
    expected = [value for row in SHARDS for x in row for value in flat(by_hand(x))]
    found = []
    for key in logs:
        values, mask = np.asarray(logs[key]), np.asarray(logs.mask[key])
        found += [(key, float(value)) for value in values[mask]]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("option", ["count", "sum", "max"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_reductions_of_lanes_of_shards(name: str, option: str, check: bool) -> None:
    shard, by_hand = PROGRAMS[name]
    fun = on_shards(shard, check)
    with jax.set_mesh(line()):
        x = placed(XS, line(), None, "x")
        if check and name == "in a scan":
            # JAX itself cannot map a branch that combines shards with what is the same in all of
            # them, such as the step.
            with pytest.raises(ValueError, match="pvary"):
                jax.vmap(sawlog.spool(fun, reduce=option))(x)
            return
        _, logs = jax.vmap(sawlog.spool(fun, reduce=option))(x)
    reduce = {"count": len, "sum": sum, "max": max}[option]
    for key in logs:
        values, mask = np.asarray(logs[key]), np.asarray(logs.mask[key])
        for where in np.ndindex(2, 4):
            entries = by_hand(SHARDS[where]).get(key, [])
            if entries:
                assert mask[where]
                assert values[where] == reduce(entries)
            else:
                assert not mask[where] or (option == "count" and values[where] == 0)
    assert set(logs) == {key for row in SHARDS for x in row for key in by_hand(x)}


def flat(logged: Logged) -> list[tuple[str, float]]:
    """Keys with values."""
    return [(key, float(value)) for key, values in logged.items() for value in values]
