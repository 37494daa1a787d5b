"""Interval, window and capacity: every bound in every place, and what the table does not say."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import sawlog
from sawlog.errors import ArgumentError, UnsupportedLoopError
from tests.thorough import often

from .place_programs import XS, Lane, Place, close, f32, log_all, log_halving, spooled
from .places import PLACES, rows_of, spooled_place


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
        assert np.all(mask)
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


@pytest.mark.turns(2)
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


@pytest.mark.turns
@pytest.mark.parametrize("n", [2, 1, 5, 3, 20, 13])
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


@pytest.mark.parametrize("step", [{}, {"step": 2}])
def test_a_constant_that_is_kept_and_then_reduced(step: dict[str, int]) -> None:
    """Nothing of it is traced, though the program is."""

    def fun(x):
        sawlog.log({"a": 3.0}, **step)
        return x

    for run in (sawlog.spool(fun, window=1, reduce="mean"), sawlog.spool(fun, window=2)):
        _, logs = run(1.0)
        assert logs["a"] == 3.0
        assert not step or logs.step["a"] == 2


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


def test_a_log_before_a_loop_of_unknown_length() -> None:
    def f(x: Any) -> Any:
        sawlog.log({"k": -x}, step=-1)
        return log_halving(x)

    logs = spooled(f, f32(8), capacity=3)
    close(logs["k"], f32([-8, 8, 4]))
    assert logs.dropped["k"] == 1


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


@pytest.mark.parametrize(
    "options", [{"interval": 2}, {"window": 3}, {"reduce": "sum"}, {"capacity": {"k": 2}}]
)
def test_no_step_at_all(options: dict[str, Any]) -> None:
    def f(xs: Any) -> None:
        lax.scan(lambda c, x: (c, sawlog.log({"k": x})), None, xs)

    _, logs = sawlog.spool(f, **options)(XS[:0])
    found = logs["k"]
    assert found.shape == (0,)
    assert logs.reduce("count").get("k", 0) == 0


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


@pytest.mark.parametrize("name", ["while of equal lanes", "vmap in while"])
def test_the_mask_of_equal_lanes_covers_all_of_them(name: str) -> None:
    place = PLACES[name]
    _, logs = jax.eval_shape(sawlog.spool(place.fun, capacity=4), place.arg)
    assert logs["k"].shape == logs.mask["k"].shape == logs.step["k"].shape == (4, 2)


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


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"reduce": "mean"}, 2),
        ({"window": 2}, [3, 4]),
        ({"capacity": 3}, [0, 1, 2]),
        ({"capacity": 9, "interval": 2}, [0, 2, 4]),
    ],
    ids=str,
)
def test_export_of_a_loop_of_symbolic_length(options: dict[str, Any], kept: Any) -> None:
    def f(xs):
        lax.scan(lambda _, x: (None, sawlog.log("k", x, step=x)), None, xs)

    (length,) = jax.export.symbolic_shape("n")
    like = jax.ShapeDtypeStruct((length,), f32)
    _, logs = jax.export.export(jax.jit(sawlog.spool(f, **options)))(like).call(
        np.arange(5, dtype=f32)
    )
    close(logs["k"], f32(kept))
    with pytest.raises(UnsupportedLoopError, match="capacity="):
        jax.export.export(jax.jit(sawlog.spool(f, interval=2)))(like)


def test_logs_of_lanes_in_while_are_the_lanes_of_spool() -> None:
    """The law: spool(vmap(f)) is vmap(spool(f)), with the axes swapped."""
    xs = np.array([1, 4, 24], f32)
    _, inside = sawlog.spool(jax.vmap(log_halving), capacity=9)(xs)
    _, outside = jax.vmap(sawlog.spool(log_halving, capacity=9))(xs)
    for lane in range(3):
        one = inside["k"][inside.mask["k"][:, lane], lane]
        two = outside["k"][lane][outside.mask["k"][lane]]
        close(one, two)


@pytest.mark.parametrize("chosen", [{"reduce": "sum"}, {"window": 2}, {"interval": 2}], ids=str)
def test_every_device_of_a_square_has_its_own_state(chosen: dict[str, Any]) -> None:
    square = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)

    def shard(x: Any) -> Any:
        def body(x: Any, _: Any) -> Any:
            sawlog.log({"k": x[0, 0]})
            return 2 * x, None

        return lax.scan(body, x, None, length=3)[0]

    x = np.array([[1, 2], [3, 4]], f32)
    fun = jax.shard_map(shard, mesh=square, in_specs=P("x", "y"), out_specs=P("x", "y"))
    _, logs = sawlog.spool(fun, **chosen)(x)
    wanted = {"reduce": 7 * x, "window": np.stack([2 * x, 4 * x]), "interval": np.stack([x, 4 * x])}
    close(logs["k"], wanted[next(iter(chosen))])
