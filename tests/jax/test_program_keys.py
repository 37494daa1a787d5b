"""One function with several options: each has a compiled program of its own."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog

A = np.arange(5, dtype=np.float32)
B = 2 * A
BOTH = {"a": A, "b": B}


def f(x: Any) -> Any:
    """Log A with a tag, and B."""

    def body(x: Any, i: Any) -> Any:
        sawlog.log({"a": x}, step=i, tags="t")
        sawlog.log({"b": 2 * x}, step=i)
        return x + 1, None

    return lax.scan(body, x, jnp.arange(5))[0]


SHARED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "argnames": ({"argnames": "a"}, {"a": A}),
    "tags": ({"tags": "t"}, {"a": A}),
    "prefix": ({"prefix": "p/"}, {"p/a": A, "p/b": B}),
    "interval": ({"interval": 2}, {"a": A[::2], "b": B[::2]}),
    "interval of one": ({"interval": {"b": 3}}, {"a": A, "b": B[::3]}),
    "sum": ({"reduce": "sum"}, {"a": np.float32(10), "b": np.float32(20)}),
    "sum of one": ({"reduce": {"b": "max"}}, {"a": A, "b": np.float32(8)}),
}
OF_SPOOL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "window": ({"window": 2}, {"a": A[-2:], "b": B[-2:]}),
    "capacity": ({"capacity": {"a": 2}}, {"a": A[:2], "b": B}),
    "keep": ({"capacity": {"a": 2}, "keep": "last"}, {"a": A[-2:], "b": B}),
}


def same(found: Any, wanted: dict[str, Any]) -> None:
    assert {*found} == {*wanted}
    for name, values in wanted.items():
        assert np.shape(found[name]) == np.shape(values)
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize("option", [*SHARED, *OF_SPOOL])
@pytest.mark.parametrize("first", [True, False])
def test_spool(option: str, first: bool) -> None:
    chosen, wanted = (SHARED | OF_SPOOL)[option]
    for options, logs in [(chosen, wanted), ({}, BOTH)][:: 1 if first else -1]:
        same(sawlog.spool(f, **options)(0.0)[1], logs)


@pytest.mark.parametrize("option", SHARED)
def test_tap(option: str) -> None:
    chosen, wanted = SHARED[option]
    for options, logs in [({}, BOTH), (chosen, wanted)]:
        found: dict[str, list[Any]] = {}

        def take(logs: Any, found: dict[str, list[Any]] = found) -> None:
            for name, value in logs.items():
                found.setdefault(name, []).append(value)

        sawlog.tap(f, take, **options)(0.0)
        same({name: np.squeeze(values) for name, values in found.items()}, logs)


@pytest.mark.parametrize("under_jit", [True, False])
def test_logs_that_are_kept(under_jit: bool) -> None:
    for keep in (False, True, False):

        def outer(x: Any, keep: bool = keep) -> Any:
            return sawlog.spool(f, keep_logs=keep)(x)[1]["b"]

        inner, logs = sawlog.spool(jax.jit(outer) if under_jit else outer)(0.0)
        np.testing.assert_array_equal(inner, B)
        same(logs, BOTH if keep else {})


@pytest.mark.parametrize("buffer", [2, 3])
def test_buffers(buffer: int) -> None:
    calls: list[int] = []
    for _ in range(2):
        sawlog.tap(f, lambda logs: calls.append(np.size(logs["a"])), buffer=buffer)(0.0)
        sawlog.tap(f, lambda logs: None)(0.0)
    assert calls == {2: [2, 2, 1], 3: [3, 2]}[buffer] * 2
