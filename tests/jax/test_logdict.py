"""logdict: reading, and operations along the entries."""

from __future__ import annotations

from typing import Any

import jax
import jax.export
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import numpy as jnp

import sawlog
from sawlog import logdict

from .logdict_oracle import (
    EXAMPLES,
    FEWER,
    KEYS,
    KINDS,
    Column,
    Table,
    agrees,
    logging,
    oracle_add,
    same,
    stacked,
    tables,
    to_logs,
)


@st.composite
def fitting_tables(draw: Any, count: int) -> list[Table]:
    """Tables whose keys, where they share them, have the same type and step axes."""
    steps = st.sampled_from([(), ("step",), ("episode", "step")])
    types = {key: (draw(st.sampled_from(KINDS)), draw(steps)) for key in KEYS}
    return [draw(tables(types)) for _ in range(count)]


# -- reading ---------------------------------------------------------------------------------------


@EXAMPLES
@given(tables(), st.booleans())
def test_reading(table: Table, device: bool) -> None:
    logs = to_logs(table, device)
    agrees(logs, table)
    assert list(logs) == list(table) == list(logs.keys())
    assert len(logs) == len(table)
    plain = logs.asdict()
    assert type(plain) is dict
    assert list(plain) == list(table)
    for key in table:
        assert plain[key] is logs[key] is logs.get(key)


@FEWER
@given(tables())
def test_spooled_logs_agree_with_the_oracle(table: Table) -> None:
    _, logs = sawlog.spool(logging(table))()
    agrees(logs, table)
    for key, column in table.items():
        want = column.entries[0] if len(column.entries) == 1 else stacked(column.entries)
        same(logs[key], want)
        dtypes = [leaf.dtype for leaf in jax.tree.leaves(logs[key])]
        assert dtypes == [leaf.dtype for leaf in jax.tree.leaves(want)]


def test_scalars_are_one_entry() -> None:
    logs = logdict({"a": 1.5, "b": jnp.arange(3)}, step={"a": 4})
    same(logs["a"], 1.5)
    same(logs.entries()["a"], np.array([1.5]))
    same(logs.entries()["b"], np.arange(3))
    agrees(logs + logs, {
        "a": Column([np.float32(1.5)] * 2, {"step": [4, 4]}),
        "b": Column([*map(np.int32, (0, 1, 2, 0, 1, 2))], {}),
    })  # fmt: skip


def test_misaligned_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="step"):
        logdict({"a": np.arange(3)}, step={"a": np.arange(2)})


def test_missing_keys() -> None:
    logs = logdict({"a": jnp.arange(3)})
    with pytest.raises(KeyError, match="b"):
        logs["b"]
    assert "b" not in logs
    assert logs.get("b") is None
    assert logs.get("b", 7) == 7


def test_equality_is_that_of_a_dict() -> None:
    assert logdict({"a": 1}) == {"a": 1}
    assert logdict({"a": 1}) != {"a": 2}
    assert logdict({"a": 1}) == logdict({"a": 1})
    assert isinstance(logdict(), dict)


# -- operations ------------------------------------------------------------------------------------


@EXAMPLES
@given(fitting_tables(2), st.booleans(), st.booleans())
def test_add_is_concatenation(pair: list[Table], left: bool, right: bool) -> None:
    one, two = pair
    first, second = to_logs(one, left), to_logs(two, right)
    agrees(first + second, oracle_add(one, two))
    agrees(first, one)
    agrees(second, two)


@EXAMPLES
@given(fitting_tables(3))
def test_add_is_associative(three: list[Table]) -> None:
    a, b, c = map(to_logs, three)
    left, right = (a + b) + c, a + (b + c)
    agrees(left, oracle_add(oracle_add(*three[:2]), three[2]))
    assert list(left) == list(right)
    for key in left:
        jax.tree.map(np.testing.assert_array_equal, left[key], right[key])
    assert jax.tree.structure(left) == jax.tree.structure(right)


@FEWER
@given(fitting_tables(2))
def test_add_is_running_one_after_the_other(pair: list[Table]) -> None:
    first, second = map(logging, pair)

    def both() -> None:
        first()
        second()

    want = sawlog.spool(both)()[1]
    got = sawlog.spool(first)()[1] + sawlog.spool(second)()[1]
    agrees(want, oracle_add(*pair))
    agrees(got, oracle_add(*pair))
    assert list(got) == list(want)
    for key in want:
        jax.tree.map(np.testing.assert_array_equal, got[key], want[key])


def test_add_keeps_dtypes() -> None:
    key = jax.random.key(1)
    logs = logdict({"k": key[None], "h": jnp.ones((2, 3), jnp.bfloat16), "b": jnp.array([True])})
    total = logs + logs
    assert {k: (v.dtype, v.shape) for k, v in total.items()} == {
        "k": (key.dtype, (2,)),
        "h": (jnp.bfloat16, (4, 3)),
        "b": (jnp.bool_, (2,)),
    }


def test_add_refuses_other_things() -> None:
    with pytest.raises(TypeError):
        logdict({"a": jnp.arange(3)}) + {"a": jnp.arange(3)}


@EXAMPLES
@given(tables(), tables())
def test_or_takes_the_right(one: Table, two: Table) -> None:
    first, second = to_logs(one), to_logs(two)
    agrees(first | second, {**one, **two})
    agrees(first, one)
    agrees(second, two)


def test_or_with_a_plain_dict() -> None:
    logs = logdict({"a": np.arange(3)}, step={"a": np.arange(3)}) | {"b": np.zeros(2)}
    assert set(logs) == {"a", "b"}
    assert set(logs.step) == {"a"}
    assert isinstance(logs, logdict)
    with pytest.raises(TypeError):
        logs | 3


BOUNDS = st.none() | st.integers(-7, 7)

SLICES = st.builds(slice, BOUNDS, BOUNDS, st.none() | st.integers(-3, 3).filter(bool))


@EXAMPLES
@given(tables(), SLICES, st.booleans())
def test_slice_is_list_slicing(table: Table, index: slice, device: bool) -> None:
    got = to_logs(table, device).slice[index]
    want = {key: column[index] for key, column in table.items()}
    full = {key: column for key, column in want.items() if column.entries}
    assert set(got) == set(table)
    agrees(got.filter(lambda key, value: key in full), full)
    for key in set(table) - set(full):
        like = jax.tree.leaves(stacked(table[key].entries))
        leaves = jax.tree.leaves(got[key])
        assert [x.shape for x in leaves] == [(0, *x.shape[1:]) for x in like]
        assert [x.dtype for x in leaves] == [x.dtype for x in like]


@FEWER
@given(tables(), SLICES)
def test_slice_of_spooled_logs(table: Table, index: slice) -> None:
    """Also where a single entry has no axis."""
    got = sawlog.spool(logging(table))()[1].slice[index].entries()
    assert set(got) == set(table)
    for key, column in table.items():
        same(got[key], jax.tree.map(lambda x: x[index], stacked(column.entries)))


@EXAMPLES
@given(tables(), st.sets(st.sampled_from(KEYS)))
def test_filter(table: Table, keep: set[str]) -> None:
    logs, seen = to_logs(table), {}

    def predicate(key: str, value: Any) -> bool:
        seen[key] = value
        return key in keep

    agrees(logs.filter(predicate), {key: c for key, c in table.items() if key in keep})
    assert seen.keys() == table.keys()
    assert all(seen[key] is logs[key] for key in table)


@EXAMPLES
@given(tables(), st.sampled_from(["p/", "", "x"]))
def test_prefix(table: Table, prefix: str) -> None:
    logs = to_logs(table)
    agrees(logs.prefix(prefix), {prefix + key: column for key, column in table.items()})
    agrees(logs, table)
