"""Programs that log in one place each, with what they log by hand, lane by lane."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import sawlog

f32 = np.float32
XS = np.array([3.0, 1.0, 4.0, 1.5, 9.0, 2.5], f32)
ROWS = np.stack([XS, XS[::-1] + 1, np.zeros(6, f32)])
"""Three lanes; nothing of the last is above 2."""


def line_of(file: str, marker: str) -> str:
    """`file:line` of the one line of a file that ends in the comment `# marker`."""
    with open(file) as source:
        found = [i for i, line in enumerate(source, 1) if line.rstrip().endswith(f"# {marker}")]
    assert len(found) == 1, (marker, found)
    return f"{file}:{found[0]}"


def close(found: Any, expected: Any, rtol: float = 1e-5) -> None:
    """Equal structure and shapes, and almost equal numbers."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for one, two in pairs:
        one, two = np.asarray(one), np.asarray(two)
        assert one.shape == two.shape, f"{one} instead of {two}"
        np.testing.assert_allclose(one.astype(np.float64), two.astype(np.float64), rtol, 1e-6)


def spooled(fun: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The logs; the output is that of the plain function, compiled once for all tests of it."""
    out, logs = sawlog.spool(fun, **options)(*args)
    close(out, jax.jit(fun)(*args))
    return logs


def tapped(fun: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """What the callback was given; the output is that of the plain function."""
    seen: list[Any] = []
    out = sawlog.tap(fun, seen.append, **options)(*args)
    close(out, jax.jit(fun)(*args))
    return seen


@dataclass(frozen=True)
class Lane:
    """What one lane logs under "k", in order."""

    values: Sequence[float]
    steps: Sequence[float]


@dataclass(frozen=True)
class Place:
    """A program, its argument, and what it logs: one lane, or a list of them."""

    fun: Callable[..., Any]
    arg: Any
    lanes: Lane | list[Lane]


def log_all(xs: Any) -> Any:
    """Log every x of a scan, and add them up."""

    def body(total: Any, ix: Any) -> Any:
        i, x = ix
        sawlog.log({"k": x}, step=i)
        return total + x, None

    return lax.scan(body, jnp.float32(0), (jnp.arange(6), xs))[0]


def log_large(xs: Any) -> Any:
    """Log those above 2."""

    def body(total: Any, ix: Any) -> Any:
        i, x = ix
        lax.cond(x > 2, lambda: sawlog.log({"k": x}, step=i), lambda: None)
        return total + x, None

    return lax.scan(body, jnp.float32(0), (jnp.arange(6), xs))[0]


def log_halving(x: Any) -> Any:
    """Halve until it is at most one."""

    def body(state: Any) -> Any:
        i, x = state
        sawlog.log({"k": x}, step=i)
        return i + 1, x / 2

    return lax.while_loop(lambda state: state[1] > 1, body, (0, x))[1]


def lane_of_halving(x: float) -> Lane:
    values = []
    while x > 1:
        values.append(x)
        x /= 2
    return Lane(values, range(len(values)))


def lane_of_large(xs: Any) -> Lane:
    where = [i for i, x in enumerate(xs) if x > 2]
    return Lane([xs[i] for i in where], where)


def nested(x: Any) -> Any:
    def outer(x: Any, i: Any) -> Any:
        def inner(x: Any, j: Any) -> Any:
            sawlog.log({"k": 10.0 * i + j}, step=j)
            return x + 1, None

        return lax.scan(inner, x, jnp.arange(3))[0], None

    return lax.scan(outer, x, jnp.arange(2))[0]


def reverse(xs: Any) -> Any:
    def body(total: Any, ix: Any) -> Any:
        sawlog.log({"k": ix[1]}, step=ix[0])
        return total + ix[1], None

    return lax.scan(body, jnp.float32(0), (jnp.arange(6), xs), reverse=True)[0]


def in_remat(xs: Any) -> Any:
    def body(total: Any, ix: Any) -> Any:
        @jax.checkpoint
        def part(x: Any) -> Any:
            y = jnp.sin(x)
            sawlog.log({"k": x}, step=ix[0])
            return y * y

        return total + part(ix[1]), None

    return lax.scan(body, jnp.float32(0), (jnp.arange(6), xs))[0]


def in_custom_vjp(xs: Any) -> Any:
    @jax.custom_vjp
    def square(x: Any, i: Any) -> Any:
        return x * x

    def forward(x: Any, i: Any) -> Any:
        sawlog.log({"k": x}, step=i)
        return x * x, x

    def backward(x: Any, ct: Any) -> Any:
        return 2 * x * ct, None

    square.defvjp(forward, backward)

    def body(total: Any, ix: Any) -> Any:
        return total + square(ix[1], ix[0].astype(jnp.float32)), None

    return lax.scan(body, jnp.float32(0), (jnp.arange(6), xs))[0]


def in_backward_rule(xs: Any) -> Any:
    """The backward rules run from the last iteration to the first."""

    @jax.custom_vjp
    def square(x: Any, i: Any) -> Any:
        return x * x

    def backward(saved: Any, ct: Any) -> Any:
        sawlog.log({"k": 2 * saved[0] * ct}, step=saved[1])
        return 2 * saved[0] * ct, None

    square.defvjp(lambda x, i: (x * x, (x, i)), backward)

    def body(total: Any, ix: Any) -> Any:
        return total + square(ix[1], ix[0].astype(jnp.float32)), None

    return lax.scan(body, jnp.float32(0), (jnp.arange(6), xs))[0]


def mesh() -> Any:
    return jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))


def in_shards(xs: Any) -> Any:
    def shard(xs: Any) -> Any:
        def body(total: Any, ix: Any) -> Any:
            sawlog.log({"k": ix[1]}, step=ix[0])
            return total + ix[1], None

        zero = lax.pcast(jnp.float32(0), "i", to="varying")
        return lax.scan(body, zero, (jnp.arange(3), xs))[0][None]

    return jax.shard_map(shard, mesh=mesh(), in_specs=P("i"), out_specs=P("i"))(xs)


def in_condition(x: Any) -> Any:
    def condition(state: Any) -> Any:
        sawlog.log({"k": state[1]}, step=state[0])
        return state[1] > 1

    return lax.while_loop(condition, lambda state: (state[0] + 1, state[1] / 2), (0, x))[1]


def dynamic_fori(n: Any) -> Any:
    def body(i: Any, x: Any) -> Any:
        sawlog.log({"k": x}, step=i)
        return x + i

    return lax.fori_loop(0, n, body, 1)


def switch_in_while(n: Any) -> Any:
    def first(i: Any) -> None:
        sawlog.log({"k": i}, step=i)

    def second(i: Any) -> None:
        sawlog.log({"k": 10 * i}, step=i)
        sawlog.log({"k": 10 * i + 1}, step=i)

    def body(i: Any) -> Any:
        lax.switch(i % 3, [first, second, lambda i: None], i)
        return i + 1

    return lax.while_loop(lambda i: i < n, body, 0)


def two_places(x: Any) -> Any:
    sawlog.log({"k": x}, step=7)
    x = lax.fori_loop(0, 2, lambda i, x: (sawlog.log({"k": x}, step=i), x * 2)[1], x)
    sawlog.log({"k": x}, step=9)
    return x


def around_while(x: Any) -> Any:
    """One name before a loop of unknown length, in it, and after it."""
    sawlog.log({"k": -x}, step=70)
    x = log_halving(x)
    sawlog.log({"k": 10 * x}, step=90)
    return x


def lane_around_while(x: float) -> Lane:
    lane = lane_of_halving(x)
    end = x / 2 ** len(lane.values)
    return Lane([-x, *lane.values, 10 * end], [70, *lane.steps, 90])


def around_while_in_scan(xs: Any) -> Any:
    return lax.scan(lambda total, x: (total + around_while(x), None), jnp.float32(0), xs)[0]


def one_after_another(lanes: Sequence[Lane]) -> Lane:
    return Lane([v for lane in lanes for v in lane.values], [s for k in lanes for s in k.steps])


def equal_turns(xs: Any) -> Any:
    """A loop of unknown length that ends for all lanes at once."""

    def body(state: Any) -> Any:
        i, x = state
        sawlog.log({"k": x}, step=i)
        return i + 1, x + 1

    return jax.vmap(lambda x: lax.while_loop(lambda state: state[0] < 3, body, (0, x))[1])(xs)


def vmap_in_while(xs: Any) -> Any:
    """All lanes log in every turn of one loop of unknown length."""

    def body(state: Any) -> Any:
        i, xs = state
        jax.vmap(lambda x: sawlog.log({"k": x}, step=i))(xs)
        return i + 1, xs + 1

    return lax.while_loop(lambda state: state[0] < 3, body, (0, xs))[1]


def while_in_one_branch(x: Any) -> Any:
    """Of the branches, the second alone has a loop of unknown length."""
    return lax.cond(x > 2, log_halving, lambda x: (sawlog.log({"k": -x}, step=5), x)[1], x)


def map_in_batches(xs: Any) -> Any:
    """Four lanes, and then the two that are left over."""
    number = jnp.arange(len(xs))

    def each(ix: Any) -> Any:
        sawlog.log({"k": ix[1]}, step=ix[0])
        return 2 * ix[1]

    return lax.map(each, (number, xs), batch_size=4)


def lanes_of_two_widths(xs: Any) -> Any:
    """Two lanes first, then all of them, under one name."""

    def each(i: Any, x: Any) -> Any:
        sawlog.log({"k": x}, step=i)
        return x + 1

    first = jax.vmap(each)(jnp.arange(2), xs[:2])
    return first.sum() + jax.vmap(each)(10 + jnp.arange(len(xs)), -xs)


def in_jvp(x: Any) -> Any:
    """A log of something that has nothing to do with x, inside of jvp."""

    def f(x: Any) -> Any:
        sawlog.log({"k": x}, step=0)
        sawlog.log({"k": 3.0}, step=1)
        return x * x

    return jax.jvp(f, (x,), (jnp.ones_like(x),))[1]


def remat_of_two_scans(x: Any) -> Any:
    """The inner scan has nothing to do with x."""

    def inner(c: Any, j: Any) -> Any:
        sawlog.log({"k": 1.0 * j}, step=j)
        return c, None

    def outer(x: Any, i: Any) -> Any:
        lax.scan(inner, None, jnp.arange(2))
        return jnp.sin(x), None

    return jax.checkpoint(lambda x: lax.scan(outer, x, jnp.arange(3))[0])(x)


def remat_of_a_scan(x: Any) -> Any:
    """Some logs depend on x, others do not."""

    def body(x: Any, i: Any) -> Any:
        sawlog.log({"k": x}, step=i)
        sawlog.log({"k": 0.5 * i}, step=i)
        return jnp.sin(x), None

    return jax.checkpoint(lambda x: lax.scan(body, x, jnp.arange(2))[0])(x)


def lane_of_remat_of_a_scan(x: float) -> Lane:
    return Lane([x, 0, math.sin(x), 0.5], [0, 0, 1, 1])


def while_in_scan(xs: Any) -> Any:
    return lax.scan(lambda total, x: (total + log_halving(x), None), jnp.float32(0), xs)[0]


def lane_of_while_in_scan(xs: Any) -> Lane:
    return one_after_another([lane_of_halving(float(x)) for x in xs])
