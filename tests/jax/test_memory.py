"""Memory that does not grow with the steps, and sums that stay right over millions of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog
from tests.thorough import often

from .place_programs import close, f32
from .places import EMA, FOLDS, count_to, memory


def long_program(steps: int, *names: str) -> Callable[[Any], Any]:
    """Log a number and an array at every step, under each name."""

    def f(x: Any) -> Any:
        def body(i: Any, x: Any) -> Any:
            for name in names or ("k",):
                sawlog.log({name: x, f"{name} v": jnp.stack([x, 2 * x])}, step=i)
            return jnp.sin(x) + 1

        return lax.fori_loop(0, steps, body, x)

    return f


REDUCED = {f"{mode}{end}": mode for mode in FOLDS for end in ("", " v")}
BOUNDED: dict[str, tuple[Sequence[str], dict[str, Any]]] = {
    "every reduction": (list(FOLDS), {"reduce": REDUCED}),
    "own": ("k", {"reduce": EMA}),
    "window": ("k", {"window": 10}),
    "capacity by key": ("k", {"capacity": {"k": 5, "k v": 5}}),
}


@pytest.mark.parametrize("bounded", BOUNDED)
def test_memory_does_not_grow(bounded: str) -> None:
    names, options = BOUNDED[bounded]
    few, many = (
        memory(sawlog.spool(long_program(steps, *names), **options), f32(1))
        for steps in (1_000, 1_000_000)
    )
    assert few == many
    assert many[1] < 2000


def test_memory_of_all_entries_grows() -> None:
    """So the test before is able to fail."""
    few, many = (memory(sawlog.spool(long_program(n)), f32(1)) for n in (1_000, 10_000))
    assert many[1] > 9 * few[1]


def test_memory_of_an_interval() -> None:
    """As large as what is kept, inside the loop as well."""
    few, many = (
        memory(sawlog.spool(long_program(10 * n), interval=n), f32(1)) for n in (100, 100_000)
    )
    assert few == many
    assert many[1] < 1000


def test_memory_of_logify_and_grad() -> None:
    def gradient(steps: int) -> Any:
        def f(x: Any) -> Any:
            def body(x: Any, _: Any) -> Any:
                sawlog.log({"k": x})
                return x + 1, None

            return lax.scan(body, x, None, steps)[0]

        return memory(sawlog.logify(jax.grad(f)), f32(1))

    assert gradient(1_000) == gradient(1_000_000)


def test_memory_of_pieces_does_not_grow() -> None:
    few, many = (
        memory(sawlog.tap(count_to(n), lambda logs: None, buffer=50), 0) for n in (1_000, 1_000_000)
    )
    assert few == many


# --- Millions of steps ---------------------------------------------------------------------------

STEPS = often(300_000, 10_000_000)


def test_millions_of_steps() -> None:
    """Three series of float32 numbers: noise, a ramp, tiny numbers after a huge one."""
    random = np.random.default_rng(0)
    series = np.empty((STEPS, 3), f32)
    series[:, 0] = 1e3 + random.uniform(-1, 1, STEPS)
    series[:, 1] = np.arange(STEPS)
    series[:, 2] = random.uniform(0, 1, STEPS)
    series[0, 2] = 1e9
    names = ("mean", "sum", "var")

    def f(series: Any) -> None:
        def body(c: Any, x: Any) -> Any:
            for name in names:
                sawlog.log(name, x, reduction=name)
            return c, None

        lax.scan(body, None, series)

    _, logs = sawlog.spool(f)(series)
    assert set(logs) == set(names)
    for name in names:
        expected = getattr(np, name)(series.astype(np.float64), axis=0)
        np.testing.assert_allclose(logs[name], expected, rtol=1e-5, err_msg=name)


def test_var_of_a_constant_is_zero() -> None:
    def f(x: Any) -> Any:
        def body(i: Any, x: Any) -> Any:
            sawlog.log({"var": x, "std": x, "mean": x})
            return x

        return lax.fori_loop(0, 100_000, body, x)

    modes = {name: name for name in ("var", "std", "mean")}
    _, logs = sawlog.spool(f, reduce=modes)(f32(1234.567))
    assert logs["var"] < 1e-6
    assert logs["std"] < 1e-3
    close(logs["mean"], f32(1234.567), 1e-7)


def test_a_scan_stacks_nothing_that_is_there_already() -> None:
    """A step that is an input of the scan, and a value that is returned as well."""

    def logged(x):
        def body(c, i):
            sawlog.log({"c": c, "again": c}, step=i)
            return c * 0.5, c

        return lax.scan(body, x, jnp.arange(3), reverse=True)

    def by_hand(x):
        def body(c, i):
            return c * 0.5, (c, c, i)

        return lax.scan(body, x, jnp.arange(3), reverse=True)

    def stacked(fun):
        return jax.jit(fun).lower(f32(8)).as_text().count("stablehlo.dynamic_update_slice")

    assert stacked(sawlog.spool(logged)) == stacked(by_hand) == 1
    (_, ys), logs = sawlog.spool(logged)(8.0)
    np.testing.assert_array_equal(ys, [2, 4, 8])
    for key in ("c", "again"):
        np.testing.assert_array_equal(logs[key], [8, 4, 2])
        np.testing.assert_array_equal(logs.step[key], [2, 1, 0])
