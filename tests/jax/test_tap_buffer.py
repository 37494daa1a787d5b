"""`tap(buffer=)`: which entries come in which call, where loops, remainders and orders meet."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog

from .tap_programs import called


def sent(fun: Any, x: Any, **options: Any) -> tuple[Any, list[dict[str, Any]]]:
    """What the function returns, and the entries of each call."""
    out, seen = called(lambda callback: sawlog.tap(fun, callback, **options), x)
    return out, [
        {key: np.ravel(values).tolist() for key, values in logs.entries().items()} for logs in seen
    ]


def counting(length: float, reverse: bool = False) -> Any:
    def fun(x: Any) -> Any:
        sawlog.log({"before": x})

        def body(c: Any, v: Any) -> Any:
            sawlog.log({"k": v})
            return c + v, c * 10 + v

        return lax.scan(body, x, jnp.arange(length), reverse=reverse)

    return fun


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("buffer", [1, 3, 7])
def test_a_loop_in_pieces_returns_what_the_loop_returns(reverse: bool, buffer: int) -> None:
    """With the steps that fill no piece, in their place among the outputs."""
    fun = counting(7.0, reverse)
    out, calls = sent(fun, 0.5, buffer=buffer)
    for found, expected in zip(out, fun(0.5), strict=True):
        np.testing.assert_array_equal(found, expected)
    order = [float(v) for v in range(7)][:: -1 if reverse else 1]
    pieces = [order[i : i + buffer] for i in range(0, 7, buffer)]
    assert [call["k"] for call in calls if "k" in call] == pieces


def test_a_loop_that_fits_is_sent_with_what_was_logged_before() -> None:
    for length, expected in [
        (2.0, [{"before": [0.0], "k": [0.0, 1.0]}]),
        (3.0, [{"before": [0.0], "k": [0.0, 1.0, 2.0]}]),
        (4.0, [{"before": [0.0]}, {"k": [0.0, 1.0, 2.0]}, {"k": [3.0]}]),
    ]:
        assert sent(counting(length), 0.0, buffer=3)[1] == expected


def turns(limit: Any, start: Any = 0.0) -> Any:
    def turn(c: Any) -> Any:
        sawlog.log({"k": c})
        return c + 1

    return lax.while_loop(lambda c: c < limit, turn, start)


def test_a_loop_of_unknown_length_is_sent_after_what_was_before() -> None:
    def fun(x: Any) -> Any:
        sawlog.log({"k": x + 100})
        out = turns(5, x)
        sawlog.log({"k": x + 200})
        return out

    for buffer, pieces in [
        (1, [[0], [1], [2], [3], [4]]),
        (2, [[0, 1], [2, 3], [4]]),
        (4, [[0, 1, 2, 3], [4]]),
        (8, [[0, 1, 2, 3, 4]]),
    ]:
        out, calls = sent(fun, 0.0, buffer=buffer)
        assert out == 5
        assert [call["k"] for call in calls] == [[100], *pieces, [200]]


def in_scan(x: Any) -> Any:
    def body(c: Any, v: Any) -> Any:
        sawlog.log({"k": v + 100})
        return c + turns(v), None

    return lax.scan(body, x, jnp.arange(4.0))[0]


def in_while(x: Any) -> Any:
    def body(state: Any) -> Any:
        v, c = state
        sawlog.log({"k": v + 100})
        return v + 1, c + turns(v)

    return lax.while_loop(lambda state: state[0] < 4, body, (0.0, x))[1]


@pytest.mark.parametrize("fun", [in_scan, in_while])
def test_loops_of_unknown_length_in_loops(fun: Any) -> None:
    """Each is sent when it has ended: nobody knows how much the next one logs."""
    for buffer, pieces in [(1, [[[0], [1]], [[0], [1], [2]]]), (3, [[[0, 1]], [[0, 1, 2]]])]:
        out, calls = sent(fun, 0.0, buffer=buffer)
        assert out == 6
        two, three = pieces
        expected = [[100], [101], [0], [102], *two, [103], *three]
        assert [call["k"] for call in calls] == expected


@pytest.mark.parametrize("buffer", [2, 3, 8])
@pytest.mark.parametrize("interval", [1, 2, 3])
@pytest.mark.parametrize("length", [6.0, 7.0])
def test_intervals_and_buffers_with_remainders(buffer: int, interval: int, length: float) -> None:
    _, calls = sent(counting(length), 0.0, buffer=buffer, interval=interval)
    found = [call["k"] for call in calls if "k" in call]
    kept = [float(v) for v in range(0, int(length), interval)]
    assert found == [kept[i : i + buffer] for i in range(0, len(kept), buffer)]


def of_lanes(fun: Any, lanes: Any, **options: Any) -> list[list[float]]:
    """The values that each of three lanes sent."""
    _, seen = called(lambda callback: sawlog.tap(jax.vmap(fun), callback, **options), lanes)
    found: list[list[float]] = [[] for _ in lanes]
    for logs in seen:
        values = np.asarray(logs["k"])
        mask = np.broadcast_to(logs.mask.get("k", True), values.shape)
        axis = values.shape.index(len(lanes))
        for lane, own in enumerate(found):
            own += np.take(values, lane, axis)[np.take(mask, lane, axis)].ravel().tolist()
    return found


@pytest.mark.parametrize("options", [{"interval": 2}, {"reduce": "sum"}, {"buffer": 2}], ids=str)
def test_every_lane_counts_by_itself(options: dict[str, Any]) -> None:
    """A lane that does not log is not counted."""

    def fun(x: Any) -> Any:
        def body(c: Any, v: Any) -> Any:
            lax.cond(v < x, lambda: sawlog.log({"k": v}), lambda: None)
            return c, None

        return lax.scan(body, x, jnp.arange(6.0))[0]

    found = of_lanes(fun, jnp.array([5.0, 0.0, 2.0]), **options)
    step = options.get("interval", 1)
    each = [[float(v) for v in range(0, int(x), step)] for x in (5, 0, 2)]
    if "reduce" in options:
        each = [[sum(values)] if values else [] for values in each]
    assert found == each


def test_a_log_with_a_mask_is_sent_when_it_is_due() -> None:
    """In a branch of some lanes, at some steps."""

    def fun(x: Any) -> Any:
        def body(c: Any, v: Any) -> Any:
            lax.cond(c > 0, lambda: sawlog.log({"k": c * 10 + v}), lambda: None)
            return c, None

        return lax.scan(body, x, jnp.arange(5.0))[0]

    for x in (1.0, 2.0):
        _, calls = sent(fun, x, interval=2)
        assert [call["k"] for call in calls] == [[x * 10], [x * 10 + 2], [x * 10 + 4]]
    found = of_lanes(fun, jnp.array([1.0, -1.0, 2.0]), interval=2)
    assert found == [[10.0, 12.0, 14.0], [], [20.0, 22.0, 24.0]]
