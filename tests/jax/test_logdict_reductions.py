"""logdict: reductions, logs on the host, and changes in place."""

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

from .logdict_oracle import (
    EXAMPLES,
    FEWER,
    KEYS,
    MODES,
    OTHERS_FIRST,
    Column,
    Table,
    agrees,
    agrees_reduced,
    logging,
    oracle_reduce,
    same,
    stacked,
    tables,
    to_logs,
)

# -- reductions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@FEWER
@given(table=tables(), device=st.booleans())
def test_reduce(mode: str, table: Table, device: bool) -> None:
    logs = to_logs(table, device)
    agrees_reduced(logs.reduce(mode), table, dict.fromkeys(table, mode))
    agrees(logs, table)


def test_reduce_by_default_is_the_mean() -> None:
    same(logdict({"a": jnp.array([1, 2])}).reduce()["a"], np.float32(1.5))


@EXAMPLES
@given(tables(), st.dictionaries(st.sampled_from(KEYS), st.sampled_from(MODES)))
def test_reduce_by_key(table: Table, modes: dict[str, str]) -> None:
    agrees_reduced(to_logs(table).reduce(modes), table, modes)


@pytest.mark.parametrize("mode", [m for m in MODES if m != "append"])
def test_reduce_leaves_one_entry_without_axis(mode: str) -> None:
    """A single entry as it was logged: the axes of its own are not entries."""

    def f(x: Any) -> None:
        sawlog.log({"x": x}, step=5)

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    logs = sawlog.spool(f)(x)[1].reduce(mode)
    same(logs["x"], oracle_reduce(x[None], mode))
    same(logs.step["x"], 5)


@FEWER
@given(tables(), st.sampled_from(MODES), st.sampled_from([1, 2, 3]))
def test_options_of_spool_are_the_methods(table: Table, mode: str, interval: int) -> None:
    program = logging(table)
    got = sawlog.spool(program, reduce=mode, prefix="p/")()[1]
    agrees_reduced(
        got,
        {"p/" + key: column for key, column in table.items()},
        {"p/" + key: mode for key in table},
    )
    kept = {key: column[::interval] for key, column in table.items()}
    agrees(sawlog.spool(program, interval=interval)()[1], kept)


@pytest.mark.turns
@pytest.mark.parametrize("mode", OTHERS_FIRST)
def test_reduce_prng_keys_and_bf16(mode: str) -> None:
    """Keys can be picked and counted, but not added up."""
    keys = jax.random.split(jax.random.key(0), 3)
    half = jnp.array([1.5, 2.5, 0.5], jnp.bfloat16)
    logs = logdict({"h": half})
    for some in (logs, logs.to_numpy()):
        want = half if mode == "append" else oracle_reduce(np.asarray(half, np.float32), mode)
        np.testing.assert_allclose(
            np.asarray(some.reduce(mode)["h"], np.float32), np.asarray(want, np.float32), 1e-2
        )
    logs = logdict({"k": keys})
    if mode in ("first", "last", "replace"):
        want = keys[0 if mode == "first" else -1]
        assert jnp.array_equal(logs.reduce(mode)["k"], want)
    elif mode == "count":
        assert logs.reduce(mode)["k"] == 3
    elif mode == "append":
        assert jnp.array_equal(logs.reduce(mode)["k"], keys)
    else:
        with pytest.raises(TypeError):
            logs.reduce(mode)


def test_reduce_no_entries() -> None:
    def fun(xs: Any) -> Any:
        return lax.map(lambda x: sawlog.log({"x": x}), xs)

    logs = sawlog.spool(fun)(np.zeros((0, 2)))[1]
    same(logs["x"], np.zeros((0, 2)))
    for mode in ("sum", "count", "mean"):
        inside = sawlog.spool(fun, reduce=mode)(np.zeros((0, 2)))[1]
        same(logs.reduce(mode)["x"], inside["x"])
        assert dict(inside) == dict(logs.reduce(mode)) == {}


# -- the host --------------------------------------------------------------------------------------


def test_to_numpy() -> None:
    key = jax.random.key(3)

    def f(x: Any, key: Any) -> None:
        for i in range(2):
            sawlog.log({"f": x, "h": x.astype(jnp.bfloat16), "k": key, "t": (x, [i])}, step=i)

    logs = sawlog.spool(f)(jnp.arange(3.0), key)[1]
    host = logs.to_numpy()
    assert type(host) is logdict
    assert set(host) == {"f", "h", "k", "t"}
    leaves = [host["f"], host["h"], *jax.tree.leaves(host["t"]), *host.step.values()]
    assert len(leaves) == 8
    assert all(type(leaf) is np.ndarray for leaf in leaves)
    assert host["h"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(host["h"].astype(np.float32), [[0, 1, 2]] * 2)
    assert jnp.array_equal(host["k"], jnp.stack([key, key]))
    same(host["t"], (np.array([[0.0, 1, 2]] * 2), [np.array([0, 1])]))
    same(host.step["k"], np.array([0, 1]))
    assert isinstance(logs["f"], jax.Array)


@EXAMPLES
@given(tables())
def test_to_numpy_keeps_everything(table: Table) -> None:
    host = to_logs(table, device=True).to_numpy()
    agrees(host, table)
    leaves = jax.tree.leaves(host)
    assert leaves
    assert all(isinstance(leaf, np.ndarray) for leaf in leaves)


@EXAMPLES
@given(tables(), st.booleans())
def test_repr_names_everything(table: Table, device: bool) -> None:
    text = repr(to_logs(table, device))
    lines = text.splitlines()
    assert len(lines) == 1 + len(table)
    for line, (key, column) in zip(lines[1:], table.items(), strict=True):
        assert line.split()[0] == key
        for name in column.steps:
            assert name in line.split()


def test_repr_is_exact() -> None:
    logs = logdict({"loss": np.array([3.0, 2.0], np.float32)}, step={"loss": np.arange(2)})
    assert repr(logs) == "logdict:\n  loss  float32[2]  [3., 2.]  step [0, 1]"
    assert repr(logdict()) == "logdict: empty"


def test_repr_of_keys_and_long_arrays_has_one_line_a_key() -> None:
    logs = logdict({"k": jax.random.split(jax.random.key(0), 3), "x": jnp.zeros((50, 50))})
    lines = repr(logs).splitlines()
    assert [line.split()[0] for line in lines] == ["logdict:", "k", "x"]
    assert max(map(len, lines)) < 400


def test_repr_while_tracing() -> None:
    texts = []

    def f(x: Any) -> Any:
        def inner(x: Any) -> None:
            sawlog.log({"x": x, "t": {"u": x}}, step=1)
            lax.cond(x > 0, lambda: sawlog.log({"m": x}), lambda: None)

        logs = sawlog.spool(inner)(x)[1]
        texts.append(repr(logs))
        return logs

    jax.jit(f)(1.0)
    assert len(texts) == 1
    texts.append(repr(jax.eval_shape(f, 1.0)))
    logs = jax.jit(f)(1.0)
    for filler in (None, object(), 0):
        texts.append(repr(jax.tree.map(lambda leaf, filler=filler: filler, logs)))
    for text in texts:
        heads = [line.split()[0] for line in text.splitlines()]
        assert heads == ["logdict:", "x", "t", "m"]
        assert "step" in text
    assert all("traced" in text and "missing" in text for text in texts[:2])


# -- changes in place ------------------------------------------------------------------------------


NEW = Column([np.float32(8), np.float32(9)], {})

OPERATIONS = ("del", "pop", "pop default", "set", "update", "update logs", "|=", "setdefault")


def change(logs: logdict, table: Table, operation: str, key: str, other: Table) -> None:
    """Do the same to the logs and to the oracle."""
    present = key in table
    if operation == "del":
        if not present:
            with pytest.raises(KeyError):
                del logs[key]
            return
        del logs[key]
        del table[key]
    elif operation == "pop":
        if not present:
            with pytest.raises(KeyError):
                logs.pop(key)
            return
        same(logs.pop(key), stacked(table.pop(key).entries))
    elif operation == "pop default":
        got = logs.pop(key, None)
        column = table.pop(key, None)
        assert (got is None) == (column is None)
    elif operation == "set":
        logs[key] = stacked(NEW.entries)
        table[key] = NEW
    elif operation == "update":
        logs.update({key: stacked(NEW.entries)})
        table[key] = NEW
    elif operation == "update logs":
        logs.update(to_logs(other))
        table.update(other)
    elif operation == "|=":
        logs |= to_logs(other)
        table |= other
    else:
        got = logs.setdefault(key, stacked(NEW.entries))
        same(got, stacked(table.setdefault(key, NEW).entries))


@EXAMPLES
@given(
    tables(),
    tables(),
    st.lists(st.tuples(st.sampled_from(OPERATIONS), st.sampled_from(KEYS)), min_size=1, max_size=5),
    st.booleans(),
)
def test_changes_in_place(table: Table, other: Table, operations: Any, copied: bool) -> None:
    original = to_logs(table)
    logs, now = (original.copy() if copied else to_logs(table)), dict(table)
    for operation, key in operations:
        change(logs, now, operation, key, other)
        agrees(logs, now)
    agrees(original, table)
    agrees(logs + logs, {key: column + column for key, column in now.items()})
    agrees(jax.tree.map(lambda x: x, logs), now)


def test_setting_a_key_keeps_its_place() -> None:
    """As in any dict."""
    logs = logdict({"a": np.zeros(2), "b": np.zeros(2)}, step={"a": np.arange(2)})
    logs["a"] = np.ones(3)
    assert list(logs) == ["a", "b"]
    assert logs.steps == {}


def test_clear_and_popitem() -> None:
    logs = logdict({"a": np.zeros(2), "b": np.ones(2)}, step={"a": np.arange(2), "b": np.arange(2)})
    key, value = logs.popitem()
    assert key == "b"
    same(value, np.ones(2))
    assert set(logs) == set(logs.step) == {"a"}
    logs.clear()
    assert len(logs) == 0
    assert logs.steps == {}
    with pytest.raises(KeyError):
        logs.popitem()


# -- no entries ------------------------------------------------------------------------------------


def _of_no_step(x: Any) -> Any:
    """A loop of no steps, with logs in it."""

    def step(x: Any, i: Any) -> Any:
        sawlog.log({"n": i * x}, step=i)
        return x, None

    return lax.scan(step, x, jnp.arange(0))[0]


NO_ENTRIES = {
    "one": lambda spooled: spooled(1.0),
    "jit": lambda spooled: jax.jit(spooled)(1.0),
    "lanes": lambda spooled: jax.vmap(spooled)(jnp.arange(3.0)),
    "lanes of lanes": lambda spooled: jax.jit(jax.vmap(jax.vmap(spooled)))(jnp.ones((2, 3))),
}


@pytest.mark.parametrize("mode", ["mean", "sum", "max", "last", "count", "std"])
@pytest.mark.parametrize("way", NO_ENTRIES)
def test_a_reduction_of_no_entries_is_not_a_number(way: str, mode: str) -> None:
    """It has no value: left out, and masked under vmap, wherever the entries are reduced."""
    call = NO_ENTRIES[way]
    found = [
        call(sawlog.spool(_of_no_step, reduce=mode))[1],
        call(sawlog.spool(_of_no_step, window=2, reduce=mode))[1],
        call(sawlog.spool(_of_no_step))[1].reduce(mode),
        jax.jit(lambda logs: logs.reduce(mode))(call(sawlog.spool(_of_no_step))[1]),
    ]
    for logs in found:
        if "lanes" in way:
            assert not np.any(logs.mask["n"])
            assert np.shape(logs.mask["n"]) == np.shape(logs["n"]) == ((3,), (2, 3))["of" in way]
        else:
            assert "n" not in dict(logs)


@pytest.mark.parametrize("statistic", ["mean", "std", "min", "max", "sum", "count", "median"])
def test_statistics_of_no_entries(statistic: str) -> None:
    logs = jax.vmap(sawlog.spool(_of_no_step))(jnp.arange(3.0))[1]
    over_lanes = getattr(logs, statistic)()
    assert np.shape(over_lanes["n"]) == np.shape(over_lanes.step["n"]) == (0,)
    over_entries = getattr(logs, statistic)(over="entries")
    assert np.asarray(over_entries.mask["n"]).tolist() == [False] * 3


def test_the_median_of_a_lane_that_never_logged_is_masked() -> None:
    def fun(x: Any) -> None:
        for i in range(3):
            sawlog.log({"x": x + i}, where=x > 0)

    logs = jax.vmap(sawlog.spool(fun))(jnp.array([-1.0, 2.0, 4.0]))[1]
    medians = logs.median(over="entries")
    assert np.asarray(medians.mask["x"]).tolist() == [False, True, True]
    np.testing.assert_array_equal(np.asarray(medians["x"])[1:], [3.0, 5.0])


@pytest.mark.parametrize(
    ("values", "mode", "expected"),
    [
        (np.array([2**40, 1, 2**40]), "sum", 2**41 + 1),
        (np.array([2**40, 1, 7]), "max", 2**40),
        (np.array([1.0, 1e-12]), "sum", 1.0 + 1e-12),
        (np.array([1e300, 3e300]), "mean", 2e300),
    ],
)
def test_arrays_of_64_bits_on_the_host_stay_exact(values, mode, expected) -> None:
    """Whether or not JAX has 64 bits turned on."""
    assert not jax.config.jax_enable_x64
    found = sawlog.logdict({"x": values}).reduce(mode)["x"]
    assert found == expected
    assert found.dtype == values.dtype
