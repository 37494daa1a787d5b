"""Memory that does not grow with the steps, and sums that stay right over millions of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog
from tests.thorough import often

from .places import (
    EMA,
    FOLDS,
    close,
    count_to,
    f32,
    memory,
)


def long_program(steps: int) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        def body(i: Any, x: Any) -> Any:
            sawlog.log({"k": x, "v": jnp.stack([x, 2 * x])}, step=i)
            return jnp.sin(x) + 1

        return lax.fori_loop(0, steps, body, x)

    return f


BOUNDED = {
    **{mode: {"reduce": mode} for mode in FOLDS},
    "own": {"reduce": EMA},
    "by key": {"reduce": {"k": "mean", "v": "last"}},
    "window": {"window": 10},
    "capacity by key": {"capacity": {"k": 5, "v": 5}},
}


@pytest.mark.parametrize("bounded", BOUNDED)
def test_memory_does_not_grow(bounded: str) -> None:
    few, many = (
        memory(sawlog.spool(long_program(steps), **BOUNDED[bounded]), f32(1))
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


# --- Ten million steps -------------------------------------------------------------------------

STEPS = often(1_000_000, 10_000_000)
NAMES = ("mean", "sum", "var")


@pytest.fixture(scope="module")
def long_run() -> tuple[dict[str, Any], np.ndarray]:
    """The reductions of three series of float32 numbers at once, and the numbers as float64."""
    random = np.random.default_rng(0)
    series = np.empty((STEPS, 3), f32)
    series[:, 0] = 1e3 + random.uniform(-1, 1, STEPS)
    series[:, 1] = np.arange(STEPS)
    series[:, 2] = random.uniform(0, 1, STEPS)
    series[0, 2] = 1e9

    def f(series: Any) -> None:
        def body(c: Any, x: Any) -> Any:
            for name in NAMES:
                sawlog.log(name, x, reduction=name)
            return c, None

        lax.scan(body, None, series)

    _, logs = sawlog.spool(f)(series)
    return dict(logs.to_numpy().items()), series.astype(np.float64)


@pytest.mark.parametrize("series", [0, 1, 2], ids=["noise", "ramp", "tiny after huge"])
@pytest.mark.parametrize("name", NAMES)
def test_millions_of_steps(long_run: Any, name: str, series: int) -> None:
    found, numbers = long_run
    expected = getattr(np, name)(numbers[:, series])
    assert abs(found[name][series] - expected) <= 1e-5 * abs(expected)


def test_var_of_a_constant_is_zero() -> None:
    def f(x: Any) -> Any:
        return lax.fori_loop(0, 100_000, lambda i, x: (sawlog.log({"k": x}), x)[1], x)

    assert sawlog.spool(f, reduce="var")(f32(1234.567))[1]["k"] < 1e-6
    assert sawlog.spool(f, reduce="std")(f32(1234.567))[1]["k"] < 1e-3
    close(sawlog.spool(f, reduce="mean")(f32(1234.567))[1]["k"], f32(1234.567), 1e-7)
