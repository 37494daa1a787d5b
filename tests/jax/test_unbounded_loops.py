"""Loops of unknown length, with nothing that bounds their logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.experimental.ode import odeint

import sawlog
from sawlog.errors import UnsupportedLoopError

from .place_programs import close, f32, line_of, log_halving


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
        line_of(__file__, f"unbounded {name}"),
        line_of(__file__, f"log in an unbounded {name}"),
        "capacity=",
        "reduce=",
    ):
        assert word in message, message


def test_a_loop_of_unknown_length_without_chosen_logs() -> None:
    assert dict(sawlog.spool(log_halving, argnames="other")(8.0)[1]) == {}
    assert dict(sawlog.spool(log_halving, tags="other")(8.0)[1]) == {}


@pytest.mark.parametrize("mapped", [np.array([1, 3, 0]), np.array([0, 0, 2])])
def test_a_condition_that_logs_alone_in_lanes_that_stop_one_after_the_other(mapped: Any) -> None:
    def count_to(n: Any) -> Any:
        def again(i: Any) -> Any:
            sawlog.log({"asked": i})
            return i < n

        return lax.while_loop(again, lambda i: i + 1, 0)

    out, logs = sawlog.spool(jax.vmap(count_to), capacity=10)(mapped)
    assert out.tolist() == mapped.tolist()
    for lane, n in enumerate(mapped):
        there = np.asarray(logs.mask["asked"])[:, lane]
        assert np.asarray(logs["asked"])[there, lane].tolist() == list(range(n + 1))
    _, logs = sawlog.spool(jax.vmap(count_to), reduce="count")(mapped)
    assert logs["asked"].tolist() == (mapped + 1).tolist()


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


def test_names_are_in_the_order_in_which_a_turn_logs_them() -> None:
    """The condition of a loop comes before its body."""

    def condition(x: Any) -> Any:
        sawlog.log({"later in the alphabet": x})
        return x > 1

    def body(x: Any) -> Any:
        sawlog.log({"k": x})
        return x / 2

    _, logs = sawlog.spool(lambda x: lax.while_loop(condition, body, x), capacity=9)(f32(4))
    assert list(logs) == ["later in the alphabet", "k"]
    assert (len(logs["later in the alphabet"]), len(logs["k"])) == (3, 2)


@pytest.mark.parametrize("options", [{"capacity": 4}, {"reduce": "sum"}], ids=["keep", "reduce"])
def test_lanes_of_two_maps_of_which_one_decides_when_a_loop_stops(options: dict) -> None:
    """The lanes of the loop are not the first ones of the state, though as many."""

    def grow(x: Any, n: Any) -> Any:
        def body(s: Any) -> Any:
            sawlog.log({"x": s[0]})
            return s[0] + x, s[1] + 1

        return lax.while_loop(lambda s: s[1] < n, body, (x, 0))[0]

    starts, counts = np.array([1.0, 2.0], f32), np.array([1, 3])
    both = jax.vmap(jax.vmap(grow, (None, 0)), (0, None))
    out, logs = sawlog.spool(both, **options)(starts, counts)
    close(out, starts[:, None] * (counts + 1))
    sums: list = []
    sawlog.tap(both, lambda logs: sums.append(logs["x"]), reduce="sum")(starts, counts)
    expected = starts[:, None] * counts * (counts + 1) / 2
    close(sums[0], expected)
    if "reduce" in options:
        close(logs["x"], expected)
        return
    for i, x in enumerate(starts):
        for j, n in enumerate(counts):
            there = np.asarray(logs.mask["x"])[:, i, j]
            assert np.asarray(logs["x"])[there, i, j].tolist() == [x * (k + 1) for k in range(n)]


@pytest.mark.parametrize("order", ["xwn", "wxn", "wnx", "nwx"])
def test_lanes_of_three_maps_of_which_one_decides_when_a_loop_stops(order: str) -> None:
    """The lanes in front of those of the condition are masked by them as well."""

    def grow(x: Any, w: Any, n: Any) -> Any:
        def body(s: Any) -> Any:
            sawlog.log({"x": s[0] + w})
            return s[0] + x, s[1] + 1

        return lax.while_loop(lambda s: s[1] < n, body, (x, 0))[0]

    fun, values = grow, {"x": [1.0, 2.0], "w": [0.0, 100.0], "n": [1, 3]}
    for name in reversed(order):
        fun = jax.vmap(fun, tuple(0 if name == each else None for each in values))
    given = [np.array(each, f32) for each in values.values()]
    x, w, n = (
        each.reshape([2 if name == at else 1 for at in order])
        for name, each in zip(values, given, strict=True)
    )
    expected = x * n * (n + 1) / 2 + w * n
    close(sawlog.spool(fun, reduce="sum")(*given)[1]["x"], expected)
    seen: list = []
    sawlog.tap(fun, lambda logs: seen.append(np.where(logs.mask["x"], logs["x"], 0)))(*given)
    close(np.sum(seen, 0), expected)
