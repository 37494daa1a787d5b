"""Step axes that are written in another order than that of their names, in every mode."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sawlog

COUNT = 5


def program(x: Any) -> Any:
    def body(total: Any, i: Any) -> Any:
        sawlog.log("x", total, update=10 * i, epoch=i // 2, call=-i)
        return total + x, None

    return jax.lax.scan(body, x, jnp.arange(COUNT))[0]


def unbounded(x: Any) -> Any:
    def body(carry: Any) -> Any:
        i, total = carry
        sawlog.log("x", total, update=10 * i, epoch=i // 2, call=-i)
        return i + 1, total + x

    return jax.lax.while_loop(lambda carry: carry[0] < COUNT, body, (0, x))[1]


def wanted(places: list[int]) -> dict[str, list[int]]:
    return {
        "update": [10 * i for i in places],
        "epoch": [i // 2 for i in places],
        "call": [-i for i in places],
    }


def plain(logs: Any, key: str = "x") -> dict[str, list[int]]:
    return {axis: np.atleast_1d(np.asarray(own[key])).tolist() for axis, own in logs.steps.items()}


ALL, EVERY_OTHER, LAST_TWO = [0, 1, 2, 3, 4], [0, 2, 4], [3, 4]
SPOOLED: list[tuple[Any, dict[str, Any], list[int]]] = [
    (program, {}, ALL),
    (program, {"interval": 2}, EVERY_OTHER),
    (program, {"window": 2}, LAST_TWO),
    (program, {"reduce": "max"}, [4]),
    (unbounded, {"capacity": 9}, ALL),
    (unbounded, {"capacity": 2, "keep": "last"}, LAST_TWO),
    (unbounded, {"capacity": 9, "interval": 2}, EVERY_OTHER),
    (unbounded, {"reduce": "first"}, [0]),
]


@pytest.mark.parametrize(("fun", "options", "places"), SPOOLED)
def test_spool(fun: Any, options: dict[str, Any], places: list[int]) -> None:
    _, logs = sawlog.spool(fun, **options)(1.0)
    assert plain(logs) == wanted(places)
    assert list(logs.steps) == ["update", "epoch", "call"]


@pytest.mark.parametrize(
    ("fun", "options", "places"),
    [
        (program, {}, ALL),
        (program, {"buffer": 2}, ALL),
        (unbounded, {"buffer": 2}, ALL),
        (program, {"interval": 2}, EVERY_OTHER),
        (unbounded, {"interval": 2, "buffer": 2}, EVERY_OTHER),
        (program, {"reduce": "max"}, [4]),
        (unbounded, {"reduce": "max", "buffer": 2}, [1, 3, 4]),
    ],
)
def test_tap(fun: Any, options: dict[str, Any], places: list[int]) -> None:
    found: dict[str, list[int]] = {"update": [], "epoch": [], "call": []}

    def keep(logs: Any) -> None:
        for axis, own in plain(logs).items():
            found[axis] += own

    sawlog.tap(fun, keep, **options)(1.0)
    assert found == wanted(places)


def test_concatenated_logs_that_write_them_differently() -> None:
    def other(x: Any) -> None:
        sawlog.log("x", x, call=-7, update=70, epoch=3)

    logs = sawlog.spool(program)(1.0)[1] + sawlog.spool(other)(1.0)[1]
    assert plain(logs) == wanted([*ALL, 7])


def test_cotangents() -> None:
    def f(x: Any) -> Any:
        return 3.0 * sawlog.log_cotangent("dx", x, update=70, epoch=3, call=-7)

    _, logs = sawlog.spool(jax.grad(f))(2.0)
    assert plain(logs, "dx") == wanted([7])
    assert float(logs["dx"]) == 3.0


@pytest.mark.parametrize(("keep", "kept"), [("first", [0, 2]), ("last", [2, 4])])
def test_what_an_interval_leaves_out_is_not_dropped(keep: str, kept: list[int]) -> None:
    _, logs = sawlog.spool(unbounded, interval=2, capacity=2, keep=keep)(1.0)
    assert plain(logs) == wanted(kept)
    assert int(logs.dropped["x"]) == 1


@pytest.mark.parametrize("before", [0, 1, 2])
def test_steps_and_conditions_beside_leaves_without_a_gradient(before: int) -> None:
    """Integers pass through unchanged, and neither a step nor a condition is mistaken for them."""
    numbers = tuple(jnp.int32(40 + i) for i in range(before))

    def f(x: Any, where: Any) -> Any:
        value = {"a": numbers, "x": x, "z": jnp.int32(50)}
        out = sawlog.log_cotangent("d", value, step=7, epoch=2, where=where)
        assert [leaf.dtype for leaf in out["a"]] == [jnp.int32] * before
        return out["x"] ** 2 * out["z"] + sum(out["a"])

    for where in (True, False):
        slope, logs = sawlog.spool(jax.grad(f))(jnp.float32(3), jnp.array(where))
        assert slope == 300
        if where:
            assert logs["d"] == {"a": (None,) * before, "x": 300.0, "z": None}
            assert (logs.step["d"], logs.epoch["d"]) == (7, 2)
        else:
            assert "d" not in logs
