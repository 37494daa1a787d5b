"""Places where a log can stand, each with what is logged there, lane by lane.

The table is run with every reduction (`test_reductions`), every bound (`test_bounds`) and in
pieces (`test_pieces`); what else those tests share is here as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

import sawlog

from .place_programs import (
    ROWS,
    XS,
    Lane,
    Place,
    around_while,
    around_while_in_scan,
    close,
    dynamic_fori,
    equal_turns,
    f32,
    in_backward_rule,
    in_condition,
    in_custom_vjp,
    in_jvp,
    in_remat,
    in_shards,
    lane_around_while,
    lane_of_halving,
    lane_of_large,
    lane_of_remat_of_a_scan,
    lane_of_while_in_scan,
    lanes_of_two_widths,
    log_all,
    log_halving,
    log_large,
    map_in_batches,
    nested,
    one_after_another,
    remat_of_a_scan,
    remat_of_two_scans,
    reverse,
    switch_in_while,
    two_places,
    vmap_in_while,
    while_in_one_branch,
    while_in_scan,
)

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
