"""logdict: entries that may be missing."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import jax
import jax.export
import numpy as np
import pytest
from hypothesis import given

import sawlog
from sawlog import logdict
from tests.jax.same import gaps

from .logdict_oracle import (
    EXAMPLES,
    FEWER,
    FIRST_LOOKS,
    INDICES,
    LENGTH,
    MODES,
    OTHERS_FIRST,
    PATTERNS,
    SLICED,
    XS,
    Table,
    agrees,
    agrees_reduced,
    inside,
    same,
    sometimes,
    sometimes_oracle,
    spooled_sometimes,
    stacked,
)

jitted_sometimes = jax.jit(spooled_sometimes)


def agrees_where_present(logs: logdict, on: np.ndarray, table: Table) -> None:
    agrees(logs, table)
    if not on.any():
        assert jax.tree.map(lambda x: x.shape, logs["a"]) == {"s": (0,), "v": (0, 2)}
        assert logs.get("a") is None
        with pytest.raises(KeyError):
            logs["nothing"]


@EXAMPLES
@given(PATTERNS)
def test_concrete_logs_hold_real_entries_only(on: np.ndarray) -> None:
    table = sometimes_oracle(XS, on)
    for fun in (spooled_sometimes, jitted_sometimes):
        agrees_where_present(fun(XS, on)[1], on, table)
    logs = jitted_sometimes(XS, on)[1]
    agrees(logs + logs, {key: column + column for key, column in table.items()})
    agrees(jitted_sometimes(XS, on)[1].to_numpy(), table)
    agrees(pickle.loads(pickle.dumps(jitted_sometimes(XS, on)[1])), table)
    agrees(copy.deepcopy(jitted_sometimes(XS, on)[1]), table)


@pytest.mark.parametrize("look", FIRST_LOOKS)
@pytest.mark.parametrize("on", [[1, 0, 1, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
def test_the_first_look_sees_real_entries_only(look: str, on: list[int]) -> None:
    """Logs that come out of a jit settle at the first look, whichever it is."""
    settled = spooled_sometimes(XS, np.array(on, bool))[1]
    fresh = jitted_sometimes(XS, np.array(on, bool))[1]
    assert FIRST_LOOKS[look](fresh) == FIRST_LOOKS[look](settled)


def test_popping_first_gives_the_compacted_value() -> None:
    on = np.array([True, False, True, False, False])
    want = stacked(sometimes_oracle(XS, on)["a"].entries)
    same(jitted_sometimes(XS, on)[1].pop("a"), want)
    only = jax.jit(sawlog.spool(sometimes, argnames="a"))(XS, on)[1]
    key, value = only.popitem()
    assert key == "a"
    same(value, want)


def test_deleting_what_was_not_logged_is_a_key_error() -> None:
    none = np.zeros(LENGTH, bool)
    for fun in (spooled_sometimes, jitted_sometimes):
        logs = fun(XS, none)[1]
        with pytest.raises(KeyError):
            del logs["a"]
        logs = fun(XS, none)[1]
        with pytest.raises(KeyError):
            logs.pop("a")


def test_setting_what_was_not_logged() -> None:
    for fun in (spooled_sometimes, jitted_sometimes):
        logs = fun(XS, np.zeros(LENGTH, bool))[1]
        logs["a"] = np.arange(3)
        assert set(logs) == {"a", "t"}
        same(logs["a"], np.arange(3))
        same(logs.entries()["a"], np.arange(3))
        assert set(logs.step) == {"t"}


def test_empty_keys_survive_round_trips() -> None:
    """`logs["a"]` of a key that was not logged is an empty array, in a copy too."""
    logs = spooled_sometimes(XS, np.zeros(LENGTH, bool))[1]
    trips = {
        "copy": copy.copy(logs),
        "deepcopy": copy.deepcopy(logs),
        "pickle": pickle.loads(pickle.dumps(logs)),
        "to_numpy": logs.to_numpy(),
        "tree": jax.tree.map(lambda x: x, logs),
        "slice": logs.slice[1:],
        "reduce": logs.reduce("mean"),
    }
    for name, back in trips.items():
        assert "a" not in back, name
        assert jax.tree.map(lambda x: x.shape, back["a"]) == {"s": (0,), "v": (0, 2)}, name
    renamed = logs.prefix("p/")
    assert jax.tree.map(lambda x: x.shape, renamed["p/a"]) == {"s": (0,), "v": (0, 2)}
    with pytest.raises(KeyError):
        renamed["a"]


@jax.jit
def masks_inside(xs: Any, on: Any) -> Any:
    logs = spooled_sometimes(xs, on)[1]
    assert set(logs) == set(logs.mask) == {"a", "t"}
    return dict(logs), logs.mask["a"], logs.step["a"]


@EXAMPLES
@given(PATTERNS)
def test_mask_inside_jit(on: np.ndarray) -> None:
    values, mask, steps = masks_inside(XS, on)
    np.testing.assert_array_equal(mask, on)
    totals = np.cumsum(XS)
    same(values["a"]["s"][on], totals[on])
    same(values["a"]["v"][on], np.stack([XS, -XS], 1)[on])
    same(steps[on], np.arange(LENGTH)[on])


REDUCED = {mode: inside(lambda logs, mode=mode: logs.reduce(mode)) for mode in MODES}

DOUBLED = inside(lambda logs: logs + logs.filter(lambda key, value: key == "a"))

CHAINED = inside(lambda logs: (logs + logs).slice[1:-1].prefix("p/").reduce("sum"))


@pytest.mark.parametrize("mode", OTHERS_FIRST)
@FEWER
@given(on=PATTERNS)
def test_reduce_inside_jit_respects_the_mask(mode: str, on: np.ndarray) -> None:
    table = sometimes_oracle(XS, on)
    agrees_reduced(REDUCED[mode](XS, on), table, dict.fromkeys(table, mode))


@pytest.mark.parametrize("mode", MODES)
@FEWER
@given(on=PATTERNS)
def test_reduce_option_respects_the_mask(mode: str, on: np.ndarray) -> None:
    table = sometimes_oracle(XS, on)
    logs = sawlog.spool(sometimes, reduce=mode)(XS, on)[1]
    agrees_reduced(logs, table, dict.fromkeys(table, mode))
    assert gaps(logs) == set()


@pytest.mark.parametrize("index", INDICES, ids=str)
@FEWER
@given(on=PATTERNS)
def test_slice_inside_jit_respects_the_mask(index: slice, on: np.ndarray) -> None:
    table = {key: column[index] for key, column in sometimes_oracle(XS, on).items()}
    logs = SLICED[str(index)](XS, on)
    full = {key: column for key, column in table.items() if column.entries}
    assert full.keys() <= logs.keys()
    agrees(logs.filter(lambda key, value: key in full), full)
    assert all(jax.tree.leaves(logs[key])[0].shape[0] == 0 for key in logs.keys() - full.keys())


@pytest.mark.parametrize("interval", [1, 2, 3])
@FEWER
@given(on=PATTERNS)
def test_interval_counts_real_entries(interval: int, on: np.ndarray) -> None:
    table = {k: column[::interval] for k, column in sometimes_oracle(XS, on).items()}
    agrees(sawlog.spool(sometimes, interval=interval)(XS, on)[1], table)


@EXAMPLES
@given(PATTERNS)
def test_add_inside_jit_respects_the_mask(on: np.ndarray) -> None:
    table = sometimes_oracle(XS, on)
    want = {k: column + column if k == "a" else column for k, column in table.items()}
    agrees(DOUBLED(XS, on), want)


@EXAMPLES
@given(PATTERNS)
def test_chained_operations_respect_the_mask(on: np.ndarray) -> None:
    table = {
        "p/" + k: (column + column)[1:-1]
        for k, column in sometimes_oracle(XS, on).items()
        if len(column.entries) > 1 or k == "t"
    }
    agrees_reduced(CHAINED(XS, on), table, dict.fromkeys(table, "sum"))
