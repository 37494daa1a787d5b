"""`tap(interval=, reduce=, buffer=)`: which entries come, in which callbacks, in any program.

A table of programs, each with what it logs, lane by lane, by hand-written loops. What the options
make of it is computed here in plain Python; `spool` is the second witness.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog

from .tap_option_programs import XS, Entry, Options, Seen, same

ROWS = np.stack([XS, XS[::-1] + 1, np.zeros(7, np.float32)])
"""Three lanes; nothing of the last is above 2."""
Lane = dict[str, list[Entry]]
"""By name, the value and the step of each entry."""


# --- Programs, and what one call of each logs ----------------------------------------------------


def scan(xs: Any) -> Any:
    def body(total: Any, ix: Any) -> Any:
        i, x = ix
        sawlog.log({"k": x, "twice": 2 * x}, step=i)
        return total + x, None

    return lax.scan(body, jnp.float32(0), (jnp.arange(7), xs))[0]


def scan_lane(xs: Any) -> Lane:
    plain = list(enumerate(xs))
    return {"k": [(x, i) for i, x in plain], "twice": [(2 * x, i) for i, x in plain]}


def backwards(xs: Any) -> Any:
    def body(total: Any, ix: Any) -> Any:
        i, x = ix
        sawlog.log({"k": x}, step=i)
        return total + x, None

    return lax.scan(body, jnp.float32(0), (jnp.arange(7), xs), reverse=True)[0]


def backwards_lane(xs: Any) -> Lane:
    return {"k": [(xs[i], i) for i in range(6, -1, -1)]}


def ragged(xs: Any) -> Any:
    """One branch logs another number of entries than the other."""

    def body(total: Any, ix: Any) -> Any:
        i, x = ix

        def large() -> None:
            sawlog.log({"k": x}, step=i)
            sawlog.log({"k": -x, "large": x}, step=i)

        lax.cond(x > 2, large, lambda: sawlog.log({"small": x}, step=i))
        return total + x, None

    return lax.scan(body, jnp.float32(0), (jnp.arange(7), xs))[0]


def ragged_lane(xs: Any) -> Lane:
    lane: Lane = {"k": [], "large": [], "small": []}
    for i, x in enumerate(xs):
        if x > 2:
            lane["k"] += [(x, i), (-x, i)]
            lane["large"].append((x, i))
        else:
            lane["small"].append((x, i))
    return lane


def halving(xs: Any) -> Any:
    """A loop of unknown length, whose condition logs, too."""

    def cond(state: Any) -> Any:
        sawlog.log({"asked": state[1]}, step=state[0])
        return state[1] > 0.1

    def body(state: Any) -> Any:
        i, x = state
        sawlog.log({"k": x}, step=i)
        return i + 1, x / 2

    return lax.while_loop(cond, body, (0, xs[0]))[1]


def halving_lane(xs: Any) -> Lane:
    lane: Lane = {"k": [], "asked": [(xs[0], 0)]}
    i, x = 0, xs[0]
    while x > 0.1:
        lane["k"].append((x, i))
        i, x = i + 1, x / 2
        lane["asked"].append((x, i))
    return lane


def nested(xs: Any) -> Any:
    """One name at three places: before, and twice inside of loops in a loop."""

    def outer(total: Any, i: Any) -> Any:
        def inner(total: Any, j: Any) -> Any:
            x = jnp.take(xs, j)
            sawlog.log({"k": x + i}, step=10 * i + j)
            return total + x, None

        total = lax.scan(inner, total, jnp.arange(3))[0]
        total = lax.fori_loop(0, i, lambda j, total: inner(total, j)[0], total)
        sawlog.log({"outer": total}, step=i)
        return total, None

    sawlog.log({"k": xs[0]}, step=-1)
    return lax.scan(outer, jnp.float32(0), jnp.arange(4))[0]


def nested_lane(xs: Any) -> Lane:
    lane: Lane = {"k": [(xs[0], -1)], "outer": []}
    total = np.float32(0)
    for i in range(4):
        for j in [*range(3), *range(i)]:
            lane["k"].append((xs[j] + i, 10 * i + j))
            total += xs[j]
        lane["outer"].append((total, i))
    return lane


def overlapping(xs: Any) -> Any:
    """Two names that are logged together, but not always."""

    def body(total: Any, ix: Any) -> Any:
        i, x = ix
        sawlog.log({"k": x, "l": x + 1}, step=i)
        sawlog.log({"k": x + 2}, step=i)
        return total + x, None

    return jax.jit(lambda xs: lax.scan(body, jnp.float32(0), (jnp.arange(7), xs))[0])(xs)


def overlapping_lane(xs: Any) -> Lane:
    lane: Lane = {"k": [], "l": []}
    for i, x in enumerate(xs):
        lane["k"] += [(x, i), (x + 2, i)]
        lane["l"].append((x + 1, i))
    return lane


def squared(xs: Any) -> Any:
    """Logs in a differentiated loop, under checkpoint."""

    def loss(w: Any) -> Any:
        @jax.checkpoint
        def body(total: Any, ix: Any) -> Any:
            i, x = ix
            sawlog.log({"k": w * x}, step=i)
            return total + (w * x) ** 2, None

        return lax.scan(body, jnp.float32(0), (jnp.arange(7), xs))[0]

    return jax.grad(loss)(jnp.float32(2)) * 1e-3 + jnp.sum(xs)


def squared_lane(xs: Any) -> Lane:
    return {"k": [(2 * x, i) for i, x in enumerate(xs)]}


def once_and_never(xs: Any) -> Any:
    """Not in a loop, and in a loop that does not run."""
    sawlog.log({"k": xs[0]}, step=5)
    lax.scan(lambda c, i: (c, sawlog.log({"never": c}, step=i)), xs[0], jnp.arange(0))
    return xs[0]


def once_lane(xs: Any) -> Lane:
    return {"k": [(xs[0], 5)], "never": []}


PROGRAMS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Lane]]] = {
    "scan": (scan, scan_lane),
    "backwards": (backwards, backwards_lane),
    "ragged": (ragged, ragged_lane),
    "halving": (halving, halving_lane),
    "nested": (nested, nested_lane),
    "overlapping": (overlapping, overlapping_lane),
    "squared": (squared, squared_lane),
    "once": (once_and_never, once_lane),
}


OPTIONS = [
    Options(2),
    Options(3),
    Options(30),
    Options(2, 2),
    Options(3, 2),
    Options(2, 3),
    Options(2, 50),
    Options(reduce="mean"),
    Options(reduce="sum", buffer=3),
    Options(2, reduce="last", buffer=2),
    Options(2, reduce={"k": "max"}),
    Options(reduce={"k": "first", "large": "mean"}, buffer=2),
    Options(3, reduce={"k": "append", "outer": "sum", "l": "sum", "small": "mean"}, buffer=1),
]


def pairs(programs: list[str], first: int) -> list[tuple[str, Options]]:
    """Each of these programs with one of the options, from the ``first`` on."""
    options = itertools.islice(itertools.cycle(OPTIONS), first, None)
    return list(zip(programs, options, strict=False))


SOME_REDUCED = [
    ("scan", Options(reduce={"k": "max"})),
    ("scan", Options(2, reduce={"twice": "sum"}, buffer=2)),
]
"""Of names that are always logged together, one is reduced and the other is not."""


@pytest.mark.parametrize(
    ("program", "options"), [*pairs(list(PROGRAMS)[:5], 0), *SOME_REDUCED], ids=str
)
def test_called_alone(program: str, options: Options) -> None:
    fun, lane_of = PROGRAMS[program]
    seen = Seen(0)
    out = sawlog.tap(fun, seen.calls.append, **options.given())(XS)
    np.testing.assert_allclose(out, fun(XS), 1e-5)
    for name, entries in lane_of(XS).items():
        same(seen.batches(name, 0), options.callbacks(name, entries))


LANES_ONE_BY_ONE = [("ragged", Options(2)), ("halving", Options(3)), ("once", Options(2))]
"""Lanes that log at different times, or never, with nothing that waits on the device."""


@pytest.mark.parametrize(
    ("program", "options"), [*pairs(list(PROGRAMS)[2:], 5), *LANES_ONE_BY_ONE], ids=str
)
def test_vmap_inside(program: str, options: Options) -> None:
    fun, lane_of = PROGRAMS[program]
    seen = Seen(3)
    sawlog.tap(jax.vmap(fun), seen.calls.append, **options.given())(ROWS)
    for lane, row in enumerate(ROWS):
        for name, entries in lane_of(row).items():
            same(seen.batches(name, lane), options.callbacks(name, entries))


@pytest.mark.parametrize(("program", "options"), pairs(list(PROGRAMS), 9), ids=str)
def test_vmap_outside(program: str, options: Options) -> None:
    """Every lane has callbacks of its own."""
    fun, lane_of = PROGRAMS[program]
    seen = Seen(0)
    jax.jit(jax.vmap(sawlog.tap(fun, seen.calls.append, **options.given())))(ROWS)
    jax.effects_barrier()
    for name in lane_of(XS):
        lanes = [options.callbacks(name, lane_of(row)[name]) for row in ROWS]
        batches = [[(float(a), float(b)) for a, b in batch] for lane in lanes for batch in lane]
        same(sorted(seen.batches(name, 0)), sorted(batches))


@pytest.mark.parametrize(
    ("program", "options"),
    [
        ("backwards", Options(3)),
        ("overlapping", Options(2, reduce="mean")),
        ("halving", Options(reduce="sum")),
    ],
    ids=str,
)
def test_as_spool_says(program: str, options: Options) -> None:
    """All callbacks together have what `spool` returns, also the types."""
    fun, _ = PROGRAMS[program]
    seen = Seen(0)
    sawlog.tap(fun, seen.calls.append, **options.given())(XS)
    _, logs = sawlog.spool(fun, **options.given())(XS)
    assert {name for one in seen.calls for name in one} == set(logs)
    for name, value in logs.items():
        entries = [entry for batch in seen.batches(name, 0) for entry in batch]
        same([entries], Seen(0, [logs]).batches(name, 0))
        assert all(one[name].dtype == value.dtype for one in seen.calls if name in one)
        assert all(
            one.step[name].dtype == logs.step[name].dtype for one in seen.calls if name in one
        )
    if options.reduce is not None:
        (one,) = seen.calls
        assert all(one[name].shape == logs[name].shape for name in logs)
