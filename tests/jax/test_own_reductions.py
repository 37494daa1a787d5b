"""Reductions made by users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog
from sawlog.errors import ArgumentError

from .place_programs import XS, Lane, close, f32, line_of, spooled
from .places import EMA, PLACES, ema, log_each, log_tree

HISTOGRAM = sawlog.Reduction(
    "histogram",
    init=lambda like: jnp.zeros(3, jnp.int32),
    update=lambda state, x: state.at[jnp.searchsorted(jnp.array([2.0, 4.0]), x)].add(1),
    finish=lambda state: state,
)
RANGE = sawlog.Reduction(
    "range",
    init=lambda like: {"any": False, "low": like, "high": (like,)},
    update=lambda s, x: {
        "any": True,
        "low": jnp.where(s["any"], jnp.minimum(s["low"], x), x),
        "high": (jnp.where(s["any"], jnp.maximum(s["high"][0], x), x),),
    },
    finish=lambda s: {"low": s["low"], "width": s["high"][0] - s["low"]},
)


def histogram(values: Sequence[float]) -> Any:
    return np.bincount(np.searchsorted([2.0, 4.0], np.asarray(values)), minlength=3)


def low_and_width(values: Sequence[float]) -> Any:
    return {"low": min(values), "width": max(values) - min(values)}


OWN = {"ema": (EMA, ema), "histogram": (HISTOGRAM, histogram), "range": (RANGE, low_and_width)}


@pytest.mark.turns(2)
@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize(
    "place",
    ["scan", "cond in scan", "while", "while in vmap", "vmap", "remat in grad", "shard_map"],
)
def test_own_reduction(place: str, own: str) -> None:
    row, (reduction, answer) = PLACES[place], OWN[own]
    logs = spooled(row.fun, row.arg, reduce=reduction)
    assert list(logs.asdict()["k"]) == [own]
    if isinstance(row.lanes, Lane):
        close(logs["k"], answer(list(row.lanes.values)))
        assert logs.step["k"] == row.lanes.steps[-1]
        return
    for i, lane in enumerate(row.lanes):
        if len(lane.values):
            close(jax.tree.map(lambda x, i=i: x[i], logs["k"]), answer(list(lane.values)))


def test_own_reduction_of_one_log() -> None:
    def f(xs: Any) -> None:
        lax.scan(lambda c, x: (c, sawlog.log("k", x, reduction=EMA)), None, xs)

    close(sawlog.spool(f)(XS)[1]["k"], ema(XS))
    close(sawlog.logify(f)(XS)[1].asdict(), {"k": {"ema": ema(XS)}})
    close(sawlog.spool(f, reduce={"k": HISTOGRAM})(XS)[1]["k"], histogram(XS))


def test_own_reduction_of_a_pytree() -> None:
    pairs = sawlog.Reduction(
        "dot",
        init=lambda like: jnp.float32(0),
        update=lambda state, value: state + value["u"] * value["v"][0],
        finish=lambda state: state,
    )
    close(sawlog.spool(log_tree, reduce=pairs)(XS)[1]["k"], f32(np.dot(XS, np.arange(6))))


BAD_UPDATES = {
    "another shape": lambda state, x: jnp.stack([state, x]),
    "another structure": lambda state, x: (state, x),
    "nothing": lambda state, x: None,
    "another dtype": lambda state, x: (state + x).astype(jnp.complex64),
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("bad", BAD_UPDATES)
def test_an_update_that_changes_its_state(bad: str, jit: bool) -> None:
    wrong = sawlog.Reduction("wrong", jnp.zeros_like, BAD_UPDATES[bad], lambda state: state)

    def f(xs: Any) -> None:
        lax.scan(lambda c, x: (c, sawlog.log("k", x)), None, xs)  # a wrong update

    spool = sawlog.spool(f, reduce=wrong)
    with pytest.raises(ArgumentError) as caught:
        (jax.jit(spool) if jit else spool)(XS)
    message = str(caught.value)
    for word in ("'wrong'", "'k'", line_of(__file__, "a wrong update"), "update", "Hint"):
        assert word in message


def test_a_state_of_integers_does_not_swallow_floats() -> None:
    """An update that makes floats of integers is refused, not rounded."""
    wrong = sawlog.Reduction("wrong", lambda like: 0, lambda state, x: state + x, lambda s: s)
    with pytest.raises(ArgumentError, match="'wrong'"):
        sawlog.spool(log_each, reduce=wrong)(XS / 8)


@pytest.mark.parametrize("bad", ["median", 3, None.__class__, lambda xs: xs, {"k": "median"}])
def test_no_such_reduction(bad: Any) -> None:
    with pytest.raises(ArgumentError, match=r"`reduce.* must be one of") as caught:
        sawlog.spool(log_each, reduce=bad)
    assert "mean" in str(caught.value)
    assert "Reduction" in str(caught.value)


def test_no_such_reduction_of_a_log() -> None:
    with pytest.raises((ArgumentError, sawlog.errors.LogValueError), match="median"):
        sawlog.spool(lambda x: sawlog.log("k", x, reduction="median"))(1.0)
