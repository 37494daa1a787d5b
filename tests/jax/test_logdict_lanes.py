"""logdict: lanes that differ."""

from __future__ import annotations

from typing import Any

import jax
import jax.export
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax import numpy as jnp

import sawlog
from sawlog import logdict
from tests.jax.same import gaps
from tests.thorough import examples, pairs

from .logdict_oracle import (
    EXAMPLES,
    FEWER,
    INDICES,
    LANE_REDUCED,
    LENGTH,
    MODES,
    PATTERNS,
    XS,
    Column,
    Table,
    agrees,
    oracle_add,
    oracle_reduce,
    oracle_step,
    same,
    sometimes,
    sometimes_oracle,
    spool_of_vmap,
    stacked,
)

LANES = 3

LANE_XS = np.stack([XS, XS[::-1], XS * 2])

LANE_PATTERNS = st.lists(PATTERNS, min_size=LANES, max_size=LANES).map(np.stack)

vmap_of_spool = jax.vmap(sawlog.spool(sometimes))


def one_lane(value: Any, mask: Any, steps: Any, lane: int, axis: int) -> Column:
    """The entries of a lane whose mask is true; `axis` is that of the lanes."""
    rows = np.flatnonzero(np.take(np.asarray(mask), lane, axis))
    value = jax.tree.map(lambda x: np.take(np.asarray(x), lane, axis), value)
    steps = np.take(np.asarray(steps), lane, axis)
    return Column(
        [jax.tree.map(lambda x, r=r: x[r], value) for r in rows], {"step": list(steps[rows])}
    )


def agrees_by_lane(logs: logdict, tables: list[Table], axis: int) -> None:
    """Under the mask each lane holds what the oracle says; `axis` is that of the lanes."""
    if not any("a" in table for table in tables) and "a" not in logs:
        return
    shape = logs["a"]["s"].shape[:2]
    mask = logs.mask.get("a", np.ones(shape, bool))
    assert mask.shape == shape
    for lane, table in enumerate(tables):
        column = one_lane(logs["a"], mask, logs.step["a"], lane, axis)
        want = table.get("a", Column([], {"step": []}))
        assert len(column.entries) == len(want.entries)
        assert column.steps == want.steps
        if want.entries:
            same(stacked(column.entries), stacked(want.entries))


@EXAMPLES
@given(LANE_PATTERNS)
def test_ragged_lanes_inside(on: np.ndarray) -> None:
    """spool(vmap(f)): [entries, batch, ...]."""
    tables = [sometimes_oracle(x, o) for x, o in zip(LANE_XS, on, strict=True)]
    for fun in (spool_of_vmap, jax.jit(spool_of_vmap)):
        logs = fun(LANE_XS, on)[1]
        assert set(logs) == ({"a", "t"} if on.any() else {"t"})
        if on.any():
            rows = on.any(axis=0)
            assert logs["a"]["v"].shape == (rows.sum(), LANES, 2)
            assert ("a" in gaps(logs)) == (not on[:, rows].all())
            if "a" in gaps(logs):
                np.testing.assert_array_equal(logs.mask["a"], on.T[rows])
        agrees_by_lane(logs, tables, axis=1)
        same(logs["t"], np.cumsum(LANE_XS, axis=1).T)


@EXAMPLES
@given(LANE_PATTERNS)
def test_ragged_lanes_outside(on: np.ndarray) -> None:
    """vmap(spool(f)): [batch, entries, ...]."""
    tables = [sometimes_oracle(x, o) for x, o in zip(LANE_XS, on, strict=True)]
    logs = vmap_of_spool(LANE_XS, on)[1]
    assert set(logs) == {"a", "t"}
    np.testing.assert_array_equal(logs.mask["a"], on)
    agrees_by_lane(logs, tables, axis=0)
    same(logs["t"], np.cumsum(LANE_XS, axis=1))
    assert logs.entries()["a"]["v"].shape == (LENGTH, LANES, 2)


@EXAMPLES
@given(LANE_PATTERNS)
def test_a_ragged_lane_taken_out_settles(on: np.ndarray) -> None:
    logs = vmap_of_spool(LANE_XS, on)[1]
    for lane in range(LANES):
        one = jax.tree.map(lambda x, lane=lane: x[lane], logs)
        agrees(one, sometimes_oracle(LANE_XS[lane], on[lane]))


WAYS = ["spool of vmap", "inside jit", "vmap of spool", "inside vmap"]


@pytest.mark.parametrize(("mode", "way"), pairs([m for m in MODES if m != "append"], WAYS, few=1))
@examples(2, 3)
@given(on=LANE_PATTERNS)
def test_ragged_lanes_reduce_alone(way: str, mode: str, on: np.ndarray) -> None:
    fun = {
        "spool of vmap": lambda *a: spool_of_vmap(*a)[1].reduce(mode),
        "vmap of spool": lambda *a: vmap_of_spool(*a)[1].reduce(mode),
        "inside jit": LANE_REDUCED[mode, "jit"],
        "inside vmap": LANE_REDUCED[mode, "vmap"],
    }[way]
    logs = fun(LANE_XS, on)
    assert "t" in logs
    assert ("a" in logs) or not on.any()
    for lane in range(LANES):
        table = sometimes_oracle(LANE_XS[lane], on[lane])
        ran = "a" in logs and bool(logs.mask.get("a", np.ones(LANES, bool))[lane])
        assert ran == on[lane].any()
        for key, column in table.items():
            want = jax.tree.map(lambda x: oracle_reduce(x, mode), stacked(column.entries))
            same(jax.tree.map(lambda x, lane=lane: x[lane], logs[key]), want)
            same(logs.step[key][lane], oracle_step(column.steps["step"], mode))


def test_the_mask_goes_when_every_lane_has_an_entry() -> None:
    """Only where lanes differ is the mask kept."""
    on = np.eye(LANES, LENGTH, dtype=bool)
    logs = spool_of_vmap(LANE_XS, on)[1]
    assert gaps(logs) == {"a"}
    assert gaps(logs.reduce("last")) == set()
    same(logs.reduce("last")["a"]["v"][:, 0], np.diagonal(LANE_XS))


@pytest.mark.parametrize("way", ["spool of vmap", "vmap of spool"])
@FEWER
@given(on=LANE_PATTERNS, index=st.sampled_from(INDICES))
def test_ragged_lanes_slice_alone(way: str, on: np.ndarray, index: slice) -> None:
    inner = way == "spool of vmap"
    logs = (spool_of_vmap if inner else vmap_of_spool)(LANE_XS, on)[1]
    tables = [
        {key: column[index] for key, column in sometimes_oracle(x, o).items()}
        for x, o in zip(LANE_XS, on, strict=True)
    ]
    agrees_by_lane(logs.slice[index], tables, axis=1 if inner else 0)


@pytest.mark.parametrize("way", ["spool of vmap", "vmap of spool"])
@FEWER
@given(on=LANE_PATTERNS, other=LANE_PATTERNS)
def test_ragged_lanes_add_alone(way: str, on: np.ndarray, other: np.ndarray) -> None:
    inner = way == "spool of vmap"
    fun = spool_of_vmap if inner else vmap_of_spool
    logs = fun(LANE_XS, on)[1] + fun(LANE_XS, other)[1]
    tables = []
    for x, o, p in zip(LANE_XS, on, other, strict=True):
        tables.append(oracle_add(sometimes_oracle(x, o), sometimes_oracle(x, p)))
    assert ("a" in logs) or not (on | other).any()
    agrees_by_lane(logs, tables, axis=1 if inner else 0)
    same(np.asarray(logs["t"]).shape, (2 * LENGTH, LANES) if inner else (LANES, 2 * LENGTH))


def keyed(key: Any, on: Any) -> None:
    lax.cond(on, lambda: sawlog.log({"k": key, "h": jnp.bfloat16(2)}), lambda: None)


@pytest.mark.parametrize("on", [[True, False, True], [True] * 3])
def test_prng_keys_and_bf16_by_lane(on: list[bool]) -> None:
    keys, ran = jax.random.split(jax.random.key(0), LANES), np.array(on)
    lanes = jax.vmap(sawlog.spool(keyed))(keys, ran)[1]
    assert set(lanes) == {"k", "h"}
    assert jnp.array_equal(lanes["k"][ran], keys[ran])
    logs = sawlog.spool(jax.vmap(keyed))(keys, ran)[1]
    assert set(logs) == {"k", "h"}
    assert jnp.array_equal(logs["k"][ran], keys[ran])
    np.testing.assert_array_equal(np.asarray(logs["h"], np.float32)[ran], 2)
    np.testing.assert_array_equal(logs.mask.get("k", ran), ran)


def one_shot(x: Any, on: Any) -> None:
    lax.cond(on, lambda: sawlog.log({"yes": x}, step=7), lambda: sawlog.log({"no": -x}, step=8))


spool_one_shot = sawlog.spool(jax.vmap(one_shot))


@EXAMPLES
@given(st.lists(st.booleans(), min_size=LANES, max_size=LANES).map(np.array))
def test_one_shot_branches_by_lane(on: np.ndarray) -> None:
    xs = np.arange(1.0, LANES + 1, dtype=np.float32)
    logs = spool_one_shot(xs, on)[1]
    wanted = {"yes": (on, xs, 7), "no": (~on, -xs, 8)}
    assert set(logs) == {key for key, (ran, _, _) in wanted.items() if ran.any()}
    for key, (ran, values, step) in wanted.items():
        if not ran.any():
            assert logs[key].shape == (0, LANES)
            continue
        assert logs[key].shape == (LANES,)
        same(logs[key][ran], values[ran])
        np.testing.assert_array_equal(np.asarray(logs.step[key])[ran], step)
        assert (key in gaps(logs)) == (not ran.all())
        np.testing.assert_array_equal(logs.mask.get(key, ran), ran)
    lanes = jax.vmap(sawlog.spool(one_shot))(xs, on)[1]
    assert set(lanes) == set(lanes.mask) == {"yes", "no"}
    for key, (ran, values, _) in wanted.items():
        np.testing.assert_array_equal(lanes.mask[key], ran)
        same(lanes[key][ran], values[ran])
