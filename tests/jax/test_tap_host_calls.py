"""`tap(interval=, reduce=, buffer=)`: how often the host is called, and what else options meet."""

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
from sawlog.errors import ArgumentError, LogPlacementError
from sawlog.jax._transforms.tap_host import CallbackReceiver
from sawlog.loggers import MemoryLogger

from .tap_option_programs import XS, Options, Seen, same, steps


@pytest.fixture
def deliveries(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every host call, whether or not it has anything for the callback."""
    found: list[Any] = []
    deliver = CallbackReceiver.deliver

    def counted(self: Any, call: Any, arrays: Any) -> None:
        found.append(call)
        deliver(self, call, arrays)

    monkeypatch.setattr(CallbackReceiver, "deliver", counted)
    return found


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
    assert re.search(r"'x', 'more' at .*tap_option_programs.py:\d+", caught.value.__notes__[0])


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


def test_a_shard_map_over_some_axes_of_the_mesh() -> None:
    """JAX has no callbacks there; `spool` needs none."""
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)

    @jax.jit
    def fun(x: Any) -> Any:
        def local(x: Any) -> Any:
            sawlog.log({"x": x.sum()})
            return x

        spec = P("a")
        return jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, axis_names={"a"})(x)

    x = jnp.arange(4.0)
    with pytest.raises(
        LogPlacementError, match=r"'x' at .*test_tap_host_calls.*Hint: sawlog.spool"
    ):
        sawlog.tap(fun, print)(x)
    assert sawlog.spool(fun)(x)[1]["x"].tolist() == [1, 5]
