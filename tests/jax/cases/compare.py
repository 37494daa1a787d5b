"""Comparing what a transformation gave with the hand-written answer: shapes, dtypes, values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from .base import Logged, Logs, PyTree, is_prng_key, stack

ATOL = 1e-6


def same_leaf(found: Any, expected: Any, where: str, rtol: float) -> None:
    """Equal shape and dtype, and values equal up to rounding; PRNG keys by their data."""
    assert is_prng_key(found) == is_prng_key(expected), f"{where}: only one is a PRNG key"
    if is_prng_key(expected):
        found, expected = jax.random.key_data(found), jax.random.key_data(expected)
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, f"{where}: shape {found.shape}, not {expected.shape}"
    assert found.dtype == expected.dtype, f"{where}: dtype {found.dtype}, not {expected.dtype}"
    if np.issubdtype(expected.dtype, np.complexfloating):
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=ATOL, err_msg=where)
    elif expected.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected, err_msg=where)
    else:
        wide = found.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_allclose(*wide, rtol=rtol, atol=ATOL, err_msg=where)


def same_tree(found: PyTree, expected: PyTree, where: str, rtol: float = 1e-6) -> None:
    """Equal structure, and every leaf the same."""
    structures = jax.tree.structure(found), jax.tree.structure(expected)
    assert structures[0] == structures[1], f"{where}: {structures[0]}, not {structures[1]}"
    for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        same_leaf(left, right, where, rtol)


def same_logs(logs: Any, expected: Logs, rtol: float = 1e-6) -> None:
    """The logdict holds exactly the expected keys, values, entries, steps and masks."""
    present = {key for key, logged in expected.items() if logged.present}
    assert set(logs) == present, f"keys {sorted(logs)}, not {sorted(present)}"
    entries = logs.entries()
    assert set(entries) == present, f"keys of entries() {sorted(entries)}, not {sorted(present)}"
    for key, logged in expected.items():
        if not logged.present:
            assert key not in logs
            same_tree(logs[key], logged.entries(), f"logs[{key!r}], which did not run", rtol)
            continue
        where = f"logs[{key!r}]"
        if logged.mask is None:
            same_tree(logs[key], logged.natural(), where, rtol)
            same_tree(entries[key], logged.entries(), f"entries of {where}", rtol)
            _no_gaps(logs, key)
        else:
            _same_mask(logs, key, logged)
            _same_where(logs[key], logged.natural(), logged.natural_mask(), where, rtol)
    _same_steps(logs, expected)


def _same_mask(logs: Any, key: str, logged: Logged) -> None:
    same_leaf(logs.mask[key], logged.natural_mask(), f"logs.mask[{key!r}]", 0)


def _no_gaps(logs: Any, key: str) -> None:
    assert np.all(logs.mask[key]), f"logs.mask[{key!r}] has gaps, though all lanes logged"


def _same_where(found: PyTree, expected: PyTree, mask: Any, where: str, rtol: float) -> None:
    """The same in the lanes that logged; what stands in the others does not matter."""
    shapes = jax.tree.map(np.shape, found), jax.tree.map(np.shape, expected)
    assert shapes[0] == shapes[1], f"{where}: shapes {shapes[0]}, not {shapes[1]}"
    picked = [jax.tree.map(lambda leaf: np.asarray(leaf)[mask], tree) for tree in (found, expected)]
    same_tree(picked[0], picked[1], where, rtol)


def _same_steps(logs: Any, expected: Logs) -> None:
    names = {name for logged in expected.values() for name in logged.steps}
    assert set(logs.steps) == {
        name for logged in expected.values() if logged.present for name in logged.steps
    }, f"step axes {sorted(logs.steps)}"
    for name in sorted(names):
        holders = {k for k, logged in expected.items() if logged.present and name in logged.steps}
        found = logs.steps.get(name, {})
        assert set(found) == holders, f"logs.{name} has {sorted(found)}, not {sorted(holders)}"
        for key in sorted(holders):
            _same_step(logs, name, key, expected[key])


def _same_step(logs: Any, name: str, key: str, logged: Logged) -> None:
    where = f"logs.{name}[{key!r}]"
    found, wanted = getattr(logs, name)[key], logged.natural_steps()[name]
    if logged.mask is None:
        same_leaf(found, wanted, where, 0)
    else:
        _same_where(found, wanted, logged.natural_mask(), where, 0)


# --- What tap was called with -----------------------------------------------------------------


def same_calls(
    calls: Sequence[Any],
    expected: Logs,
    *,
    mesh_ndim: int = 0,
    ordered: bool = True,
    rtol: float = 1e-6,
) -> None:
    """The callbacks, key by key, are the expected entries."""
    wanted = {key for key, logged in expected.items() if logged.values}
    found = {key for call in calls for key in call}
    assert found == wanted, f"tap saw {sorted(found)}, not {sorted(wanted)}"
    for key in sorted(wanted):
        got = [_entry_of_call(call, key) for call in calls if key in call]
        want = _entries_of(expected[key], mesh_ndim)
        assert len(got) == len(want), f"tap saw {key!r} {len(got)} times, not {len(want)}"
        if not ordered:
            got, want = sorted(got, key=_rank), sorted(want, key=_rank)
        for i, (left, right) in enumerate(zip(got, want, strict=True)):
            same_entry(left, right, f"callback {i} of {key!r}", rtol)


def same_entry(found: PyTree, expected: PyTree, where: str, rtol: float) -> None:
    """One entry: its value, its steps, and where it has one, its mask."""
    mask = expected["mask"]
    same_tree(found["mask"], mask, f"mask of {where}", 0)
    for part in ("value", "steps"):
        if mask is None:
            same_tree(found[part], expected[part], f"{part} of {where}", rtol)
        else:
            _same_where(found[part], expected[part], mask, f"{part} of {where}", rtol)


def _entry_of_call(call: Any, key: str) -> PyTree:
    steps = {name: np.asarray(by_key[key]) for name, by_key in call.steps.items() if key in by_key}
    mask = call.mask.get(key)
    mask = None if mask is None or np.all(mask) else np.asarray(mask)
    return {"value": call[key], "steps": steps, "mask": mask}


def _entries_of(logged: Logged, mesh_ndim: int) -> list[PyTree]:
    entries = []
    for i, value in enumerate(logged.values):
        steps = {name: _int32(by_entry[i]) for name, by_entry in logged.steps.items()}
        mask = None if logged.mask is None or np.all(logged.mask[i]) else logged.mask[i]
        entries.append({"value": value, "steps": steps, "mask": mask})
    for _ in range(mesh_ndim):
        entries = [part for entry in entries for part in unstack(entry)]
    return entries


def _int32(step: Any) -> np.ndarray:
    step = np.asarray(step)
    return step.astype(np.int32) if step.dtype == np.int64 else step


def unstack(tree: PyTree) -> list[PyTree]:
    """Take a pytree apart along its first axis."""
    count = np.shape(jax.tree.leaves(tree)[0])[0]
    return [jax.tree.map(lambda leaf, i=i: leaf[i], tree) for i in range(count)]


def _rank(entry: PyTree) -> tuple:
    """Something to sort entries by when their order is not part of the answer."""
    leaves: Iterable[Any] = jax.tree.leaves((entry["steps"], entry["value"]))
    return tuple(float(number) for leaf in leaves for number in np.asarray(leaf).ravel())


def stack_logs(lanes: Sequence[Logs]) -> dict[str, tuple[PyTree, dict[str, Any]]]:
    """What `vmap(spool(f))` must give: each lane's presentation, stacked; and the steps."""
    assert len({tuple(sorted(lane)) for lane in lanes}) == 1
    return {
        key: (
            stack([lane[key].natural() for lane in lanes]),
            stack([lane[key].natural_steps() for lane in lanes]),
        )
        for key in lanes[0]
    }
