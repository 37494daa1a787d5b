"""Bounded memory, loops of unknown length, the backward pass, tap in pieces: hand-written answers.

The first part is a table: places where a log can stand, each with what is logged there, lane by
lane; every reduction in every place. The rest are single programs.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.experimental.ode import odeint
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import sawlog
from sawlog.errors import ArgumentError, LogMismatchError, UnsupportedLoopError
from tests.thorough import often, pairs

f32 = np.float32
XS = np.array([3.0, 1.0, 4.0, 1.5, 9.0, 2.5], f32)
ROWS = np.stack([XS, XS[::-1] + 1, np.zeros(6, f32)])
"""Three lanes; nothing of the last is above 2."""


def line_of(marker: str) -> str:
    """`file:line` of the one line here that ends in the comment `# marker`."""
    with open(__file__) as source:
        found = [i for i, line in enumerate(source, 1) if line.rstrip().endswith(f"# {marker}")]
    assert len(found) == 1, (marker, found)
    return f"{__file__}:{found[0]}"


def close(found: Any, expected: Any, rtol: float = 1e-5) -> None:
    """Equal structure and shapes, and almost equal numbers."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for one, two in pairs:
        one, two = np.asarray(one), np.asarray(two)
        assert one.shape == two.shape, f"{one} instead of {two}"
        np.testing.assert_allclose(one.astype(np.float64), two.astype(np.float64), rtol, 1e-6)


def spooled(fun: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The logs; the output is that of the plain function."""
    out, logs = sawlog.spool(fun, **options)(*args)
    close(out, fun(*args))
    return logs


def tapped(fun: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """What the callback was given; the output is that of the plain function."""
    seen: list[Any] = []
    out = sawlog.tap(fun, seen.append, **options)(*args)
    close(out, fun(*args))
    return seen


# --- Every reduction in every place ------------------------------------------------------------


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
    lanes = [lane_of_halving(float(x)) for x in xs]
    return Lane([v for lane in lanes for v in lane.values], [s for k in lanes for s in k.steps])


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
    return PLACES[place].fun(PLACES[place].arg)


def spooled_place(place: str, **options: Any) -> Any:
    """The logs; the output is that of the plain function."""
    row = PLACES[place]
    out, logs = sawlog.spool(row.fun, **options)(row.arg)
    close(out, plain_output(place))
    return logs


@pytest.mark.turns
@pytest.mark.parametrize(("place", "mode"), rows_of(FOLDS, often(2, 4)))
def test_reduction(place: str, mode: str) -> None:
    row = PLACES[place]
    logs = spooled_place(place, reduce=mode)
    assert logs.asdict().keys() == {"k"}
    assert list(logs.asdict()["k"]) == [mode]
    if isinstance(row.lanes, Lane):
        close(logs["k"], FOLDS[mode](np.asarray(row.lanes.values, np.float64)))
        close(logs.step["k"], fold_steps(mode, row.lanes.steps))
        assert logs.mask == {}
        return
    logged = np.array([len(lane.values) > 0 for lane in row.lanes])
    mask = logs.mask.get("k", np.ones(len(row.lanes), bool))
    assert mask.tolist() == logged.tolist()
    values, steps = np.asarray(logs["k"]), np.asarray(logs.step["k"])
    assert values.shape == steps.shape == logged.shape
    for i in np.flatnonzero(logged):
        close(values[i], FOLDS[mode](np.asarray(row.lanes[i].values, np.float64)))
        close(steps[i], fold_steps(mode, row.lanes[i].steps))


@pytest.mark.turns
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("place", [name for name in PLACES if not re.search("while|fori", name)])
def test_all_entries(place: str, jit: bool) -> None:
    """The table without any bound."""
    row = PLACES[place]
    spool = sawlog.spool(row.fun)
    _, logs = (jax.jit(spool) if jit else spool)(row.arg)
    check_entries(logs, row, lambda x: x, once=place == "once")


def check_entries(logs: Any, row: Place, keep: Callable[[Any], Any], once: bool = False) -> None:
    """Of every lane, what `keep` keeps is there."""
    values, steps = np.asarray(logs["k"]), np.asarray(logs.step["k"])
    mask = logs.mask.get("k")
    if isinstance(row.lanes, Lane):
        assert mask is None
        kept = keep(list(row.lanes.values))
        close(values, np.asarray(kept[0] if once else kept))
        close(np.reshape(steps, -1), np.asarray(keep(list(row.lanes.steps))))
        return
    assert values.shape[1:] == (len(row.lanes),)
    mask = np.ones(values.shape, bool) if mask is None else np.asarray(mask)
    assert mask.any(axis=1).all()
    for i, lane in enumerate(row.lanes):
        close(values[mask[:, i], i], np.asarray(keep(list(lane.values))))
        close(steps[mask[:, i], i], np.asarray(keep(list(lane.steps))))


BOUNDS: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "interval 2": ({"interval": 2, "capacity": 50}, lambda x: x[::2]),
    "interval 50": ({"interval": 50, "capacity": 50}, lambda x: x[:1]),
    "window 2": ({"window": 2}, lambda x: x[-2:]),
    "window 50": ({"window": 50}, lambda x: x),
    "interval 2, window 2": ({"interval": 2, "window": 2}, lambda x: x[::2][-2:]),
    "capacity 50": ({"capacity": {"k": 50}}, lambda x: x),
    "first 2": ({"capacity": {"k": 2}}, lambda x: x[:2]),
    "last 2": ({"capacity": {"k": 2}, "keep": "last"}, lambda x: x[-2:]),
    "interval 2, last 2": (
        {"interval": 2, "capacity": {"k": 2}, "keep": "last"},
        lambda x: x[::2][-2:],
    ),
}


@pytest.mark.turns
@pytest.mark.parametrize(("place", "bounds"), rows_of(BOUNDS, often(2, 4)))
def test_bounds(place: str, bounds: str) -> None:
    row, (options, keep) = PLACES[place], BOUNDS[bounds]
    logs = spooled_place(place, **options)
    check_entries(logs, row, keep, once=place == "once")
    lanes = [row.lanes] if isinstance(row.lanes, Lane) else row.lanes
    if "capacity" in options and place != "once":
        counted = [len(lane.values[:: options.get("interval", 1)]) for lane in lanes]
        lost = [n - len(keep(list(lane.values))) for n, lane in zip(counted, lanes, strict=True)]
        found = np.broadcast_to(logs.dropped.get("k", 0), len(lanes))
        assert found.tolist() == lost


# --- Dtypes and pytrees ------------------------------------------------------------------------


def log_each(xs: Any) -> None:
    lax.scan(lambda c, x: (c, sawlog.log("k", x)), None, xs)


BF16 = jnp.bfloat16
DTYPES = [
    (np.array([1, 2, 4], np.int32), "mean", np.float32, 7 / 3),
    (np.array([1, 2, 4], np.int32), "sum", np.int32, 7),
    (np.array([1, 2, 4], np.int32), "max", np.int32, 4),
    (np.array([1, 2, 4], np.int32), "std", np.float32, np.std([1, 2, 4])),
    (np.array([-5, 2, -4], np.int32), "max", np.int32, 2),
    (np.array([-5, -2, -4], np.int32), "max", np.int32, -2),
    (np.array([5, 2, 4], np.int32), "min", np.int32, 2),
    (np.array([100, 100, 50], np.int8), "sum", np.int32, 250),
    (np.array([100, 100, 51], np.int8), "mean", np.float32, 251 / 3),
    (np.array([200, 100, 250], np.uint8), "sum", np.uint32, 550),
    (np.array([200, 100, 250], np.uint8), "min", np.uint8, 100),
    (np.array([7, 7, 3], jnp.int4), "sum", np.int32, 17),
    (np.array([15, 15, 3], jnp.uint4), "sum", np.uint32, 33),
    (np.array([2**31 - 1, 2**31 - 1], np.int32), "mean", np.float32, 2**31),
    (np.array([True, False, True, True]), "mean", np.float32, 0.75),
    (np.array([True, False, True, True]), "sum", np.int32, 3),
    (np.array([True, False, True, True]), "min", np.bool_, False),
    (np.array([True, False, True, True]), "max", np.bool_, True),
    (np.array([True, False, True, False]), "last", np.bool_, False),
    (np.array([True, False]), "count", np.int32, 2),
    (np.array([1.5, 2.5, 0.25], BF16), "mean", BF16, BF16(17 / 12)),
    (np.array([1.5, 2.5, 0.25], BF16), "sum", BF16, 4.25),
    (np.ones(300, BF16), "sum", BF16, 300),
    (np.ones(300, BF16), "mean", BF16, 1),
    (np.array([1.5, 2.5, 0.25], BF16), "min", BF16, 0.25),
    (np.array([1.5, 2.5, 0.25], BF16), "last", BF16, 0.25),
    (np.array([1.0, 3.0], BF16), "std", BF16, 1),
    (np.full(3000, 30, np.float16), "mean", np.float16, 30),
    (np.array([1.0, -np.inf, 2.0], f32), "max", np.float32, 2),
    (np.array([1.0, -np.inf, 2.0], f32), "sum", np.float32, -np.inf),
    (np.array([1.0, np.nan, 2.0], f32), "last", np.float32, 2),
    (np.array([1.0, np.nan, 2.0], f32), "mean", np.float32, np.nan),
    (np.array([1.0, np.nan, 2.0], f32), "max", np.float32, np.nan),
    (np.array([[1.0, 2.0], [3.0, 6.0]], f32), "mean", np.float32, [2.0, 4.0]),
    (np.array([[1.0, 2.0], [3.0, 6.0]], f32), "first", np.float32, [1.0, 2.0]),
]


@pytest.mark.parametrize(("xs", "mode", "dtype", "answer"), DTYPES)
def test_dtypes(xs: Any, mode: str, dtype: Any, answer: Any) -> None:
    _, logs = sawlog.spool(log_each, reduce=mode)(xs)
    assert logs["k"].dtype == dtype
    np.testing.assert_allclose(np.asarray(logs["k"], np.float64), np.asarray(answer, np.float64))


def test_complex_numbers() -> None:
    xs = np.array([1 + 1j, 3 - 1j], np.complex64)
    for mode, answer in {"mean": 2, "sum": 4, "last": 3 - 1j, "first": 1 + 1j}.items():
        found = sawlog.spool(log_each, reduce=mode)(xs)[1]["k"]
        assert found.dtype == np.complex64
        assert complex(found) == answer
    std = sawlog.spool(log_each, reduce="std")(xs)[1]["k"]
    assert std.dtype == np.float32
    np.testing.assert_allclose(std, np.std(xs), rtol=1e-6)


def test_prng_keys() -> None:
    keys = jax.random.split(jax.random.key(0), 5)

    def found(**options: Any) -> Any:
        return sawlog.spool(log_each, **options)(keys)[1]["k"]

    assert jnp.array_equal(found(reduce="first"), keys[0])
    assert jnp.array_equal(found(reduce="last"), keys[4])
    assert jnp.array_equal(found(reduce="replace"), keys[4])
    assert jnp.array_equal(found(interval=2), keys[::2])
    assert jnp.array_equal(found(window=2), keys[-2:])
    assert jnp.array_equal(found(capacity={"k": 2}), keys[:2])
    assert jnp.array_equal(found(capacity={"k": 2}, keep="last"), keys[-2:])
    assert found(reduce="count") == 5


def test_prng_keys_in_lanes() -> None:
    keys = jax.random.split(jax.random.key(0), (2, 4))
    fun = jax.vmap(log_each)
    assert jnp.array_equal(sawlog.spool(fun, reduce="first")(keys)[1]["k"], keys[:, 0])
    assert jnp.array_equal(sawlog.spool(fun, reduce="last")(keys)[1]["k"], keys[:, 3])
    assert jnp.array_equal(sawlog.spool(fun, window=2)(keys)[1]["k"], keys[:, 2:].T)
    assert jnp.array_equal(sawlog.spool(fun, interval=2)(keys)[1]["k"], keys[:, ::2].T)


def test_prng_keys_that_are_not_always_logged() -> None:
    keys = jax.random.split(jax.random.key(0), 5)

    def f(keys: Any) -> None:
        def body(i: Any, key: Any) -> Any:
            lax.cond(i % 2 == 1, lambda: sawlog.log("k", key), lambda: None)
            return i + 1, None

        lax.scan(body, 0, keys)

    assert jnp.array_equal(sawlog.spool(f, reduce="first")(keys)[1]["k"], keys[1])
    assert jnp.array_equal(sawlog.spool(f, reduce="last")(keys)[1]["k"], keys[3])
    assert jnp.array_equal(sawlog.spool(f, window=3)(keys)[1]["k"], keys[1::2])


def test_prng_keys_have_no_mean() -> None:
    with pytest.raises(TypeError):
        sawlog.spool(log_each, reduce="mean")(jax.random.split(jax.random.key(0), 5))


def log_tree(xs: Any) -> None:
    def body(i: Any, x: Any) -> Any:
        sawlog.log({"k": {"u": x, "v": (i, [x > 2])}}, step=i)
        return i + 1, None

    lax.scan(body, 0, xs)


def test_pytrees() -> None:
    v = np.arange(6)
    over = XS > 2
    expected = {
        "mean": {"u": XS.mean(), "v": (v.mean(), [over.mean()])},
        "sum": {"u": XS.sum(), "v": (15, [4])},
        "last": {"u": XS[5], "v": (5, [True])},
        "first": {"u": XS[0], "v": (0, [True])},
        "max": {"u": 9.0, "v": (5, [True])},
        "min": {"u": 1.0, "v": (0, [False])},
        "var": {"u": XS.var(), "v": (v.var(), [over.var()])},
        "count": {"u": 6, "v": (6, [6])},
    }
    for mode, answer in expected.items():
        close(sawlog.spool(log_tree, reduce=mode)(XS)[1]["k"], answer)
    close(
        sawlog.spool(log_tree, interval=4)(XS)[1]["k"],
        {"u": XS[::4], "v": (v[::4], [over[::4]])},
    )
    close(sawlog.spool(log_tree, window=2)(XS)[1]["k"], {"u": XS[4:], "v": (v[4:], [over[4:]])})


# --- Which reduction counts --------------------------------------------------------------------


def three_names(xs: Any) -> Any:
    def body(total: Any, x: Any) -> Any:
        sawlog.log("a", x, reduction="mean")
        sawlog.log("b", x, reduction="max")
        sawlog.log("c", x)
        return total + x, None

    total, _ = lax.scan(body, jnp.float32(0), xs)
    sawlog.log("d", total)
    return total


CHOICES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "by the log": ({}, {"a": XS.mean(), "b": 9.0, "c": XS, "d": 21.0}),
    "one for all": ({"reduce": "last"}, {"a": 2.5, "b": 2.5, "c": 2.5, "d": 21.0}),
    "by key": ({"reduce": {"c": "sum"}}, {"a": XS.mean(), "b": 9.0, "c": 21.0, "d": 21.0}),
    "by key before the log": ({"reduce": {"a": "min"}}, {"a": 1.0, "b": 9.0, "c": XS, "d": 21.0}),
    "append for all": ({"reduce": "append"}, {"a": XS, "b": XS, "c": XS, "d": 21.0}),
    "append by key": ({"reduce": {"a": "append"}}, {"a": XS, "b": 9.0, "c": XS, "d": 21.0}),
    "with interval": (
        {"interval": 2},
        {"a": XS[::2].mean(), "b": XS[::2].max(), "c": XS[::2], "d": 21.0},
    ),
    "chosen names": ({"argnames": ["a", "c"]}, {"a": XS.mean(), "c": XS}),
    "a prefix": (
        {"prefix": "p/", "reduce": {"c": "first"}},
        {"p/a": XS.mean(), "p/b": 9.0, "p/c": 3.0, "p/d": 21.0},
    ),
    "window and reduce": (
        {"window": 2, "reduce": "mean"},
        {"a": 5.75, "b": 5.75, "c": 5.75, "d": 21.0},
    ),
    "window and reduce by key": (
        {"window": 2, "reduce": {"c": "mean"}},
        {"a": 5.75, "b": 9.0, "c": 5.75, "d": 21.0},
    ),
    "window and the log": ({"window": 2}, {"a": 5.75, "b": 9.0, "c": XS[-2:], "d": 21.0}),
    "capacity by key": ({"capacity": {"c": 2}}, {"a": XS.mean(), "b": 9.0, "c": XS[:2], "d": 21.0}),
    "capacity is for loops of unknown length": (
        {"capacity": 2},
        {"a": XS.mean(), "b": 9.0, "c": XS, "d": 21.0},
    ),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_which_reduction_counts(choice: str) -> None:
    options, answer = CHOICES[choice]
    logs = spooled(three_names, XS, **options)
    close(dict(logs.items()), answer)


def test_two_reductions_under_one_name() -> None:
    def f(x: Any) -> None:
        sawlog.log("a", x, reduction="mean")  # one reduction
        sawlog.log("a", x, reduction="sum")  # another reduction

    with pytest.raises(LogMismatchError) as caught:
        sawlog.spool(f)(1.0)
    message = str(caught.value)
    for word in ("'a'", "reduction", line_of("one reduction"), line_of("another reduction")):
        assert word in message


def test_kept_logs_reduce_anew_outside() -> None:
    inner = sawlog.spool(three_names, reduce="last", keep_logs=True)
    (_, first), second = sawlog.spool(inner, reduce="first")(XS)
    close(dict(first.items()), {"a": 2.5, "b": 2.5, "c": 2.5, "d": 21.0})
    close(dict(second.items()), {"a": 3.0, "b": 3.0, "c": 3.0, "d": 21.0})


def test_a_reduced_key_is_an_entry_of_another_logdict() -> None:
    _, logs = sawlog.spool(three_names, reduce="mean")(XS)
    close((logs + logs)["a"], np.full(2, XS.mean()))
    assert logs.to_numpy().asdict()["a"] == {"mean": logs["a"]}


def test_reduce_per_step_of_a_users_scan() -> None:
    """A scan around spool has one reduced value for each of its steps."""

    def step(c: Any, xs: Any) -> Any:
        return c, sawlog.spool(log_all, reduce="mean")(xs)[1]

    _, logs = lax.scan(step, None, ROWS)
    close(logs["k"], ROWS.mean(axis=1))


# --- Reductions made by users ------------------------------------------------------------------

EMA = sawlog.Reduction(
    "ema",
    init=lambda like: jnp.zeros_like(like),
    update=lambda state, x: 0.5 * state + 0.5 * x,
    finish=lambda state: state,
)
HISTOGRAM = sawlog.Reduction(
    "histogram",
    init=lambda like: jnp.zeros(3, jnp.int32),
    update=lambda state, x: state.at[jnp.searchsorted(jnp.array([2.0, 4.0]), x)].add(1),
    finish=lambda state: state,
)
RANGE = sawlog.Reduction(
    "range",
    init=lambda like: {"any": False, "low": like, "high": (like,)},
    update=lambda s, x: {
        "any": True,
        "low": jnp.where(s["any"], jnp.minimum(s["low"], x), x),
        "high": (jnp.where(s["any"], jnp.maximum(s["high"][0], x), x),),
    },
    finish=lambda s: {"low": s["low"], "width": s["high"][0] - s["low"]},
)


def ema(values: Sequence[float]) -> float:
    state = 0.0
    for x in values:
        state = 0.5 * state + 0.5 * x
    return state


def histogram(values: Sequence[float]) -> Any:
    return np.bincount(np.searchsorted([2.0, 4.0], np.asarray(values)), minlength=3)


def low_and_width(values: Sequence[float]) -> Any:
    return {"low": min(values), "width": max(values) - min(values)}


OWN = {"ema": (EMA, ema), "histogram": (HISTOGRAM, histogram), "range": (RANGE, low_and_width)}


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize(
    "place",
    ["scan", "cond in scan", "while", "while in vmap", "vmap", "remat in grad", "shard_map"],
)
def test_own_reduction(place: str, own: str) -> None:
    row, (reduction, answer) = PLACES[place], OWN[own]
    logs = spooled(row.fun, row.arg, reduce=reduction)
    assert list(logs.asdict()["k"]) == [own]
    if isinstance(row.lanes, Lane):
        close(logs["k"], answer(list(row.lanes.values)))
        assert logs.step["k"] == row.lanes.steps[-1]
        return
    for i, lane in enumerate(row.lanes):
        if len(lane.values):
            close(jax.tree.map(lambda x, i=i: x[i], logs["k"]), answer(list(lane.values)))


def test_own_reduction_of_one_log() -> None:
    def f(xs: Any) -> None:
        lax.scan(lambda c, x: (c, sawlog.log("k", x, reduction=EMA)), None, xs)

    close(sawlog.spool(f)(XS)[1]["k"], ema(XS))
    close(sawlog.logify(f)(XS)[1].asdict(), {"k": {"ema": ema(XS)}})
    close(sawlog.spool(f, reduce={"k": HISTOGRAM})(XS)[1]["k"], histogram(XS))


def test_own_reduction_of_a_pytree() -> None:
    pairs = sawlog.Reduction(
        "dot",
        init=lambda like: jnp.float32(0),
        update=lambda state, value: state + value["u"] * value["v"][0],
        finish=lambda state: state,
    )
    close(sawlog.spool(log_tree, reduce=pairs)(XS)[1]["k"], f32(np.dot(XS, np.arange(6))))


BAD_UPDATES = {
    "another shape": lambda state, x: jnp.stack([state, x]),
    "another structure": lambda state, x: (state, x),
    "nothing": lambda state, x: None,
    "another dtype": lambda state, x: (state + x).astype(jnp.complex64),
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("bad", BAD_UPDATES)
def test_an_update_that_changes_its_state(bad: str, jit: bool) -> None:
    wrong = sawlog.Reduction("wrong", jnp.zeros_like, BAD_UPDATES[bad], lambda state: state)

    def f(xs: Any) -> None:
        lax.scan(lambda c, x: (c, sawlog.log("k", x)), None, xs)  # a wrong update

    spool = sawlog.spool(f, reduce=wrong)
    with pytest.raises(ArgumentError) as caught:
        (jax.jit(spool) if jit else spool)(XS)
    message = str(caught.value)
    for word in ("'wrong'", "'k'", line_of("a wrong update"), "update", "Hint"):
        assert word in message


def test_a_state_of_integers_does_not_swallow_floats() -> None:
    """An update that makes floats of integers is refused, not rounded."""
    wrong = sawlog.Reduction("wrong", lambda like: 0, lambda state, x: state + x, lambda s: s)
    with pytest.raises(ArgumentError, match="'wrong'"):
        sawlog.spool(log_each, reduce=wrong)(XS / 8)


@pytest.mark.parametrize("bad", ["median", 3, None.__class__, lambda xs: xs, {"k": "median"}])
def test_no_such_reduction(bad: Any) -> None:
    with pytest.raises(ArgumentError, match="no reduction") as caught:
        sawlog.spool(log_each, reduce=bad)
    assert "mean" in str(caught.value)
    assert "Reduction" in str(caught.value)


def test_no_such_reduction_of_a_log() -> None:
    with pytest.raises((ArgumentError, sawlog.errors.LogValueError), match="median"):
        sawlog.spool(lambda x: sawlog.log("k", x, reduction="median"))(1.0)


# --- logify ------------------------------------------------------------------------------------


def lox(xs: Any) -> Any:
    def body(total: Any, x: Any) -> Any:
        sawlog.log("b", x, reduction="mean")
        sawlog.log("y", x)
        return total + x, None

    return lax.scan(body, jnp.float32(0), xs)[0]


def lox_answer(xs: Any) -> Any:
    return {"b": {"mean": np.mean(xs)}, "y": {"replace": xs[-1]}}


def test_logify() -> None:
    out, logs = sawlog.logify(lox)(XS)
    close(out, XS.sum())
    close(logs.asdict(), lox_answer(XS))
    assert set(logs) == {"b", "y"}


LOGIFIED = {
    "jit outside": lambda: jax.jit(sawlog.logify(lox))(XS),
    "jit inside": lambda: sawlog.logify(jax.jit(lox))(XS),
    "as a decorator": lambda: sawlog.logify(lambda xs: lox(xs))(XS),
    "spool around": lambda: sawlog.spool(sawlog.logify(lox))(XS)[0],
}


@pytest.mark.parametrize("way", LOGIFIED)
def test_logify_and_jit(way: str) -> None:
    out, logs = LOGIFIED[way]()
    close(out, XS.sum())
    close(logs.asdict(), lox_answer(XS))


def test_logify_in_vmap() -> None:
    answer = {"b": {"mean": ROWS.mean(axis=1)}, "y": {"replace": ROWS[:, -1]}}
    for way in (jax.vmap(sawlog.logify(lox)), sawlog.logify(jax.vmap(lox))):
        out, logs = way(ROWS)
        close(out, ROWS.sum(axis=1))
        close(logs.asdict(), answer)


def test_logify_in_scan() -> None:
    def step(c: Any, xs: Any) -> Any:
        out, logs = sawlog.logify(lox)(xs)
        return c + out, logs

    out, logs = lax.scan(step, jnp.float32(0), ROWS)
    close(out, ROWS.sum())
    close(logs.asdict(), {"b": {"mean": ROWS.mean(axis=1)}, "y": {"replace": ROWS[:, -1]}})


def test_logify_and_grad() -> None:
    gradient, logs = jax.grad(sawlog.logify(lambda xs: lox(xs) ** 2), has_aux=True)(XS)
    close(gradient, np.full(6, 42.0))
    close(logs.asdict(), lox_answer(XS))
    gradient, logs = sawlog.logify(jax.grad(lambda xs: lox(xs) ** 2))(XS)
    close(gradient, np.full(6, 42.0))
    close(logs.asdict(), lox_answer(XS))


def test_logify_of_loops_of_unknown_length() -> None:
    _, logs = sawlog.logify(log_halving)(12.0)
    close(logs.asdict(), {"k": {"replace": 1.5}})
    assert logs.step["k"] == 3
    _, logs = sawlog.logify(log_halving)(1.0)
    assert dict(logs) == {}


def test_logify_of_a_branch() -> None:
    def f(x: Any) -> Any:
        return lax.cond(
            x > 0,
            lambda x: (sawlog.log("up", x), x)[1],
            lambda x: (sawlog.log("down", x, reduction="sum"), -x)[1],
            x,
        )

    close(sawlog.logify(f)(2.0)[1].asdict(), {"up": {"replace": 2.0}})
    close(sawlog.logify(f)(-2.0)[1].asdict(), {"down": {"sum": -2.0}})


# --- Interval, window, capacity: what the table does not say -------------------------------------


def two_loops(xs: Any) -> Any:
    def body(total: Any, x: Any) -> Any:
        sawlog.log("k", x)
        sawlog.log("k", -x)
        return total + x, None

    total = lax.scan(body, jnp.float32(0), xs[:3])[0]
    sawlog.log("k", total)
    return lax.scan(body, total, xs[3:])[0]


TWO_LOOPS = np.array([3, -3, 1, -1, 4, -4, 8, 1.5, -1.5, 9, -9, 2.5, -2.5], f32)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 13, 20])
def test_interval_and_window_across_loops_and_places(n: int) -> None:
    close(spooled(two_loops, XS, interval=n)["k"], TWO_LOOPS[::n])
    close(spooled(two_loops, XS, window=n)["k"], TWO_LOOPS[-n:])
    close(spooled(two_loops, XS, capacity={"k": n})["k"], TWO_LOOPS[:n])
    close(spooled(two_loops, XS, capacity={"k": n}, keep="last")["k"], TWO_LOOPS[-n:])


def test_bounds_leave_a_single_log_alone() -> None:
    def f(x: Any) -> Any:
        sawlog.log({"once": x})
        return x

    for options in ({"interval": 3}, {"window": 3}, {"capacity": 3}, {"capacity": {"once": 3}}):
        close(spooled(f, f32(2), **options)["once"], f32(2))


def test_numpy_integers_as_options() -> None:
    close(spooled(log_all, XS, interval=np.int64(2))["k"], XS[::2])
    close(spooled(log_all, XS, window=np.int32(2))["k"], XS[-2:])
    close(spooled(log_all, XS, capacity={"k": np.int64(2)})["k"], XS[:2])


BAD_OPTIONS = [
    ("interval", 0),
    ("interval", -1),
    ("interval", 1.5),
    ("interval", True),
    ("interval", "2"),
    ("window", 0),
    ("window", 2.0),
    ("window", False),
    ("capacity", 0),
    ("capacity", -3),
    ("capacity", "many"),
    ("capacity", {"k": 0}),
    ("capacity", {"k": 1.5}),
    ("keep", "middle"),
    ("keep", None),
]


@pytest.mark.parametrize(("option", "value"), BAD_OPTIONS)
def test_bad_options(option: str, value: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        sawlog.spool(log_all, **{option: value})
    shown = next(iter(value.values())) if isinstance(value, dict) else value
    assert repr(shown) in str(caught.value)
    assert ("k" if isinstance(value, dict) else option) in str(caught.value)


def test_capacity_is_for_keys_in_loops_of_unknown_length() -> None:
    def f(x: Any) -> Any:
        def body(x: Any) -> Any:
            sawlog.log({"in": x, "both": x})
            return x / 2

        x = lax.while_loop(lambda x: x > 1, body, x)
        for i in range(3):
            sawlog.log({"out": i, "both": jnp.float32(i)})
        return x

    logs = spooled(f, f32(8), capacity=2)
    close(dict(logs.items()), {"in": f32([8, 4]), "out": np.arange(3), "both": f32([8, 4])})
    assert {key: int(n) for key, n in logs.dropped.items()} == {"in": 1, "both": 4}
    logs = spooled(f, f32(8), capacity={"in": 1, "both": 2, "out": 1}, keep="last")
    close(dict(logs.items()), {"in": f32([2]), "out": np.array([2]), "both": f32([1, 2])})
    assert {key: int(n) for key, n in logs.dropped.items()} == {"in": 2, "both": 4, "out": 2}


def test_capacity_and_reductions_by_key() -> None:
    def f(x: Any) -> Any:
        def body(x: Any) -> Any:
            sawlog.log({"a": x, "b": x})
            sawlog.log("c", x, reduction="sum")
            return x / 2

        return lax.while_loop(lambda x: x > 1, body, x)

    logs = spooled(f, f32(8), capacity={"a": 2}, reduce={"b": "count"})
    close(dict(logs.items()), {"a": f32([8, 4]), "b": 3, "c": f32(14)})
    assert set(logs.dropped) == {"a"}
    with pytest.raises(UnsupportedLoopError):
        sawlog.spool(f, capacity={"a": 2})(8.0)


def test_exact_fit() -> None:
    logs = spooled(log_halving, f32(8), capacity=3)
    close(logs["k"], f32([8, 4, 2]))
    assert logs.dropped["k"] == 0
    logs = spooled(log_halving, f32(8), capacity=3, keep="last")
    close(logs["k"], f32([8, 4, 2]))
    assert logs.dropped["k"] == 0


@pytest.mark.parametrize("options", [{"capacity": 3}, {"window": 3}, {"reduce": "mean"}])
def test_no_turn_at_all(options: dict[str, Any]) -> None:
    logs = spooled(log_halving, f32(1), **options)
    assert dict(logs) == {}
    assert "k" not in logs
    assert logs["k"].shape == (0,)


def test_capacity_inside_jit_has_a_mask() -> None:
    @jax.jit
    def f(x: Any) -> Any:
        _, logs = sawlog.spool(log_halving, capacity=4)(x)
        return logs["k"], logs.mask["k"], logs.dropped["k"], logs.reduce("mean")["k"], logs

    values, mask, dropped, mean, logs = f(4.0)
    close(values, f32([4, 2, 0, 0]))
    assert mask.tolist() == [True, True, False, False]
    assert dropped == 0
    assert mean == 3
    close(logs["k"], f32([4, 2]))
    assert f(64.0)[2] == 2


def test_dropped_in_lanes() -> None:
    xs = np.array([1, 4, 32], f32)
    for fun in (
        sawlog.spool(jax.vmap(log_halving), capacity=3),
        jax.vmap(sawlog.spool(log_halving, capacity=3)),
    ):
        assert fun(xs)[1].dropped["k"].tolist() == [0, 0, 2]


def test_nested_while_loops() -> None:
    def f(n: Any) -> Any:
        def outer(i: Any) -> Any:
            def inner(j: Any) -> Any:
                sawlog.log({"k": 10 * i + j})
                return j + 1

            lax.while_loop(lambda j: j < i, inner, 0)
            sawlog.log({"end": i})
            return i + 1

        return lax.while_loop(lambda i: i < n, outer, 0)

    logs = spooled(f, 4, capacity=10)
    close(dict(logs.items()), {"k": np.array([10, 20, 21, 30, 31, 32]), "end": np.arange(4)})
    logs = spooled(f, 4, window=2)
    close(dict(logs.items()), {"k": np.array([31, 32]), "end": np.array([2, 3])})
    lanes = spooled(jax.vmap(f), jnp.arange(4), reduce="count")
    close(lanes["end"][1:], np.array([1, 2, 3]))
    assert lanes.mask["end"].tolist() == [False, True, True, True]
    close(lanes["k"][2:], np.array([1, 3]))
    assert lanes.mask["k"].tolist() == [False, False, True, True]


def test_bounds_in_jvp_of_while() -> None:
    def f(x: Any) -> Any:
        return jax.jvp(log_halving, (x,), (f32(1),))

    close(spooled(f, f32(12), capacity=3)["k"], f32([12, 6, 3]))
    close(spooled(f, f32(12), reduce="sum")["k"], f32(22.5))
    (out, slope), (logs, _) = (
        jax.jvp(sawlog.spool(log_halving, capacity=9), (f32(12),), (f32(1),))[0],
        jax.jvp(lambda x: sawlog.spool(log_halving, capacity=9)(x)[1]["k"], (12.0,), (1.0,)),
    )
    del slope
    close(out, f32(0.75))
    close(logs[:4], f32([12, 6, 3, 1.5]))


def test_export_of_a_bounded_program() -> None:
    exported = jax.export.export(jax.jit(sawlog.spool(log_halving, capacity=3)))(f32(0))
    again = jax.export.deserialize(exported.serialize())
    _, logs = again.call(f32(12))
    close(logs["k"], f32([12, 6, 3]))
    assert logs.dropped["k"] == 1


def test_logs_of_lanes_in_while_are_the_lanes_of_spool() -> None:
    """The law: spool(vmap(f)) is vmap(spool(f)), with the axes swapped."""
    xs = np.array([1, 4, 24], f32)
    _, inside = sawlog.spool(jax.vmap(log_halving), capacity=9)(xs)
    _, outside = jax.vmap(sawlog.spool(log_halving, capacity=9))(xs)
    for lane in range(3):
        one = inside["k"][inside.mask["k"][:, lane], lane]
        two = outside["k"][lane][outside.mask["k"][lane]]
        close(one, two)


# --- Loops of unknown length without a bound -----------------------------------------------------


def unbounded_while(x: Any) -> Any:
    def body(x: Any) -> Any:
        sawlog.log({"k": x})  # log in an unbounded while
        return x / 2

    return lax.while_loop(lambda x: x > 1, body, x)  # unbounded while


def unbounded_fori(x: Any) -> Any:
    def body(i: Any, x: Any) -> Any:
        sawlog.log({"k": x})  # log in an unbounded fori
        return x / 2

    return lax.fori_loop(0, x.astype(int), body, x)  # unbounded fori


def unbounded_condition(x: Any) -> Any:
    def condition(x: Any) -> Any:
        sawlog.log({"k": x})  # log in an unbounded condition
        return x > 1

    return lax.while_loop(condition, lambda x: x / 2, x)  # unbounded condition


def unbounded_in_scan(x: Any) -> Any:
    def turn(x: Any) -> Any:
        sawlog.log({"k": x})  # log in an unbounded while in scan
        return x / 2

    def body(c: Any, x: Any) -> Any:
        return c, lax.while_loop(lambda x: x > 1, turn, x)  # unbounded while in scan

    return lax.scan(body, None, jnp.stack([x, x]))[1]


UNBOUNDED = {
    "while": unbounded_while,
    "fori": unbounded_fori,
    "condition": unbounded_condition,
    "while in scan": unbounded_in_scan,
}


@pytest.mark.parametrize("around", [lambda f: f, jax.jit, jax.vmap], ids=["plain", "jit", "vmap"])
@pytest.mark.parametrize("name", UNBOUNDED)
def test_no_bound(name: str, around: Callable[..., Any]) -> None:
    x = jnp.full((2,), 8.0) if around is jax.vmap else jnp.float32(8)
    with pytest.raises(UnsupportedLoopError) as caught:
        sawlog.spool(around(UNBOUNDED[name]))(x)
    message = str(caught.value)
    for word in (
        line_of(f"unbounded {name}"),
        line_of(f"log in an unbounded {name}"),
        "capacity=",
        "reduce=",
    ):
        assert word in message, message


def test_a_loop_of_unknown_length_without_chosen_logs() -> None:
    assert dict(sawlog.spool(log_halving, argnames="other")(8.0)[1]) == {}
    assert dict(sawlog.spool(log_halving, tags="other")(8.0)[1]) == {}


# --- Memory ------------------------------------------------------------------------------------


def long_program(steps: int) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        def body(i: Any, x: Any) -> Any:
            sawlog.log({"k": x, "v": jnp.stack([x, 2 * x])}, step=i)
            return jnp.sin(x) + 1

        return lax.fori_loop(0, steps, body, x)

    return f


def memory(fun: Callable[..., Any], *args: Any) -> tuple[int, int]:
    """Bytes of temporaries, and of outputs."""
    analysis = jax.jit(fun).lower(*args).compile().memory_analysis()
    return analysis.temp_size_in_bytes, analysis.output_size_in_bytes


BOUNDED = {
    **{mode: {"reduce": mode} for mode in FOLDS},
    "own": {"reduce": EMA},
    "by key": {"reduce": {"k": "mean", "v": "last"}},
    "window": {"window": 10},
    "capacity by key": {"capacity": {"k": 5, "v": 5}},
}


@pytest.mark.parametrize("bounded", BOUNDED)
def test_memory_does_not_grow(bounded: str) -> None:
    few, many = (
        memory(sawlog.spool(long_program(steps), **BOUNDED[bounded]), f32(1))
        for steps in (1_000, 1_000_000)
    )
    assert few == many
    assert many[1] < 2000


def test_memory_of_all_entries_grows() -> None:
    """So the test before is able to fail."""
    few, many = (memory(sawlog.spool(long_program(n)), f32(1)) for n in (1_000, 10_000))
    assert many[1] > 9 * few[1]


def test_memory_of_an_interval() -> None:
    """As large as what is kept, inside the loop as well."""
    few, many = (
        memory(sawlog.spool(long_program(10 * n), interval=n), f32(1)) for n in (100, 100_000)
    )
    assert few == many
    assert many[1] < 1000


def test_memory_of_logify_and_grad() -> None:
    def gradient(steps: int) -> Any:
        def f(x: Any) -> Any:
            def body(x: Any, _: Any) -> Any:
                sawlog.log({"k": x})
                return x + 1, None

            return lax.scan(body, x, None, steps)[0]

        return memory(sawlog.logify(jax.grad(f)), f32(1))

    assert gradient(1_000) == gradient(1_000_000)


# --- Ten million steps -------------------------------------------------------------------------

STEPS = often(1_000_000, 10_000_000)
NAMES = ("mean", "sum", "var")


@pytest.fixture(scope="module")
def long_run() -> tuple[dict[str, Any], np.ndarray]:
    """The reductions of three series of float32 numbers at once, and the numbers as float64."""
    random = np.random.default_rng(0)
    series = np.empty((STEPS, 3), f32)
    series[:, 0] = 1e3 + random.uniform(-1, 1, STEPS)
    series[:, 1] = np.arange(STEPS)
    series[:, 2] = random.uniform(0, 1, STEPS)
    series[0, 2] = 1e9

    def f(series: Any) -> None:
        def body(c: Any, x: Any) -> Any:
            for name in NAMES:
                sawlog.log(name, x, reduction=name)
            return c, None

        lax.scan(body, None, series)

    _, logs = sawlog.spool(f)(series)
    return dict(logs.to_numpy().items()), series.astype(np.float64)


@pytest.mark.parametrize("series", [0, 1, 2], ids=["noise", "ramp", "tiny after huge"])
@pytest.mark.parametrize("name", NAMES)
def test_millions_of_steps(long_run: Any, name: str, series: int) -> None:
    found, numbers = long_run
    expected = getattr(np, name)(numbers[:, series])
    assert abs(found[name][series] - expected) <= 1e-5 * abs(expected)


def test_var_of_a_constant_is_zero() -> None:
    def f(x: Any) -> Any:
        return lax.fori_loop(0, 100_000, lambda i, x: (sawlog.log({"k": x}), x)[1], x)

    assert sawlog.spool(f, reduce="var")(f32(1234.567))[1]["k"] < 1e-6
    assert sawlog.spool(f, reduce="std")(f32(1234.567))[1]["k"] < 1e-3
    close(sawlog.spool(f, reduce="mean")(f32(1234.567))[1]["k"], f32(1234.567), 1e-7)


# --- log_cotangent -----------------------------------------------------------------------------


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


def chain(x: Any) -> Any:
    """x halves four times; the gradient doubles back: 1/2, 1/4, 1/8, 1/16."""

    def body(x: Any, i: Any) -> Any:
        x = sawlog.log_cotangent("dx", x, step=i)
        return x * 0.5, None

    return lax.scan(body, x, jnp.arange(4))[0]


BACK = f32([0.5, 0.25, 0.125, 0.0625])


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
    logs = spooled(jax.grad(chain), f32(3), reduce=mode)
    close(logs["dx"], FOLDS[mode](BACK))
    close(logs.step["dx"], fold_steps(mode, [3, 2, 1, 0]))


def test_bounded_cotangents() -> None:
    close(spooled(jax.grad(chain), f32(3), interval=2)["dx"], BACK[::2])
    close(spooled(jax.grad(chain), f32(3), window=3)["dx"], BACK[1:])
    close(spooled(jax.grad(chain), f32(3), capacity={"dx": 3})["dx"], BACK[:3])
    close(sawlog.logify(jax.grad(chain))(f32(3))[1].asdict(), {"dx": {"replace": BACK[3]}})


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


# --- tap in pieces -----------------------------------------------------------------------------


def column(seen: Sequence[Any], key: str) -> list[Any]:
    """All entries of one name, in the order they came."""
    return [value for one in seen if key in one for value in one.entries()[key].tolist()]


def steps_of(seen: Sequence[Any], key: str) -> list[Any]:
    return [step for one in seen if key in one for step in np.reshape(one.step[key], -1).tolist()]


def count_to(n: int) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        def body(i: Any, x: Any) -> Any:
            sawlog.log({"x": x}, step=i)
            return x + 1

        return lax.fori_loop(0, n, body, x)

    return f


@pytest.mark.parametrize("buffer", [1, 2, 3, 5, 10, 11, 1000])
def test_pieces_of_a_loop(buffer: int) -> None:
    seen = tapped(count_to(10), 0, buffer=buffer)
    assert column(seen, "x") == steps_of(seen, "x") == list(range(10))
    assert len(seen) == math.ceil(10 / buffer)
    assert all(len(one.entries()["x"]) <= buffer for one in seen)
    assert all(isinstance(one["x"], np.ndarray) for one in seen)
    assert all(type(one) is sawlog.logdict for one in seen)


def test_every_piece_has_the_entry_axis() -> None:
    seen = tapped(count_to(5), 0, buffer=2)
    assert [one["x"].tolist() for one in seen] == [[0, 1], [2, 3], [4]]
    seen = tapped(count_to(3), 0, buffer=1)
    assert [one["x"].tolist() for one in seen] == [[0], [1], [2]]


def test_no_piece_without_entries() -> None:
    assert tapped(count_to(0), 0, buffer=3) == []
    assert tapped(lambda x: x, 0, buffer=3) == []


def test_one_log_outside_loops() -> None:
    seen = tapped(lambda x: (sawlog.log({"x": x, "y": 2 * x}, step=1), x)[1], f32(3), buffer=10)
    assert column(seen, "x") == [3]
    assert column(seen, "y") == [6]
    assert len(seen) == 1


@pytest.mark.parametrize("buffer", [1, 2, 3, 4, 7, 100])
def test_pieces_of_nested_loops(buffer: int) -> None:
    def f(x: Any) -> Any:
        def outer(i: Any, c: Any) -> Any:
            def inner(c: Any, j: Any) -> Any:
                sawlog.log({"in": 10 * i + j})
                return c + 1, None

            sawlog.log({"out": c}, step=i)
            c = lax.scan(inner, c, jnp.arange(4))[0]
            sawlog.log({"end": c})
            sawlog.log({"end": -c})
            return c

        sawlog.log({"out": -1}, step=-1)
        c = lax.fori_loop(0, 5, outer, x)
        sawlog.log({"out": c}, step=99)
        return c

    seen = tapped(f, 0, buffer=buffer)
    assert column(seen, "in") == [10 * i + j for i in range(5) for j in range(4)]
    assert column(seen, "out") == [-1, 0, 4, 8, 12, 16, 20]
    assert steps_of(seen, "out") == [-1, 0, 1, 2, 3, 4, 99]
    assert column(seen, "end") == [s * 4 * i for i in range(1, 6) for s in (1, -1)]
    if buffer == 100:
        assert len(seen) <= 3


@pytest.mark.parametrize("buffer", [1, 2, 5, 100])
def test_pieces_of_a_reverse_scan(buffer: int) -> None:
    seen = tapped(reverse, XS, buffer=buffer)
    assert column(seen, "k") == XS[::-1].tolist()
    assert steps_of(seen, "k") == [5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize("reverse", [False, True])
def test_pieces_leave_the_outputs_of_a_scan_in_order(reverse: bool) -> None:
    def f(xs: Any) -> Any:
        def body(c: Any, x: Any) -> Any:
            sawlog.log({"x": x})
            return c + x, (c, {"twice": 2 * x})

        return lax.scan(body, f32(0), xs, reverse=reverse)

    tapped(f, XS, buffer=4)
    tapped(f, XS, buffer=3)


@pytest.mark.parametrize("buffer", [1, 2, 3, 100])
def test_pieces_with_a_branch_inside(buffer: int) -> None:
    seen = tapped(log_large, XS, buffer=buffer)
    lane = lane_of_large(XS)
    assert column(seen, "k") == [float(x) for x in lane.values]
    assert steps_of(seen, "k") == lane.steps
    assert all(one.mask == {} for one in seen)


@pytest.mark.parametrize("buffer", [1, 2, 3, 4, 100])
@pytest.mark.parametrize("start", [1.0, 2.0, 12.0, 100.0])
def test_pieces_of_a_while_loop(start: float, buffer: int) -> None:
    seen = tapped(log_halving, f32(start), buffer=buffer)
    lane = lane_of_halving(start)
    assert column(seen, "k") == lane.values
    assert steps_of(seen, "k") == list(lane.steps)
    assert len(seen) <= math.ceil(len(lane.values) / buffer) + 1


def test_a_while_loop_is_called_back_in_pieces() -> None:
    seen = tapped(dynamic_fori, 100, buffer=10)
    assert len(column(seen, "k")) == 100
    assert len(seen) <= 11


@pytest.mark.parametrize("buffer", [1, 3, 100])
@pytest.mark.parametrize(
    "place",
    ["condition of while", "switch in while", "while in scan", "remat in grad", "two places"],
)
def test_pieces_elsewhere(place: str, buffer: int) -> None:
    row = PLACES[place]
    seen = tapped(row.fun, row.arg, buffer=buffer)
    assert isinstance(row.lanes, Lane)
    close(np.array(column(seen, "k")), np.asarray(row.lanes.values))
    assert steps_of(seen, "k") == list(row.lanes.steps)


@pytest.mark.parametrize(
    ("place", "buffer"),
    pairs(
        [
            "vmap",
            "cond in scan in vmap",
            "while in vmap",
            "while in scan in vmap",
            "condition of while in vmap",
            "switch in while in vmap",
        ],
        [1, 2, 4, 100],
        few=2,
    ),
)
def test_pieces_of_lanes(place: str, buffer: int) -> None:
    """tap(vmap(f), buffer=n): [entries, batch], and the mask says which lanes logged."""
    row = PLACES[place]
    assert isinstance(row.lanes, list)
    seen = tapped(row.fun, row.arg, buffer=buffer)
    for i, lane in enumerate(row.lanes):
        values, steps = [], []
        for one in seen:
            value = one.entries()["k"]
            shape = value.shape
            mask = np.reshape(one.mask.get("k", np.ones(shape, bool)), shape)[:, i]
            values += value[mask, i].tolist()
            steps += np.reshape(one.step["k"], shape)[mask, i].tolist()
        close(np.array(values), np.asarray(lane.values, np.float64))
        assert steps == list(lane.steps)


@pytest.mark.parametrize("buffer", [1, 2, 100])
def test_pieces_of_vmap_of_tap(buffer: int) -> None:
    """vmap(tap(f, buffer=n)): every lane calls back on its own."""
    seen: list[Any] = []
    fun = jax.vmap(sawlog.tap(log_all, seen.append, buffer=buffer))
    jax.block_until_ready(fun(ROWS))
    jax.effects_barrier()
    assert sorted(column(seen, "k")) == sorted(ROWS.reshape(-1).tolist())
    assert len(seen) == 3 * math.ceil(6 / buffer)


@pytest.mark.parametrize("buffer", [1, 4, 100])
def test_pieces_of_cotangents(buffer: int) -> None:
    seen = tapped(jax.grad(chain), f32(3), buffer=buffer)
    assert column(seen, "dx") == BACK.tolist()
    assert steps_of(seen, "dx") == [3, 2, 1, 0]


def test_pieces_in_shards() -> None:
    seen = tapped(in_shards, SHARDED, buffer=2)
    found = [v for one in seen for v in np.reshape(one["k"], -1).tolist()]
    assert sorted(found) == sorted(SHARDED.tolist())


def test_pieces_in_jit() -> None:
    for around in (
        lambda tap: jax.jit(tap),
        lambda tap: jax.jit(jax.jit(tap)),
    ):
        seen: list[Any] = []
        fun = around(sawlog.tap(count_to(10), seen.append, buffer=4))
        assert fun(0) == 10
        assert fun(100) == 110
        jax.effects_barrier()
        assert column(seen, "x") == [*range(10), *range(100, 110)]
        assert len(seen) == 6


def test_a_tap_with_a_buffer_is_called_twice() -> None:
    seen: list[Any] = []
    fun = sawlog.tap(count_to(5), seen.append, buffer=2)
    assert fun(0) == fun(0) == 5
    assert [one["x"].tolist() for one in seen] == 2 * [[0, 1], [2, 3], [4]]


def several(xs: Any) -> Any:
    def body(c: Any, x: Any) -> Any:
        sawlog.log({"a": x, "b": 2 * x}, tags="first")
        sawlog.log("c", 3 * x, tags=("second", "both"), reduction="mean")
        return c + x, None

    return lax.scan(body, f32(0), xs)[0]


CHOSEN: list[tuple[dict[str, Any], dict[str, float]]] = [
    ({}, {"a": 1, "b": 2, "c": 3}),
    ({"argnames": "b"}, {"b": 2}),
    ({"argnames": ["a", "c"]}, {"a": 1, "c": 3}),
    ({"tags": "both"}, {"c": 3}),
    ({"argnames": "a", "tags": "second"}, {}),
    ({"prefix": "p/"}, {"p/a": 1, "p/b": 2, "p/c": 3}),
    ({"prefix": "p/", "tags": "first"}, {"p/a": 1, "p/b": 2}),
]


@pytest.mark.parametrize(("options", "answer"), CHOSEN)
def test_pieces_of_chosen_names(options: dict[str, Any], answer: dict[str, float]) -> None:
    seen = tapped(several, XS, buffer=4, **options)
    assert {key for one in seen for key in one} == set(answer)
    for key, factor in answer.items():
        assert column(seen, key) == (factor * XS).tolist()
    if answer:
        assert len(seen) <= 2 * len(answer)


def test_several_names_come_together() -> None:
    seen = tapped(several, XS, buffer=3, tags="first")
    assert [set(one) for one in seen] == [{"a", "b"}] * 2


@pytest.mark.parametrize("buffer", [1, 3, 100])
def test_an_exception_in_a_callback(buffer: int) -> None:
    calls: list[Any] = []

    def callback(logs: Any) -> None:
        calls.append(logs)
        raise KeyError("no such drawer")

    with pytest.raises(KeyError, match="no such drawer") as caught:
        sawlog.tap(count_to(5), callback, buffer=buffer)(0)
    notes = "\n".join(getattr(caught.value, "__notes__", []))
    assert "'x'" in notes or re.search(r"\bx\b", notes)
    assert calls
    again: list[Any] = []
    assert sawlog.tap(count_to(5), again.append, buffer=buffer)(0) == 5
    assert column(again, "x") == [0, 1, 2, 3, 4]


def test_pieces_of_pytrees_and_keys() -> None:
    keys = jax.random.split(jax.random.key(0), 5)

    def f(keys: Any) -> None:
        def body(i: Any, key: Any) -> Any:
            sawlog.log({"t": {"key": key, "i": (i, i > 2)}})
            return i + 1, None

        lax.scan(body, 0, keys)

    seen: list[Any] = []
    sawlog.tap(f, seen.append, buffer=2)(keys)
    assert [len(one["t"]["i"][0]) for one in seen] == [2, 2, 1]
    assert [i for one in seen for i in one["t"]["i"][0].tolist()] == [0, 1, 2, 3, 4]
    found = [jax.random.key_data(one["t"]["key"]) for one in seen]
    assert np.array_equal(np.concatenate(found), jax.random.key_data(keys))


@pytest.mark.parametrize("bad", [0, -1, 1.5, "2", True])
def test_bad_buffers(bad: Any) -> None:
    with pytest.raises(ArgumentError, match="buffer") as caught:
        sawlog.tap(count_to(3), print, buffer=bad)
    assert repr(bad) in str(caught.value)


def test_a_numpy_integer_as_buffer() -> None:
    assert len(tapped(count_to(4), 0, buffer=np.int64(2))) == 2


def test_printed_pieces(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a callback the pieces are printed."""
    sawlog.tap(count_to(4), buffer=2)(0)
    assert "x" in capsys.readouterr().out


def test_memory_of_pieces_does_not_grow() -> None:
    few, many = (
        memory(sawlog.tap(count_to(n), lambda logs: None, buffer=50), 0) for n in (1_000, 1_000_000)
    )
    assert few == many


def test_a_loop_of_a_library() -> None:
    """The loop of odeint has no line of the user's; its logs are collected all the same."""

    def solve(y: Any) -> Any:
        def slope(y: Any, t: Any) -> Any:
            sawlog.log({"y": y}, t=t)
            return -y

        return odeint(slope, y, jnp.array([0.0, 1.0]))[-1]

    seen: list[float] = []
    tapped = sawlog.tap(solve, lambda logs: seen.append(float(logs["y"])))
    out, logs = sawlog.spool(solve, capacity=100)(f32(1))
    close(out, np.exp(f32(-1)), 1e-5)
    close(tapped(f32(1)), out)
    assert len(seen) > 10
    close(logs["y"], np.array(seen, f32))
    with pytest.raises(UnsupportedLoopError, match="capacity"):
        sawlog.spool(solve)(f32(1))
