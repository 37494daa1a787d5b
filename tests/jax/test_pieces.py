"""`tap(buffer=)`: loops cut into pieces."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog
from sawlog.errors import ArgumentError
from tests.jax.same import gaps
from tests.thorough import pairs

from .place_programs import (
    ROWS,
    XS,
    Lane,
    close,
    dynamic_fori,
    f32,
    in_shards,
    lane_of_halving,
    lane_of_large,
    log_all,
    log_halving,
    log_large,
    reverse,
    tapped,
)
from .places import BACK, PLACES, SHARDED, chain, count_to


def column(seen: Sequence[Any], key: str) -> list[Any]:
    """All entries of one name, in the order they came."""
    return [value for one in seen if key in one for value in one.entries()[key].tolist()]


def steps_of(seen: Sequence[Any], key: str) -> list[Any]:
    return [step for one in seen if key in one for step in np.reshape(one.step[key], -1).tolist()]


@pytest.mark.turns
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


def in_and_around(x: Any) -> Any:
    """Names inside of an inner loop, around it, and around the outer one."""

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


@pytest.mark.turns
@pytest.mark.parametrize("buffer", [1, 2, 3, 4, 100, 7])
def test_pieces_of_nested_loops(buffer: int) -> None:
    seen = tapped(in_and_around, 0, buffer=buffer)
    assert column(seen, "in") == [10 * i + j for i in range(5) for j in range(4)]
    assert column(seen, "out") == [-1, 0, 4, 8, 12, 16, 20]
    assert steps_of(seen, "out") == [-1, 0, 1, 2, 3, 4, 99]
    assert column(seen, "end") == [s * 4 * i for i in range(1, 6) for s in (1, -1)]
    assert all(len(value) <= buffer for one in seen for value in one.entries().values())
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
    assert all(gaps(one) == set() for one in seen)


@pytest.mark.parametrize("buffer", [1, 2, 3, 4, 100])
def test_pieces_of_a_while_loop(buffer: int) -> None:
    for start in (1.0, 2.0, 12.0, 100.0):
        seen = tapped(log_halving, f32(start), buffer=buffer)
        lane = lane_of_halving(start)
        assert column(seen, "k") == lane.values
        assert steps_of(seen, "k") == list(lane.steps)
        assert len(seen) <= math.ceil(len(lane.values) / buffer) + 1


def test_a_while_loop_is_called_back_in_pieces() -> None:
    seen = tapped(dynamic_fori, 100, buffer=10)
    assert len(column(seen, "k")) == 100
    assert len(seen) <= 11


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("place", "buffer"),
    pairs(
        [
            "switch in while",
            "condition of while",
            "while in scan",
            "remat in grad",
            "two places",
            "around while",
            "around while in scan",
            "while in one branch",
        ],
        [2, 100, 1, 3],
        few=2,
    ),
)
def test_pieces_elsewhere(place: str, buffer: int) -> None:
    row = PLACES[place]
    seen = tapped(row.fun, row.arg, buffer=buffer)
    assert isinstance(row.lanes, Lane)
    close(np.array(column(seen, "k")), np.asarray(row.lanes.values))
    assert steps_of(seen, "k") == list(row.lanes.steps)
    assert all(len(one.entries()["k"]) <= buffer for one in seen)


@pytest.mark.turns
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
            "around while in vmap",
            "while of equal lanes",
            "while in one branch in vmap",
            "map in batches",
        ],
        [1, 2, 4, 100],
        few=1,
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
            if row.arg is XS and i >= shape[1]:  # the last batch of lax.map can be smaller
                continue
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


@pytest.mark.turns(2)
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
