"""Explicit meshes under `vmap`, in taps and runs, and in part."""

from __future__ import annotations

import functools
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

from .cases.explicit import M48, line, placed, square
from .mesh_helpers import (
    OPTIONS,
    ROWS,
    STEPS,
    collectives,
    context,
    halve,
    some,
    spec_of,
    total,
    train,
)

pytestmark = pytest.mark.turns(3)


def by_hand(chosen: dict[str, Any], rows: list) -> Any:
    """What an option makes of some rows."""
    return next(expected for option, expected in OPTIONS if option == chosen)(rows)


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


def test_no_gradient_comes_from_a_branch_that_a_lane_does_not_run() -> None:
    """The root of the first lane has an infinite derivative at its zero, which times 0 is NaN."""

    def lane(row: Any) -> Any:
        def root(row: Any) -> Any:
            sawlog.log({"row": row})
            return jnp.sqrt(row).sum()

        return lax.cond(row.sum() > 30, root, lambda row: (2 * row).sum(), row)

    x = placed(M48, square(), "x", "y")
    with jax.set_mesh(square()):
        fun = sawlog.spool(jax.grad(lambda x: jax.vmap(lane)(x).sum()))
        gradient, logs = jax.jit(fun)(x)
    wanted = np.concatenate([np.full((1, 8), 2.0), 0.5 / np.sqrt(M48[1:])])
    np.testing.assert_allclose(gradient, wanted, rtol=1e-6)
    assert logs.to_numpy().mask["row"].tolist() == [False, True, True, True]
