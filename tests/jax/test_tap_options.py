"""`tap(interval=, reduce=, buffer=)`: which entries come, in which callbacks, in any program.

A table of programs, each with what it logs, lane by lane, by hand-written loops. What the options
make of it is computed here in plain Python; `spool` is the second witness.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import sawlog
from sawlog.errors import ArgumentError
from sawlog.jax._transforms.tap_host import Target
from sawlog.loggers import MemoryLogger

XS = np.array([3.0, 1.0, 4.0, 1.5, 9.0, 2.5, 6.0], np.float32)
ROWS = np.stack([XS, XS[::-1] + 1, np.zeros(7, np.float32)])
"""Three lanes; nothing of the last is above 2."""

Entry = tuple[float, float]
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


# --- What the options make of it -----------------------------------------------------------------

NUMPY: dict[str, Callable[[Any], Any]] = {
    "mean": np.mean,
    "sum": np.sum,
    "max": np.max,
    "last": lambda values: values[-1],
    "first": lambda values: values[0],
}


def step_of(mode: str, steps: Any) -> float:
    return float(NUMPY[mode if mode in ("mean", "first") else "last"](steps))


@dataclass(frozen=True)
class Options:
    """The options of one case."""

    interval: int | None = None
    buffer: int | None = None
    reduce: Any = None

    def mode(self, name: str) -> str | None:
        mode = self.reduce.get(name) if isinstance(self.reduce, dict) else self.reduce
        return None if mode == "append" else mode

    def callbacks(self, name: str, entries: list[Entry]) -> list[list[Entry]]:
        """The entries of a name in each callback that has any."""
        kept, mode = entries[:: self.interval or 1], self.mode(name)
        size = self.buffer or (1 if mode is None else max(1, len(kept)))
        batches = [kept[i : i + size] for i in range(0, len(kept), size)]
        if mode is None:
            return batches
        reduced = []
        for batch in batches:
            values, steps = zip(*batch, strict=True)
            reduced.append([(float(NUMPY[mode](values)), step_of(mode, steps))])
        return reduced

    def given(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if value is not None}


@dataclass
class Seen:
    """What a callback was given, of each name and lane."""

    lanes: int
    calls: list[Any] = field(default_factory=list)

    def batches(self, name: str, lane: int) -> list[list[Entry]]:
        found = []
        for logs in self.calls:
            if name in logs:
                values, steps = (np.asarray(x[name]) for x in (logs.entries(), logs.step))
                steps = steps.reshape(values.shape)
                mask = np.asarray(logs.mask.get(name, np.ones(values.shape, bool)))
                mask = mask.reshape(values.shape)
                if self.lanes:
                    values, steps, mask = values[:, lane], steps[:, lane], mask[:, lane]
                rows = list(zip(values[mask].tolist(), steps[mask].tolist(), strict=True))
                if rows:
                    found.append(rows)
        return found


def same(found: list[list[Entry]], expected: list[list[Entry]]) -> None:
    assert [len(batch) for batch in found] == [len(batch) for batch in expected]
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, np.array(two, np.float64), 1e-5)


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


@pytest.mark.turns(3)
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


@pytest.mark.turns(3)
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


@pytest.mark.turns(3)
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


# --- How often the host is called ----------------------------------------------------------------


@pytest.fixture
def deliveries(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every host call, whether or not it has anything for the callback."""
    found: list[Any] = []
    deliver = Target.deliver

    def counted(self: Any, call: Any, arrays: Any) -> None:
        found.append(call)
        deliver(self, call, arrays)

    monkeypatch.setattr(Target, "deliver", counted)
    return found


def steps(n: int) -> Callable[[Any], Any]:
    def fun(x: Any) -> Any:
        def body(x: Any, i: Any) -> Any:
            sawlog.log({"x": x, "more": x + 1}, step=i)
            return x + 1, None

        return lax.scan(body, x, jnp.arange(n))[0]

    return fun


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("around", "options", "calls"),
    [
        ("nothing", {"interval": 10}, 10),
        ("vmap", {"interval": 10}, 10),
        ("grad", {"interval": 10}, 10),
        ("vmap", {"interval": 10, "buffer": 4}, 3),
        ("grad", {"buffer": 30, "reduce": "mean"}, 4),
        ("grad", {"reduce": "mean"}, 1),
    ],
    ids=str,
)
def test_number_of_host_calls(around: str, options: Any, calls: int, deliveries: list[Any]) -> None:
    seen: list[Any] = []
    fun = sawlog.tap(steps(100), seen.append, **options)
    wrap: dict[str, Callable[[Any], Any]] = {
        "nothing": lambda f: f,
        "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, x]))[0],
        "grad": lambda f: lambda x: jax.value_and_grad(f)(x)[0],
    }
    assert wrap[around](fun)(0.0) == 100
    jax.effects_barrier()
    assert len(deliveries) == calls
    assert len(seen) == calls * (2 if around == "vmap" else 1)
    assert all(set(one) == {"x", "more"} for one in seen)


def test_no_host_calls_for_lanes_that_have_nothing_due(deliveries: list[Any]) -> None:
    """Lanes count for themselves, and the host is called when any of them is due."""

    def fun(n: Any) -> Any:
        return lax.fori_loop(0, n, lambda i, c: (sawlog.log({"i": i + n}), c)[1], n)

    seen: list[Any] = []
    jax.vmap(sawlog.tap(fun, seen.append, interval=5))(jnp.array([3, 12, 0]))
    jax.effects_barrier()
    assert [int(one["i"]) for one in seen] == [3, 12, 17, 22]
    assert len(deliveries) == 3


def test_names_logged_together_share_callbacks() -> None:
    def fun(x: Any) -> Any:
        def body(x: Any, i: Any) -> Any:
            sawlog.log({"loss": x, "acc": -x}, step=i)
            sawlog.log({"lr": x + 1}, step=i)
            return x + 1, None

        return lax.scan(body, x, jnp.arange(6))[0]

    seen: list[Any] = []
    sawlog.tap(fun, seen.append, interval=4)(0)
    assert seen == [{"loss": 0, "acc": 0}, {"lr": 1}, {"loss": 4, "acc": -4}, {"lr": 5}]
    seen.clear()
    sawlog.tap(fun, seen.append, buffer=4, reduce={"loss": "mean", "acc": "last"})(0)
    assert [{k: v.tolist() for k, v in one.items()} for one in seen] == [
        {"loss": 1.5, "acc": -3},
        {"lr": [1, 2, 3, 4]},
        {"loss": 4.5, "acc": -5, "lr": [5, 6]},
    ]


# --- Reductions ----------------------------------------------------------------------------------


def asking(x: Any) -> Any:
    def body(x: Any, i: Any) -> Any:
        sawlog.log("sum", x, reduction="sum", step=i)
        sawlog.log("plain", x, step=i)
        return x + 1, None

    return lax.scan(body, x, jnp.arange(4))[0]


@pytest.mark.parametrize("options", [{"reduce": "last"}, {"interval": 2, "buffer": 2}], ids=str)
def test_names_logged_together_in_another_order(options: dict[str, Any]) -> None:
    def f(xs: Any) -> None:
        def body(c: Any, x: Any) -> Any:
            sawlog.log({"a": x, "b": jnp.stack([x, -x])})
            sawlog.log({"b": jnp.stack([x, 10 * x]), "a": 10 * x})
            return c, None

        lax.scan(body, None, xs)

    seen: list[Any] = []
    sawlog.tap(f, seen.append, **options)(XS[:3])
    ends = np.repeat(XS[:3], 2)
    a, b = ends * np.tile([1, 10], 3), np.stack([ends, ends * np.tile([-1, 10], 3)], axis=1)
    kept = slice(-1, None) if "reduce" in options else slice(None, None, 2)
    for name, expected in {"a": a, "b": b}.items():
        found = [np.asarray(logs.entries()[name]) for logs in seen]
        np.testing.assert_allclose(np.concatenate(found), expected[kept])


def test_what_a_log_asks_for_itself() -> None:
    def of(**options: Any) -> list[Any]:
        seen: list[Any] = []
        sawlog.tap(asking, seen.append, **options)(1)
        return seen

    plain = [{"plain": i} for i in range(1, 5)]
    assert of(reduce={}) == [*plain, {"sum": 10}]
    assert of(reduce={"plain": "last"}) == [{"sum": 10, "plain": 4}]
    assert of(reduce={"sum": "max", "plain": "max"}) == [{"sum": 4, "plain": 4}]
    assert of(reduce={}, argnames="sum", buffer=3) == [{"sum": 6}, {"sum": 4}]
    assert of(argnames="sum", interval=2) == [{"sum": 1}, {"sum": 3}]


def test_a_reduction_of_ones_own() -> None:
    product = sawlog.Reduction(
        "product",
        init=lambda like: jax.tree.map(jnp.ones_like, like),
        update=lambda state, x: jax.tree.map(jnp.multiply, state, x),
        finish=lambda state: state,
    )

    def fun(x: Any) -> Any:
        def body(x: Any, i: Any) -> Any:
            sawlog.log({"t": {"a": x, "b": (jnp.stack([x, -x]),)}}, step=i)
            return x + 1, None

        return lax.scan(body, x, jnp.arange(5))[0]

    seen: list[Any] = []
    sawlog.tap(fun, seen.append, reduce=product, buffer=2)(1)
    assert [one["t"]["a"].tolist() for one in seen] == [2, 12, 5]
    assert [one["t"]["b"][0].tolist() for one in seen] == [[2, 2], [12, 12], [5, -5]]
    assert [int(one.step["t"]) for one in seen] == [1, 3, 4]
    assert seen[0].asdict().keys() == {"t"}
    assert seen[0].asdict()["t"].keys() == {"product"}


def test_keys_of_random_numbers() -> None:
    def fun(key: Any) -> Any:
        def body(key: Any, i: Any) -> Any:
            sawlog.log({"key": key, "last": key}, step=i)
            return jax.random.fold_in(key, i), None

        return lax.scan(body, key, jnp.arange(5))[0]

    keys = [jax.random.key(3)]
    for i in range(4):
        keys.append(jax.random.fold_in(keys[-1], i))
    seen: list[Any] = []
    sawlog.tap(fun, seen.append, interval=2, buffer=2, reduce={"last": "last"})(keys[0])
    first, second = (one["key"] for one in seen if "key" in one)
    assert jnp.array_equal(first, jnp.stack([keys[0], keys[2]]))
    assert jnp.array_equal(second, jnp.stack([keys[4]]))
    lasts = [one["last"] for one in seen if "last" in one]
    assert jnp.array_equal(jnp.stack(lasts), jnp.stack([keys[2], keys[4]]))


AROUND: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "checkpoint": lambda tapped: jax.grad(jax.checkpoint(tapped)),
    "hessian": jax.hessian,
    "cond": lambda tapped: (
        lambda x: jax.vmap(lambda x: lax.cond(x < 1, tapped, jnp.sin, x))(jnp.stack([x, x + 1]))
    ),
    "scan": lambda tapped: lambda x: lax.scan(lambda c, _: (tapped(c) - 9, None), x, length=2)[0],
}


@pytest.mark.turns(2)
@pytest.mark.parametrize("around", AROUND)
def test_within_another_transformation(around: str) -> None:
    """Each call of the tapped function counts anew."""
    seen: list[Any] = []
    jax.block_until_ready(
        AROUND[around](sawlog.tap(steps(9), seen.append, interval=4, buffer=2))(0.0)
    )
    jax.effects_barrier()
    times = 2 if around == "scan" else 1
    assert [one["x"].tolist() for one in seen] == [[0, 4], [8]] * times


# --- The rest ------------------------------------------------------------------------------------


@pytest.mark.turns(3)
@pytest.mark.parametrize("buffer", [None, 2])
@pytest.mark.parametrize("mode", [None, "sum"])
def test_shard_map(mode: str | None, buffer: int | None) -> None:
    """Every shard counts for itself, and calls back for itself until the end."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))

    def local(x: Any) -> Any:
        def body(x: Any, i: Any) -> Any:
            lax.cond(x[0] > 11, lambda: sawlog.log({"x": x[0]}, step=i), lambda: None)
            return x + 1, None

        return lax.scan(body, x, jnp.arange(8))[0]

    fun = jax.shard_map(local, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    seen = Seen(0)
    options = Options(2, buffer, mode)
    out = sawlog.tap(fun, seen.calls.append, **options.given())(jnp.array([8.0, 20.0]))
    assert out.tolist() == [16, 28]
    lanes = [[(x + i, i) for i in range(8) if x + i > 11] for x in (8, 20)]
    batches = [batch for lane in lanes for batch in options.callbacks("x", lane)]
    if mode is not None and buffer is None:
        (one,) = seen.calls
        assert one["x"].tolist() == [value for ((value, _),) in batches]
    else:
        same(sorted(seen.batches("x", 0)), sorted(batches))


def test_selection_and_prefix() -> None:
    def fun(x: Any) -> Any:
        def body(x: Any, i: Any) -> Any:
            sawlog.log({"a": x, "b": -x}, tags="t", step=i)
            sawlog.log({"a": 10 * x}, step=i)
            return x + 1, None

        return lax.scan(body, x, jnp.arange(4))[0]

    def of(**options: Any) -> list[Any]:
        seen: list[Any] = []
        sawlog.tap(fun, seen.append, **options)(1)
        return [{key: value.tolist() for key, value in one.items()} for one in seen]

    assert of(argnames="b", interval=3) == [{"b": -1}, {"b": -4}]
    assert of(tags="t", interval=3) == [{"a": 1, "b": -1}, {"a": 4, "b": -4}]
    assert of(interval=3, argnames="a", prefix="p/") == [{"p/a": x} for x in (1, 20, 4)]
    assert of(reduce={"a": "sum"}, prefix="p/", tags="t", interval=2) == [
        {"p/b": -1},
        {"p/b": -3},
        {"p/a": 4},
    ]
    assert of(tags="none", interval=2, reduce="sum", buffer=2) == []


def test_each_signature_is_traced_once() -> None:
    traced: list[int] = []

    def fun(x: Any) -> Any:
        traced.append(1)
        return steps(6)(x)

    def of(**options: Any) -> list[Any]:
        seen: list[Any] = []
        sawlog.tap(fun, seen.append, **options)(0)
        return [one["x"].tolist() for one in seen]

    cases: list[tuple[dict[str, Any], list[Any]]] = [
        ({"interval": 2}, [0, 2, 4]),
        ({"interval": 3}, [0, 3]),
        ({"reduce": "sum"}, [15]),
        ({"interval": 3, "buffer": 2}, [[0, 3]]),
    ]
    for count, (options, expected) in enumerate(cases, 1):
        for _ in range(2):
            assert of(**options) == expected
            assert len(traced) == count


def test_an_exception_names_the_log() -> None:
    def fail(logs: Any) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        sawlog.tap(steps(4), fail, interval=2)(0)
    assert re.search(r"'x', 'more' at .*test_tap_options.py:\d+", caught.value.__notes__[0])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"interval": 0}, "`interval` must be a positive integer; got 0."),
        ({"interval": True}, "`interval` must be a positive integer; got True."),
        ({"interval": 2.0}, "`interval` must be a positive integer; got 2.0."),
        ({"reduce": "median"}, "`reduce` must be one of 'append', 'count'"),
        ({"reduce": {"x": "median"}}, "`reduce['x']` must be one of 'append', 'count'"),
        ({"reduce": 3}, "'var', or a sawlog.Reduction; got 3."),
    ],
    ids=str,
)
def test_wrong_options(options: Any, text: str) -> None:
    logger = MemoryLogger()
    state = logger.init(0)
    for wrap in (
        lambda: sawlog.tap(steps(2), **options),
        lambda: logger.tap(steps(2), state, **options),
        lambda: sawlog.spool(steps(2), **options),
    ):
        with pytest.raises(ArgumentError, match=re.escape(text)):
            wrap()
    logger.close()


def test_a_buffer_never_sends_more_than_it_holds() -> None:
    def mapped(x: Any) -> Any:
        sawlog.log({"x": x})
        return x

    calls: list = []
    loop = lambda xs: lax.map(mapped, xs, batch_size=3)
    sawlog.tap(loop, calls.append, buffer=2)(jnp.arange(8.0))
    assert [logs["x"].shape for logs in calls] == [(2, 3), (1, 2)]

    def after_a_loop(xs: Any) -> Any:
        out = lax.map(mapped, xs)
        sawlog.log({"x": xs[0]})
        return out

    calls.clear()
    sawlog.tap(after_a_loop, calls.append, buffer=2)(jnp.arange(2.0))
    assert [len(logs["x"]) for logs in calls] == [2, 1]
