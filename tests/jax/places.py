"""Places where a log can stand, each with what is logged there, lane by lane.

The table is run with every reduction (`test_reductions`), every bound (`test_bounds`) and in
pieces (`test_pieces`); what else those tests share is here as well.
"""

from __future__ import annotations

import functools
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


SHARDED = np.arange(12, dtype=f32) ** 2
PLACES = {
    "once": Place(lambda x: (sawlog.log({"k": x}, step=3), x)[1], f32(2.5), Lane([2.5], [3])),
    "two places": Place(two_places, f32(1.5), Lane([1.5, 1.5, 3, 6], [7, 0, 1, 9])),
    "scan": Place(log_all, XS, Lane(XS, range(6))),
    "nested scan": Place(nested, f32(0), Lane([0, 1, 2, 10, 11, 12], [0, 1, 2, 0, 1, 2])),
    "reverse scan": Place(reverse, XS, Lane(XS[::-1], range(6)[::-1])),
    "cond in scan": Place(log_large, XS, lane_of_large(XS)),
    "jit": Place(jax.jit(log_all), XS, Lane(XS, range(6))),
    "vmap": Place(jax.vmap(log_all), ROWS, [Lane(row, range(6)) for row in ROWS]),
    "cond in scan in vmap": Place(jax.vmap(log_large), ROWS, [lane_of_large(r) for r in ROWS]),
    "while": Place(log_halving, f32(12), lane_of_halving(12)),
    "while in vmap": Place(
        jax.vmap(log_halving), np.array([1, 4, 24], f32), [lane_of_halving(x) for x in (1, 4, 24)]
    ),
    "while in scan": Place(while_in_scan, XS, lane_of_while_in_scan(XS)),
    "while in scan in vmap": Place(
        jax.vmap(while_in_scan), ROWS, [lane_of_while_in_scan(row) for row in ROWS]
    ),
    "condition of while": Place(in_condition, f32(5), Lane([5, 2.5, 1.25, 0.625], range(4))),
    "condition of while in vmap": Place(
        jax.vmap(in_condition),
        np.array([1, 5], f32),
        [Lane([1], [0]), Lane([5, 2.5, 1.25, 0.625], range(4))],
    ),
    "condition of while in jacfwd": Place(
        jax.jacfwd(in_condition), f32(5), Lane([5, 2.5, 1.25, 0.625], range(4))
    ),
    "jvp": Place(in_jvp, f32(5), Lane([5, 3], [0, 1])),
    "jvp in vmap": Place(
        jax.vmap(in_jvp), np.array([5, 6], f32), [Lane([5, 3], [0, 1]), Lane([6, 3], [0, 1])]
    ),
    "remat of two scans in grad": Place(
        jax.grad(remat_of_two_scans), f32(5), Lane([0, 1] * 3, [0, 1] * 3)
    ),
    "remat in scan in grad": Place(
        jax.grad(lambda x: lax.scan(lambda x, i: (remat_of_a_scan(x), None), x, None, 1)[0]),
        f32(5),
        lane_of_remat_of_a_scan(5),
    ),
    "remat in grad in vmap": Place(
        jax.vmap(jax.grad(remat_of_a_scan)),
        np.array([5, 6], f32),
        [lane_of_remat_of_a_scan(5), lane_of_remat_of_a_scan(6)],
    ),
    "dynamic fori": Place(dynamic_fori, 4, Lane([1, 1, 2, 4], range(4))),
    "switch in while": Place(switch_in_while, 6, Lane([0, 10, 11, 3, 40, 41], [0, 1, 1, 3, 4, 4])),
    "switch in while in vmap": Place(
        jax.vmap(switch_in_while),
        np.array([2, 0, 6], np.int32),
        [
            Lane([0, 10, 11], [0, 1, 1]),
            Lane([], []),
            Lane([0, 10, 11, 3, 40, 41], [0, 1, 1, 3, 4, 4]),
        ],
    ),
    "grad": Place(jax.grad(lambda xs: log_all(xs) ** 2), XS, Lane(XS, range(6))),
    "cond in grad": Place(jax.grad(lambda xs: log_large(xs) ** 2), XS, lane_of_large(XS)),
    "grad in vmap": Place(
        jax.vmap(jax.grad(log_large)), ROWS, [lane_of_large(row) for row in ROWS]
    ),
    "remat": Place(in_remat, XS, Lane(XS, range(6))),
    "remat in grad": Place(jax.grad(in_remat), XS, Lane(XS, range(6))),
    "forward rule": Place(jax.grad(in_custom_vjp), XS, Lane(XS, range(6))),
    "backward rule": Place(jax.grad(in_backward_rule), XS, Lane(2 * XS[::-1], range(6)[::-1])),
    "hessian-vector product": Place(
        lambda xs: jax.jvp(jax.grad(in_remat), (xs,), (xs,)), XS, Lane(XS, range(6))
    ),
    "linearize": Place(lambda xs: jax.linearize(in_remat, xs)[1](xs), XS, Lane(XS, range(6))),
    "shard_map": Place(
        in_shards, SHARDED, [Lane(each, range(3)) for each in SHARDED.reshape(4, 3)]
    ),
    "around while": Place(around_while, f32(12), lane_around_while(12)),
    "around while in vmap": Place(
        jax.vmap(around_while),
        np.array([24, 1, 4], f32),
        [lane_around_while(x) for x in (24, 1, 4)],
    ),
    "around while in scan": Place(
        around_while_in_scan,
        np.array([12, 1, 4], f32),
        one_after_another([lane_around_while(x) for x in (12, 1, 4)]),
    ),
    "while of equal lanes": Place(
        equal_turns,
        np.array([5, 1], f32),
        [Lane([x, x + 1, x + 2], range(3)) for x in (5, 1)],
    ),
    "while in one branch": Place(while_in_one_branch, f32(12), lane_of_halving(12)),
    "while in one branch in vmap": Place(
        jax.vmap(while_in_one_branch),
        np.array([1, 12, 4], f32),
        [Lane([-1], [5]), lane_of_halving(12), lane_of_halving(4)],
    ),
    "map in batches": Place(
        map_in_batches,
        XS,
        [Lane(XS[i::4], range(6)[i::4]) for i in range(4)],
    ),
    "vmap in while": Place(
        vmap_in_while,
        np.array([5, 1], f32),
        [Lane([x, x + 1, x + 2], range(3)) for x in (5, 1)],
    ),
    "lanes of two widths": Place(
        lanes_of_two_widths,
        XS[:3],
        [Lane([3, -3], [0, 10]), Lane([1, -1], [1, 11]), Lane([-4], [12])],
    ),
}
FOLDS: dict[str, Callable[[Any], Any]] = {
    "mean": np.mean,
    "sum": np.sum,
    "min": np.min,
    "max": np.max,
    "first": lambda x: x[0],
    "last": lambda x: x[-1],
    "replace": lambda x: x[-1],
    "count": len,
    "std": np.std,
    "var": np.var,
}


FULL = (
    "scan",
    "cond in scan",
    "while in vmap",
    "switch in while in vmap",
    "remat in grad",
    "shard_map",
)
"""The places that are tried with everything; the others take turns."""


def rows_of(table: dict[str, Any], few: int) -> list[tuple[str, str]]:
    """Pairs of a place and a row of another table: all of them for some places, else a few."""
    names = list(table)
    pairs = []
    for i, place in enumerate(PLACES):
        turn = names if place in FULL else [names[(i + 3 * j) % len(names)] for j in range(few)]
        pairs += [(place, name) for name in turn]
    return pairs


def fold_steps(mode: str, steps: Sequence[float]) -> Any:
    return FOLDS[mode if mode in ("first", "mean") else "last"](np.asarray(steps, np.float64))


@functools.cache
def plain_output(place: str) -> Any:
    """What the function returns, called once for all tests of it."""
    return jax.jit(PLACES[place].fun)(PLACES[place].arg)


def spooled_place(place: str, **options: Any) -> Any:
    """The logs; the output is that of the plain function."""
    row = PLACES[place]
    out, logs = sawlog.spool(row.fun, **options)(row.arg)
    close(out, plain_output(place))
    return logs


def log_each(xs: Any) -> None:
    lax.scan(lambda c, x: (c, sawlog.log("k", x)), None, xs)


def log_tree(xs: Any) -> None:
    def body(i: Any, x: Any) -> Any:
        sawlog.log({"k": {"u": x, "v": (i, [x > 2])}}, step=i)
        return i + 1, None

    lax.scan(body, 0, xs)


@functools.cache
def count_to(n: int) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        def body(i: Any, x: Any) -> Any:
            sawlog.log({"x": x}, step=i)
            return x + 1

        return lax.fori_loop(0, n, body, x)

    return f


EMA = sawlog.Reduction(
    "ema",
    init=lambda like: jnp.zeros_like(like),
    update=lambda state, x: 0.5 * state + 0.5 * x,
    finish=lambda state: state,
)


def ema(values: Sequence[float]) -> float:
    state = 0.0
    for x in values:
        state = 0.5 * state + 0.5 * x
    return state


def chain(x: Any) -> Any:
    """x halves four times; the gradient doubles back: 1/2, 1/4, 1/8, 1/16."""

    def body(x: Any, i: Any) -> Any:
        x = sawlog.log_cotangent("dx", x, step=i)
        return x * 0.5, None

    return lax.scan(body, x, jnp.arange(4))[0]


BACK = f32([0.5, 0.25, 0.125, 0.0625])


def memory(fun: Callable[..., Any], *args: Any) -> tuple[int, int]:
    """Bytes of temporaries, and of outputs."""
    analysis = jax.jit(fun).lower(*args).compile().memory_analysis()
    return analysis.temp_size_in_bytes, analysis.output_size_in_bytes
