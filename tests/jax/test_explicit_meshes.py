"""Explicit meshes: what is collected has the sharding of what is logged, and costs no gathering."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import sawlog
from sawlog.loggers import SaveLogger

from .cases_explicit import M48, line, placed, square

pytestmark = pytest.mark.turns(3)


STEPS = 5
ROWS = [M48 * 0.5**i for i in range(1, STEPS + 1)]
"""What `train` logs, by hand."""


def train(x: Any) -> Any:
    """Halve and log, in a loop."""

    def body(x: Any, i: Any) -> Any:
        x = x * 0.5
        sawlog.log({"x": x}, step=i)
        return x, None

    return lax.scan(body, x, jnp.arange(STEPS))[0]


def halve(x: Any) -> Any:
    """The same in a loop of unknown length."""

    def body(carry: Any) -> Any:
        i, x = carry
        x = x * 0.5
        sawlog.log({"x": x}, step=i)
        return i + 1, x

    return lax.while_loop(lambda carry: carry[1].sum() > 16, body, (0, x))[1]


def some(x: Any) -> Any:
    """Log every other time, in a branch."""

    def body(x: Any, i: Any) -> Any:
        x = x * 0.5
        lax.cond(i % 2 == 0, lambda: sawlog.log({"x": x}, step=i), lambda: None)
        return x, None

    return lax.scan(body, x, jnp.arange(STEPS))[0]


total = sawlog.Reduction(
    "total",
    init=lambda like: jnp.zeros(like.shape, like.dtype),  # not sharded, and need not be
    update=lambda state, x: state + x,
    finish=lambda state: state,
)

OPTIONS: list[tuple[dict[str, Any], Callable[[list], Any]]] = [
    ({}, np.stack),
    ({"reduce": "mean"}, lambda rows: np.mean(rows, axis=0)),
    ({"reduce": "sum"}, lambda rows: np.sum(rows, axis=0)),
    ({"reduce": "std"}, lambda rows: np.std(rows, axis=0)),
    ({"reduce": "min"}, lambda rows: np.min(rows, axis=0)),
    ({"reduce": "first"}, lambda rows: rows[0]),
    ({"reduce": "last"}, lambda rows: rows[-1]),
    ({"reduce": "count"}, lambda rows: np.full(rows[0].shape, len(rows), np.int32)),
    ({"reduce": total}, lambda rows: np.sum(rows, axis=0)),
    ({"interval": 2}, lambda rows: np.stack(rows[::2])),
    ({"interval": 2, "reduce": "max"}, lambda rows: rows[0]),
    ({"window": 2}, lambda rows: np.stack(rows[-2:])),
    ({"window": 2, "reduce": "mean"}, lambda rows: np.mean(rows[-2:], axis=0)),
    ({"capacity": {"x": 2}}, lambda rows: np.stack(rows[:2])),
    ({"capacity": {"x": 2}, "keep": "last"}, lambda rows: np.stack(rows[-2:])),
]
options = pytest.mark.parametrize(
    ("chosen", "expected"), OPTIONS, ids=["-".join(map(str, o.values())) for o, _ in OPTIONS]
)


def by_hand(chosen: dict[str, Any], rows: list) -> Any:
    """What an option makes of some rows."""
    return next(expected for option, expected in OPTIONS if option == chosen)(rows)


def context(mesh: Any, entered: bool) -> Any:
    """The mesh as context, or nothing: arrays know it themselves."""
    return jax.set_mesh(mesh) if entered else contextlib.nullcontext()


def spec_of(array: Any) -> tuple[Any, ...]:
    """The mesh axes of each axis, as the type says."""
    return tuple(jax.typeof(array).sharding.spec)


def collectives(fun: Callable[..., Any], *args: Any) -> list[str]:
    """The communication between devices in the compiled program."""
    text = jax.jit(lambda *args: fun(*args)).lower(*args).compile().as_text()
    names = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
    return sorted(re.findall(rf" ({names})(?:-start)?\(", text))


@options
def test_spool(chosen: dict, expected: Callable) -> None:
    """Every option gives the values of one device, sharded as they were logged, for nothing."""
    x = placed(M48, square(), "x", "y")
    with jax.set_mesh(square()):
        fun = sawlog.spool(train, **chosen)
        out, logs = fun(x)
        assert collectives(fun, x) == []
    found, want = logs["x"], expected(ROWS)
    np.testing.assert_allclose(found, want, rtol=1e-6)
    assert spec_of(found) == (None,) * (want.ndim - 2) + ("x", "y")
    assert spec_of(out) == ("x", "y")


def test_collectives_are_seen() -> None:
    """The check above would find one."""
    x = placed(M48, square(), "x", "y")
    with jax.set_mesh(square()):
        assert collectives(lambda x: jax.sharding.reshard(x, P(None, "y")), x) == ["all-gather"]


def test_collectives_are_seen_in_loops() -> None:
    """A program that logs a sum has the communication of the sum alone."""
    x = placed(M48, square(), "x", "y")

    def fun(x: Any) -> Any:
        def body(x: Any, i: Any) -> Any:
            sawlog.log({"x": x, "sum": x.sum()}, step=i)
            return x * 0.5, None

        return lax.scan(body, x, jnp.arange(STEPS))[0]

    def threaded(x: Any) -> Any:
        def body(carry: Any, i: Any) -> Any:
            x, mean, sums = carry
            return (x * 0.5, mean + x / STEPS, sums + x.sum() / STEPS), None

        return lax.scan(body, (x, x * 0, jnp.float32(0)), jnp.arange(STEPS))[0]

    with jax.set_mesh(square()):
        plain = collectives(threaded, x)
        assert collectives(sawlog.spool(fun, reduce="mean"), x) == plain != []


@pytest.mark.turns(3)
@options
def test_branches(chosen: dict, expected: Callable) -> None:
    """What a branch may not log is masked; without a context."""
    x = placed(M48, line(), None, "x")
    _, logs = sawlog.spool(some, **chosen)(x)
    want = expected(ROWS[::2])
    np.testing.assert_allclose(logs["x"], want, rtol=1e-6)
    assert spec_of(logs["x"]) == (None,) * (want.ndim - 1) + ("x",)


@pytest.mark.parametrize("entered", [True, False], ids=["context", "no_context"])
@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"capacity": 3}, np.stack(ROWS[:3])),
        ({"capacity": 3, "keep": "last"}, np.stack(ROWS[2:5])),
        ({"reduce": "mean"}, np.mean(ROWS[:5], axis=0)),
    ],
)
def test_loop_of_unknown_length(chosen: dict, expected: Any, entered: bool) -> None:
    """A while loop, whose state is its carry."""
    x = placed(M48, square(), "x", "y")
    with context(square(), entered):
        _, logs = sawlog.spool(halve, **chosen)(x)
    np.testing.assert_allclose(logs["x"], expected, rtol=1e-6)
    assert spec_of(logs["x"])[-2:] == ("x", "y")


@pytest.mark.parametrize("entered", [True, False], ids=["context", "no_context"])
@pytest.mark.parametrize("chosen", [{}, {"reduce": "mean"}, {"window": 2}], ids=str)
def test_vmap_of_spool(chosen: dict, entered: bool) -> None:
    """The mapped axis is sharded, and another one; a branch in the loop logs with a step."""

    def lane(row: Any) -> Any:
        def body(row: Any, i: Any) -> Any:
            row = row * 0.5
            lax.cond(row.sum() > 10, lambda: sawlog.log({"x": row}, step=i), lambda: None)
            return row, None

        return lax.scan(body, row, jnp.arange(STEPS))[0]

    x = placed(M48, square(), "x", "y")
    with context(square(), entered):
        fun = jax.vmap(sawlog.spool(lane, **chosen))
        out, logs = jax.jit(fun)(x)
        assert collectives(fun, x) == ["all-reduce"]  # the sum that decides
    assert spec_of(out) == ("x", "y")
    assert spec_of(logs["x"]) == ("x", *(None,) * (logs["x"].ndim - 2), "y")
    logs = logs.to_numpy()
    for i in range(4):
        logged = [row[i] for row in ROWS if row[i].sum() > 10]
        mask = logs.mask["x"][i]
        assert mask.any() == bool(logged)
        if logged:
            found = logs["x"][i] if "reduce" in chosen else logs["x"][i][mask]
            np.testing.assert_allclose(found, by_hand(chosen, logged), rtol=1e-6)
            steps = np.arange(len(logged))[-2:] if "window" in chosen else np.arange(len(logged))
            steps = steps.mean() if "reduce" in chosen else steps
            np.testing.assert_allclose(np.squeeze(logs.step["x"][i][mask]), np.squeeze(steps))


@pytest.mark.parametrize(
    "chosen", [{}, {"reduce": "mean"}, {"interval": 2}, {"window": 2}], ids=str
)
def test_vmap_inside(chosen: dict) -> None:
    """`spool(vmap(f))`: every lane has its own state, on its own devices."""
    x = placed(M48, square(), "x", "y")
    with jax.set_mesh(square()):
        fun = sawlog.spool(jax.vmap(train), **chosen)
        _, logs = fun(x)
        assert collectives(fun, x) == []
    want = by_hand(chosen, ROWS)
    np.testing.assert_allclose(logs["x"], want, rtol=1e-6)
    assert spec_of(logs["x"])[-2:] == ("x", "y")


@pytest.mark.parametrize("chosen", [{"capacity": 2, "keep": "last"}, {"reduce": "mean"}], ids=str)
def test_lanes_that_end_at_different_times(chosen: dict) -> None:
    """A while loop whose condition is mapped, along a sharded axis."""

    def lane(row: Any) -> Any:
        def body(row: Any) -> Any:
            sawlog.log({"x": row})
            return row * 0.5

        return lax.while_loop(lambda row: row.sum() > 10, body, row)

    with jax.set_mesh(square()):
        _, logs = sawlog.spool(jax.vmap(lane), **chosen)(placed(M48, square(), "x", "y"))
    assert spec_of(logs["x"])[-2:] == ("x", "y")
    logs = logs.to_numpy()
    for i in range(4):
        logged = [M48[i] * 0.5**k for k in range(9) if (M48[i] * 0.5**k).sum() > 10]
        if "reduce" in chosen:
            np.testing.assert_allclose(logs["x"][i], np.mean(logged, axis=0), rtol=1e-6)
        else:
            kept = logs["x"][:, i][logs.mask["x"][:, i]] if logs.mask else logs["x"][:, i]
            np.testing.assert_allclose(kept, np.stack(logged[-2:]), rtol=1e-6)


@pytest.mark.parametrize("chosen", [{}, {"reduce": "mean"}, {"window": 1}], ids=str)
def test_map_with_a_rest(chosen: dict) -> None:
    """`lax.map` in batches: what is left over has fewer lanes."""

    def row(x: Any) -> Any:
        sawlog.log({"x": x})
        return x * 2

    def fun(x: Any) -> Any:
        return lax.map(row, x, batch_size=3)

    with jax.set_mesh(line()):
        _, logs = sawlog.spool(fun, **chosen)(placed(M48, line(), None, "x"))
    assert spec_of(logs["x"])[-1] == "x"
    _, want = sawlog.spool(fun, **chosen)(M48)
    np.testing.assert_allclose(logs["x"], want["x"], rtol=1e-6)


def test_keys() -> None:
    """PRNG keys are sharded as any other array."""

    def fun(keys: Any) -> Any:
        def body(keys: Any, i: Any) -> Any:
            sawlog.log({"key": keys}, step=i)
            return jax.vmap(jax.random.fold_in, (0, None))(keys, i), None

        return jax.random.key_data(lax.scan(body, keys, jnp.arange(3))[0])

    keys = jax.random.split(jax.random.key(0), 4)
    for chosen in ({}, {"reduce": "first"}, {"window": 2}):
        _, want = sawlog.spool(fun, **chosen)(keys)
        with jax.set_mesh(line()):
            _, logs = sawlog.spool(fun, **chosen)(placed(keys, line(), "x"))
        assert spec_of(logs["key"])[-1] == "x"
        found, expected = map(jax.random.key_data, (logs["key"], want["key"]))
        np.testing.assert_array_equal(found, expected)


TAPS: list[tuple[dict[str, Any], list[Any]]] = [
    ({}, ROWS),
    ({"buffer": 3}, [np.stack(ROWS[:3]), np.stack(ROWS[3:])]),
    ({"interval": 2}, ROWS[::2]),
    ({"interval": 2, "buffer": 2}, [np.stack(ROWS[0:3:2]), np.stack(ROWS[4:])]),
    ({"reduce": "mean"}, [np.mean(ROWS, axis=0)]),
    ({"reduce": "last", "buffer": 2}, [ROWS[1], ROWS[3], ROWS[4]]),
]


@pytest.mark.parametrize("fun", [train, halve], ids=["scan", "while"])
@pytest.mark.parametrize(("chosen", "expected"), TAPS, ids=[str(o) for o, _ in TAPS])
def test_tap(fun: Callable, chosen: dict, expected: list) -> None:
    """Callbacks get whole arrays."""
    seen: list = []
    with jax.set_mesh(square()):
        sawlog.tap(fun, seen.append, **chosen)(placed(M48, square(), "x", "y"))
    assert len(seen) == len(expected)
    for logs, want in zip(seen, expected, strict=True):
        np.testing.assert_allclose(logs["x"], want, rtol=1e-6)


@pytest.mark.parametrize(
    "chosen", [{}, {"reduce": "mean"}, {"window": 2}, {"interval": 2}], ids=str
)
def test_partly_manual(chosen: dict) -> None:
    """`shard_map` over one of two axes: the other stays explicit inside."""

    def fun(x: Any) -> Any:
        return jax.shard_map(train, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})(x)

    with jax.set_mesh(square()):
        _, logs = sawlog.spool(fun, **chosen)(placed(M48, square(), "x", "y"))
    assert spec_of(logs["x"])[-3:] == ("x", None, "y")
    want = by_hand(chosen, ROWS)
    np.testing.assert_allclose(np.asarray(logs["x"]).reshape(want.shape), want, rtol=1e-6)


@pytest.mark.parametrize("chosen", [{}, {"reduce": "mean"}, {"window": 2}], ids=str)
def test_mixed_axes(chosen: dict) -> None:
    """One axis explicit, one automatic."""
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit, AxisType.Auto))
    with jax.set_mesh(mesh):
        _, logs = sawlog.spool(train, **chosen)(placed(M48, mesh, "x", "y"))
    assert spec_of(logs["x"])[-2:] == ("x", None)
    want = by_hand(chosen, ROWS)
    np.testing.assert_allclose(logs["x"], want, rtol=1e-6)


@pytest.mark.parametrize("chosen", [{}, {"reduce": "mean"}, {"window": 2}], ids=str)
def test_automatic_part(chosen: dict) -> None:
    """Logs in a part of the program whose axes are automatic."""

    def fun(x: Any) -> Any:
        sawlog.log({"x": x}, step=-1)
        return jax.sharding.auto_axes(train, out_sharding=P("x"))(x)

    rows = [M48, *ROWS]
    with jax.set_mesh(line()):
        _, logs = sawlog.spool(fun, **chosen)(placed(M48, line(), "x", None))
    want = by_hand(chosen, rows)
    np.testing.assert_allclose(logs["x"], want, rtol=1e-6)
    assert spec_of(logs["x"])[-2:] == ("x", None)


@pytest.mark.turns(2)
@pytest.mark.parametrize("entered", [True, False], ids=["context", "no_context"])
def test_logdict(entered: bool) -> None:
    """Operations on logs, outside of any program."""
    x = placed(M48, square(), "x", "y")
    with context(square(), entered):
        _, logs = sawlog.spool(some)(x)
        rows = ROWS[::2]
        both = logs + logs.slice[:1]
        np.testing.assert_allclose(both["x"], np.stack([*rows, rows[0]]), rtol=1e-6)
        for mode in ("mean", "min", "last", total):
            reduced = both.reduce(mode)["x"]
            want = by_hand({"reduce": mode}, [*rows, rows[0]])
            np.testing.assert_allclose(reduced, want, rtol=1e-6)
            assert spec_of(reduced) == ("x", "y")
        _, lanes = jax.jit(jax.vmap(sawlog.spool(train)))(x)
        np.testing.assert_allclose(lanes.reduce("mean")["x"], np.mean(ROWS, axis=0), rtol=1e-6)
        np.testing.assert_allclose(lanes.slice[1:2]["x"][:, 0], ROWS[1], rtol=1e-6)
        assert "x" in repr(logs)


@pytest.mark.parametrize("entered", [True, False], ids=["context", "no_context"])
@pytest.mark.parametrize("kind", ["spool", "tap"])
def test_runs(tmp_path: Path, kind: str, entered: bool) -> None:
    """A logger: seeds along a sharded axis, each with a run of its own."""
    keys = jax.vmap(jax.random.key)(np.arange(4))
    with context(line(), entered), SaveLogger(tmp_path) as logger:

        def run(key: Any, row: Any) -> Any:
            return getattr(logger, kind)(train, logger.init(key))(row)

        out = jax.jit(jax.vmap(run))(placed(keys, line(), "x"), placed(M48, line(), "x", None))
    assert spec_of(out) == ("x", None)
    for i in range(4):
        logs = sawlog.load(tmp_path / f"seed-{i}")
        np.testing.assert_allclose(logs["x"], np.stack(ROWS)[:, i], rtol=1e-6)


def test_jit_with_shardings() -> None:
    """A jitted function keeps its shardings, with logs in it."""
    mesh = square()
    sharding = NamedSharding(mesh, P("x", "y"))
    fun = jax.jit(train, in_shardings=sharding, out_shardings=sharding)
    with jax.set_mesh(mesh):
        out, logs = sawlog.spool(fun, reduce="mean")(placed(M48, mesh, "x", "y"))
    assert spec_of(out) == spec_of(logs["x"]) == ("x", "y")
    np.testing.assert_allclose(logs["x"], np.mean(ROWS, axis=0), rtol=1e-6)


def test_automatic_axes_are_left_alone() -> None:
    """On a mesh without explicit axes the program is what it was: no sharding is asked for."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    x = placed(M48, mesh, "x", None)
    fun = functools.partial(sawlog.spool, train)
    for chosen, expected in OPTIONS:
        with jax.set_mesh(mesh):
            wrapped = fun(**chosen)
            text = str(jax.make_jaxpr(wrapped)(x))
            _, logs = wrapped(x) if chosen in ({}, {"window": 2}) else (None, None)
        assert "reshard" not in text
        if logs is not None:
            np.testing.assert_allclose(logs["x"], expected(ROWS), rtol=1e-6)
