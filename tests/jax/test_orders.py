"""Entries and lanes whose order is not the natural one, and programs that log little or nothing."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog

from .tap_programs import called


@pytest.mark.parametrize("nested", [False, True])
def test_keys_of_a_reverse_scan(nested: bool) -> None:
    """Keys are in the order in which they were logged, as all else is."""
    keys = jax.random.split(jax.random.key(3), 6)

    def body(c: Any, key: Any) -> Any:
        sawlog.log({"key": key, "bits": jax.random.key_data(key)})
        return c, None

    def inner(keys: Any) -> Any:
        return lax.scan(body, 0, keys, reverse=True)[0]

    def outer(keys: Any) -> Any:
        pairs = keys.reshape(3, 2)
        return lax.scan(lambda c, pair: (c + inner(pair), None), 0, pairs, reverse=True)[0]

    _, logs = sawlog.spool(outer if nested else inner)(keys)
    wanted = jax.random.key_data(keys)[::-1]
    np.testing.assert_array_equal(logs["bits"], wanted)
    np.testing.assert_array_equal(jax.random.key_data(logs["key"]), wanted)


@pytest.mark.parametrize(
    "options",
    [{"buffer": 2}, {"buffer": 3}, {"reduce": "sum", "buffer": 3}, {"interval": 2, "buffer": 2}],
)
def test_lanes_of_lanes_that_log_at_different_times(options: dict[str, Any]) -> None:
    """Two axes of lanes stay in their order behind the entries, with their masks."""
    xs = jnp.arange(1.0, 7.0).reshape(2, 3)

    def f(x: Any) -> Any:
        def body(c: Any, i: Any) -> Any:
            sawlog.log({"x": x * 10 + i}, where=x + i > 3)
            return c, None

        return lax.scan(body, 0, jnp.arange(5.0))[0]

    _, seen = called(lambda c: sawlog.tap(jax.vmap(jax.vmap(f)), c, **options), xs)
    values = np.asarray(xs) * 10 + np.arange(5.0)[:, None, None]
    there = np.asarray(xs) + np.arange(5.0)[:, None, None] > 3
    found: dict[tuple[int, int], list[float]] = {(i, j): [] for i in range(2) for j in range(3)}
    for logs in seen:
        entries = np.asarray(logs.entries()["x"])
        mask = np.asarray(logs.mask["x"]).reshape(entries.shape)
        for at, own in found.items():
            own += entries[(slice(None), *at)][mask[(slice(None), *at)]].tolist()
    for at, own in found.items():
        wanted = values[(slice(None), *at)][there[(slice(None), *at)]].tolist()
        wanted = wanted[:: options.get("interval", 1)]
        if "reduce" in options:
            wanted = [sum(wanted[i : i + 3]) for i in range(0, len(wanted), 3)]
        assert own == wanted


@pytest.mark.parametrize("loop", ["cond", "while"])
def test_a_program_whose_only_logs_are_cotangents_is_masked(loop: str) -> None:
    def branch(x: Any) -> Any:
        return lax.cond(x > 0, lambda x: 3 * sawlog.log_cotangent("dx", x), lambda x: x, x)

    def repeated(x: Any) -> Any:
        return lax.scan(lambda x, _: (branch(x), None), x, None, length=1)[0]

    xs = jnp.array([1.0, -1.0, 2.0])
    lane = branch if loop == "cond" else repeated
    _, logs = sawlog.spool(jax.grad(lambda xs: jax.vmap(lane)(xs).sum()))(xs)
    mask = np.squeeze(logs.mask["dx"])
    np.testing.assert_array_equal(mask, [True, False, True])
    np.testing.assert_array_equal(np.squeeze(logs["dx"])[mask], [3.0, 3.0])


@pytest.mark.parametrize("mode", ["sum", "mean", "last", "max", "count"])
def test_a_reduction_of_nothing_is_no_entry(mode: str) -> None:
    def f(xs: Any) -> Any:
        def body(c: Any, x: Any) -> Any:
            sawlog.log({"x": x})
            return c + x, None

        return lax.scan(body, 0.0, xs)[0]

    for fun, xs in ((f, jnp.zeros(0)), (jax.vmap(f), jnp.zeros((2, 0)))):
        _, logs = sawlog.spool(fun, reduce=mode)(xs)
        assert "x" not in dict(logs)
    _, logs = sawlog.spool(f, reduce=mode)(jnp.ones(2))
    assert float(logs["x"]) == (2.0 if mode in ("sum", "count") else 1.0)


@pytest.mark.parametrize("buffer", [1, 2, 5, 8, 100])
def test_a_loop_of_unknown_length_in_a_scan_keeps_its_place(buffer: int) -> None:
    """What was logged before it is sent before it, whatever the buffer has room for."""

    def f(x: Any) -> Any:
        def body(c: Any, i: Any) -> Any:
            sawlog.log({"x": 100.0 * i})

            def turn(j: Any) -> Any:
                sawlog.log({"x": 100.0 * i + j + 1})
                return j + 1

            return c + lax.while_loop(lambda j: j < i, turn, 0.0), None

        return lax.scan(body, x, jnp.arange(4.0))[0]

    out, seen = called(lambda c: sawlog.tap(f, c, buffer=buffer), 0.0)
    assert float(out) == 6.0
    found = [value for logs in seen for value in np.ravel(logs.entries()["x"]).tolist()]
    assert found == [100.0 * i + j for i in range(4) for j in range(i + 1)]


def test_logs_that_a_tap_keeps_are_there_inside_of_a_program() -> None:
    def f(x: Any) -> Any:
        sawlog.log({"x": x})
        return x

    for keep in (False, True):
        seen: list[Any] = []
        tapped = sawlog.tap(f, seen.append, keep_logs=keep)
        for fun in (
            jax.jit(tapped),
            lambda x, own=tapped: lax.scan(lambda c, x: (c, own(x)), 0, x),
        ):
            seen.clear()
            _, logs = sawlog.spool(fun)(jnp.arange(2.0))
            jax.effects_barrier()
            assert seen
            assert ("x" in dict(logs)) is keep
