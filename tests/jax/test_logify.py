"""`logify`: one value for each name."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog

from .place_programs import ROWS, XS, close, log_halving


def lox(xs: Any) -> Any:
    def body(total: Any, x: Any) -> Any:
        sawlog.log("b", x, reduction="mean")
        sawlog.log("y", x)
        return total + x, None

    return lax.scan(body, jnp.float32(0), xs)[0]


def lox_answer(xs: Any) -> Any:
    return {"b": {"mean": np.mean(xs)}, "y": {"replace": xs[-1]}}


def test_logify() -> None:
    out, logs = sawlog.logify(lox)(XS)
    close(out, XS.sum())
    close(logs.asdict(), lox_answer(XS))
    assert set(logs) == {"b", "y"}


LOGIFIED = {
    "jit outside": lambda: jax.jit(sawlog.logify(lox))(XS),
    "jit inside": lambda: sawlog.logify(jax.jit(lox))(XS),
    "as a decorator": lambda: sawlog.logify(lambda xs: lox(xs))(XS),
    "spool around": lambda: sawlog.spool(sawlog.logify(lox))(XS)[0],
}


@pytest.mark.parametrize("way", LOGIFIED)
def test_logify_and_jit(way: str) -> None:
    out, logs = LOGIFIED[way]()
    close(out, XS.sum())
    close(logs.asdict(), lox_answer(XS))


def test_logify_in_vmap() -> None:
    answer = {"b": {"mean": ROWS.mean(axis=1)}, "y": {"replace": ROWS[:, -1]}}
    for way in (jax.vmap(sawlog.logify(lox)), sawlog.logify(jax.vmap(lox))):
        out, logs = way(ROWS)
        close(out, ROWS.sum(axis=1))
        close(logs.asdict(), answer)


def test_logify_in_scan() -> None:
    def step(c: Any, xs: Any) -> Any:
        out, logs = sawlog.logify(lox)(xs)
        return c + out, logs

    out, logs = lax.scan(step, jnp.float32(0), ROWS)
    close(out, ROWS.sum())
    close(logs.asdict(), {"b": {"mean": ROWS.mean(axis=1)}, "y": {"replace": ROWS[:, -1]}})


def test_logify_and_grad() -> None:
    gradient, logs = jax.grad(sawlog.logify(lambda xs: lox(xs) ** 2), has_aux=True)(XS)
    close(gradient, np.full(6, 42.0))
    close(logs.asdict(), lox_answer(XS))
    gradient, logs = sawlog.logify(jax.grad(lambda xs: lox(xs) ** 2))(XS)
    close(gradient, np.full(6, 42.0))
    close(logs.asdict(), lox_answer(XS))


def test_logify_of_loops_of_unknown_length() -> None:
    _, logs = sawlog.logify(log_halving)(12.0)
    close(logs.asdict(), {"k": {"replace": 1.5}})
    assert logs.step["k"] == 3
    _, logs = sawlog.logify(log_halving)(1.0)
    assert dict(logs) == {}


def test_logify_of_a_branch() -> None:
    def f(x: Any) -> Any:
        return lax.cond(
            x > 0,
            lambda x: (sawlog.log("up", x), x)[1],
            lambda x: (sawlog.log("down", x, reduction="sum"), -x)[1],
            x,
        )

    close(sawlog.logify(f)(2.0)[1].asdict(), {"up": {"replace": 2.0}})
    close(sawlog.logify(f)(-2.0)[1].asdict(), {"down": {"sum": -2.0}})


def test_a_log_that_asks_to_be_appended_keeps_its_entries() -> None:
    """Also a single one: an entry has an axis of its own, wherever it was logged."""

    def f(x: Any) -> Any:
        sawlog.log("one", x, reduction="append")
        sawlog.log("last", x)
        sawlog.log("last", x + 1)
        return lax.scan(
            lambda c, x: ((sawlog.log("many", x, reduction="append"), c)[1], None), x, XS
        )[0]

    _, logs = sawlog.logify(f)(jnp.float32(3))
    wanted = {"one": {"append": np.array([3.0])}, "many": {"append": XS}, "last": {"replace": 4.0}}
    close(logs.asdict(), wanted)
    assert logs["one"].shape == (1,)
    lanes = jnp.arange(2.0)
    for way in (jax.vmap(sawlog.logify(f)), sawlog.logify(jax.vmap(f))):
        _, logs = way(lanes)
        close(np.squeeze(logs["one"]), lanes)
        assert logs["one"].ndim == 2
