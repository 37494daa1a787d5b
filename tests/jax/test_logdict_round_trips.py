"""logdict: pytrees, transformations, and axes around the logs."""

from __future__ import annotations

import copy
import functools
import pickle
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

from .logdict_oracle import (
    EXAMPLES,
    LENGTH,
    OTHERS_FIRST,
    XS,
    Column,
    Table,
    agrees,
    agrees_reduced,
    entry,
    oracle_reduce,
    oracle_step,
    same,
    sometimes,
    sometimes_oracle,
    stacked,
    tables,
    to_logs,
)

# -- round trips -----------------------------------------------------------------------------------


@EXAMPLES
@given(tables(), st.booleans())
def test_round_trips(table: Table, device: bool) -> None:
    logs = to_logs(table, device)
    leaves, tree = jax.tree.flatten(logs)
    trips = {
        "flatten": jax.tree.unflatten(tree, leaves),
        "map": jax.tree.map(lambda x: x, logs),
        "copy": copy.copy(logs),
        "deepcopy": copy.deepcopy(logs),
        "pickle": pickle.loads(pickle.dumps(logs)),
        "dict.copy": logs.copy(),
        "device": jax.device_get(jax.device_put(logs)),
    }
    for back in trips.values():
        assert type(back) is logdict
        agrees(back, table)
        assert list(back) == list(table)
        assert jax.tree.structure(back) == tree
        agrees(back + logs, {key: column + column for key, column in table.items()})


def test_deepcopy_is_deep_and_copy_is_not() -> None:
    logs = logdict({"a": np.zeros(2)}, step={"a": np.arange(2)})
    deep, flat = copy.deepcopy(logs), copy.copy(logs)
    logs["a"][0] = 1
    logs.step["a"][0] = 5
    same(deep["a"], np.zeros(2))
    same(deep.step["a"], np.arange(2))
    assert flat["a"] is logs["a"]
    assert flat.step["a"] is logs.step["a"]
    del flat["a"]
    assert "a" in logs


def test_paths_name_keys_and_steps() -> None:
    logs = logdict({"a": np.zeros(2)}, step={"a": np.arange(2)})
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(logs)]
    assert paths == ["['a']", "['a@step']"]


def test_structure_ignores_values_only() -> None:
    def tree(**steps: Any) -> Any:
        return jax.tree.structure(logdict({"a": np.zeros(2)}, **steps))

    assert tree() == tree()
    assert hash(tree()) == hash(tree())
    assert tree() != tree(step={"a": np.arange(2)})
    assert tree(step={"a": np.arange(2)}) != tree(episode={"a": np.arange(2)})


def test_export_round_trip() -> None:
    spooled = jax.jit(sawlog.spool(sometimes))
    on = np.array([True, False, True, True, False])
    data = jax.export.export(spooled)(XS, on).serialize()
    out, logs = jax.export.deserialize(data).call(XS, on)
    same(out, XS.sum())
    assert type(logs) is logdict
    agrees(logs, sometimes_oracle(XS, on))
    none = jax.export.deserialize(data).call(XS, ~on & on)[1]
    agrees(none, sometimes_oracle(XS, ~on & on))


# -- in and out of transformations -----------------------------------------------------------------


def test_in_and_out_of_jit() -> None:
    table = {"a": Column([entry("tree", i) for i in range(3)], {"step": [4, 5, 6]})}
    logs = to_logs(table, device=True)

    @jax.jit
    def f(logs: logdict) -> Any:
        assert type(logs) is logdict
        assert set(logs) == {"a"}
        assert set(logs.step) == {"a"}
        more = logs + logs
        return more, more.slice[1:-1], more.reduce("max"), jax.tree.map(jnp.negative, logs)

    more, part, top, negative = f(logs)
    double = {"a": table["a"] + table["a"]}
    agrees(more, double)
    agrees(part, {"a": double["a"][1:-1]})
    agrees_reduced(top, table, {"a": "max"})
    same(negative["a"], jax.tree.map(np.negative, stacked(table["a"].entries)))
    agrees(f(more)[0], {"a": double["a"] + double["a"]})


def test_in_and_out_of_vmap_and_scan() -> None:
    logs = logdict({"a": jnp.arange(6.0).reshape(3, 2)}, step={"a": jnp.arange(3)})
    mapped = jax.vmap(lambda one: jax.tree.map(lambda x: 2 * x, one))(logs)
    agrees(mapped, {"a": Column(list(2 * np.arange(6).reshape(3, 2)), {"step": [0, 2, 4]})})

    def body(carry: logdict, one: logdict) -> Any:
        assert type(carry) is type(one) is logdict
        new = jax.tree.map(jnp.add, carry, one)
        return new, new

    zero = jax.tree.map(lambda x: jnp.zeros_like(x[0]), logs)
    last, every = lax.scan(body, zero, logs)
    sums = np.cumsum(np.arange(6).reshape(3, 2), axis=0)
    same(last["a"], sums[-1])
    same(last.step["a"], 3)
    same(every["a"], sums)
    same(every.step["a"], np.array([0, 1, 3]))


def test_gradient_through_logs() -> None:
    def f(x: Any) -> Any:
        def g(x: Any) -> None:
            sawlog.log({"x": x**2})
            sawlog.log({"x": x**3})

        return sawlog.spool(g)(x)[1].reduce("sum")["x"]

    same(jax.grad(f)(2.0), 4.0 + 12.0)


# -- outer axes ------------------------------------------------------------------------------------


def loop(x: Any) -> Any:
    def body(v: Any, i: Any) -> Any:
        v = v * 2 + i
        sawlog.log({"v": v, "w": jnp.stack([v, -v])}, step=i + 1)
        return v, None

    sawlog.log({"once": {"p": x, "q": jnp.stack([x, x + 1])}}, step=0)
    return lax.scan(body, x, jnp.arange(LENGTH))[0]


def loop_oracle(x: float) -> Table:
    values = []
    v = np.float32(x)
    for i in range(LENGTH):
        v = v * 2 + np.float32(i)
        values.append(v)
    steps = {"step": list(range(1, LENGTH + 1))}
    return {
        "once": Column(
            [{"p": np.float32(x), "q": np.array([x, x + 1], np.float32)}], {"step": [0]}
        ),
        "v": Column(values, steps),
        "w": Column([np.stack([v, -v]) for v in values], steps),
    }


BATCH = np.array([0.0, 1.0, -3.0], np.float32)


def over_lanes(make: Any) -> Any:
    return stacked([make(x) for x in BATCH])


@functools.cache
def spooled_lanes() -> logdict:
    return jax.vmap(sawlog.spool(loop))(BATCH)[1]


@pytest.mark.turns(2)
@pytest.mark.parametrize("mode", OTHERS_FIRST)
def test_reduce_under_an_outer_vmap(mode: str) -> None:
    """Both ways: on the mapped logs, and inside of the mapped function."""
    inside = jax.jit(jax.vmap(lambda x: sawlog.spool(loop)(x)[1].reduce(mode)))
    for logs in (spooled_lanes().reduce(mode), inside(BATCH)):
        assert set(logs) == {"once", "v", "w"}
        for key in logs:
            columns = [loop_oracle(x)[key] for x in BATCH]
            if mode == "append":
                full = [stacked(c.entries) for c in columns]
                want = stacked([c.entries[0] for c in columns] if key == "once" else full)
                steps = [c.steps["step"][0 if key == "once" else slice(None)] for c in columns]
            else:
                want = stacked([
                    jax.tree.map(lambda x: oracle_reduce(x, mode), stacked(c.entries))
                    for c in columns
                ])  # fmt: skip
                steps = [oracle_step(c.steps["step"], mode) for c in columns]
            same(logs[key], want)
            same(logs.step[key], np.array(steps))


@pytest.mark.parametrize("index", [slice(1, 3), slice(None, None, -2), slice(-2, 99), slice(0, 0)])
def test_slice_under_an_outer_vmap(index: slice) -> None:
    logs = jax.vmap(sawlog.spool(loop))(BATCH)[1].slice[index]
    assert set(logs) == {"once", "v", "w"}
    for key in logs:
        full = over_lanes(lambda x, key=key: stacked(loop_oracle(x)[key].entries))
        same(logs[key], jax.tree.map(lambda a: a[:, index], full))
        steps = np.array([loop_oracle(x)[key].steps["step"] for x in BATCH])
        same(logs.step[key], steps[:, index])


@pytest.mark.parametrize("depth", [1, 2])
def test_entries_under_outer_vmaps(depth: int) -> None:
    """The entry axis comes first, whatever stands around."""
    fun, xs = jax.vmap(sawlog.spool(loop)), BATCH
    if depth == 2:
        fun, xs = jax.vmap(fun), np.stack([BATCH, BATCH + 1])
    logs = fun(xs)[1]
    found = logs.entries()
    assert set(found) == {"once", "v", "w"}
    lead = (len(BATCH),) if depth == 1 else (2, len(BATCH))
    assert found["v"].shape == (LENGTH, *lead)
    assert found["w"].shape == (LENGTH, *lead, 2)
    assert found["once"]["p"].shape == (1, *lead)
    assert found["once"]["q"].shape == (1, *lead, 2)
    for lane in np.ndindex(lead):
        table = loop_oracle(xs[lane])
        for key in table:
            same(
                jax.tree.map(lambda a, lane=lane: a[(slice(None), *lane)], found[key]),
                stacked(table[key].entries),
            )


def test_add_under_an_outer_vmap() -> None:
    one = jax.vmap(sawlog.spool(loop))(BATCH)[1]
    logs = one + one
    assert set(logs) == {"once", "v", "w"}
    for key in logs:
        columns = [loop_oracle(x)[key] for x in BATCH]
        same(logs[key], stacked([stacked((c + c).entries) for c in columns]))
        same(logs.step[key], np.array([(c + c).steps["step"] for c in columns]))


def test_a_lane_taken_out_is_a_logdict_again() -> None:
    logs = jax.vmap(sawlog.spool(loop))(BATCH)[1]
    for i, x in enumerate(BATCH):
        lane = jax.tree.map(lambda a, i=i: a[i], logs)
        agrees(lane, loop_oracle(x))
        agrees_reduced(lane.reduce("mean"), loop_oracle(x), dict.fromkeys(logs, "mean"))


def test_outer_scan_of_a_spooled_function() -> None:
    """The axis of the user's own scan is an outer axis, not the entries."""

    def body(carry: Any, x: Any) -> Any:
        return carry, sawlog.spool(loop)(x)[1]

    logs = lax.scan(body, 0, BATCH)[1].reduce("last")
    assert set(logs) == {"once", "v", "w"}
    for key in logs:
        same(logs[key], over_lanes(lambda x, key=key: loop_oracle(x)[key].entries[-1]))
