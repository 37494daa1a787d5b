"""A logdict as ``Records`` and back, bit for bit.

``[*outer, entries?, *batch, ...]`` becomes ``[entries, *outer, *batch, ...]``: in a ``Records`` the
entry axis always leads, and what has none is one entry. A pytree becomes one series a leaf, called
``key['a'][0]``, each with the steps and the mask of the key. How many entries did not fit is in a
series ``key@dropped``, one number a save, and what the program knows but never logged in
``@unlogged``, which has no entries at all. Everything else is noted beside, see ``_notes.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from sawlog.errors import ArgumentError, DamagedStoreError, LogMismatchError
from sawlog.jax import _compat
from sawlog.jax._logdict.entries import Nothing, Part, Slot
from sawlog.jax._logdict.logdict import logdict
from sawlog.jax._saving.axes import Axes, attrs_of
from sawlog.jax._saving.leaves import from_host, to_host
from sawlog.jax._saving.metadata import (
    DROPPED,
    UNLOGGED,
    VALUE,
    Kinds,
    Notes,
    nothing_from,
    types_of,
)
from sawlog.jax._saving.treespec import LEAF, Spec, build, count, spec_of
from sawlog.records import Entries, Records

#: The notes of a series, each with the number of entries it is for.
Runs = Sequence[tuple[int, Mapping[str, Any]]]


# -- to records ------------------------------------------------------------------------------------


def to_records(logs: Mapping[str, Any]) -> Records:
    """The same logs as numpy arrays, with all that :func:`from_records` needs in ``attrs``.

    Raises:
        ArgumentError: the logs are traced, or a key is no string.
        LogValueError: a value cannot be saved.
        LogMismatchError: two keys would share the name of a series, or arrays of one key have
            different numbers of entries.

    >>> records = to_records(logdict({"x": np.arange(3.0)}, step={"x": np.arange(3)}))
    >>> records["x"].values, records["x"].steps["step"]
    (array([0., 1., 2.]), array([0, 1, 2]))
    """
    logs = logs if isinstance(logs, logdict) else logdict(logs)
    _check_concrete(logs)
    found: dict[str, Entries] = {}
    for part in logs._parts():
        for name, entries in _series_of(part):
            _check_new(name, found)
            found[name] = entries
    if logs._layout.empty:
        _check_new(f"@{UNLOGGED}", found)
        notes = Notes(UNLOGGED, types=types_of(logs._layout.empty))
        found[f"@{UNLOGGED}"] = Entries(np.zeros(0, bool), attrs=notes.to_attrs())
    return Records(found)


def _check_concrete(logs: logdict) -> None:
    if any(map(_compat.is_tracer, jax.tree.leaves(logs))):
        raise ArgumentError(
            "These logs are traced: the program that makes them is only being compiled, and there "
            "are no values to save yet. Hint: return the logs and save them outside of jit, vmap "
            "or grad, or write them from inside with sawlog.loggers.SaveLogger."
        )


def _check_new(name: str, found: Mapping[str, Entries]) -> None:
    if name in found:
        raise LogMismatchError(
            f"Two keys of these logs would be saved under the name {name!r}: one is called that, "
            "the other is saved in several parts. Hint: rename one with logs.prefix(...)."
        )


def _series_of(part: Part) -> Iterator[tuple[str, Entries]]:
    """The series of one key: one for each leaf, and one for what did not fit."""
    key = part.slot.key
    if not isinstance(key, str):
        raise ArgumentError(f"Keys of saved logs must be strings, got {key!r}.")
    spec = spec_of(part.value, f"the value of {key!r}")
    if not count(spec):
        notes = Notes(tree=spec, stacked=False)
        yield key, Entries(np.zeros((1, 0), bool), attrs=notes.to_attrs())
        return
    axes = Axes.of(part)
    steps = {
        axis: axes.leading(array, f"the step axis {axis!r}")
        for axis, array in zip(part.slot.steps, part.steps, strict=True)
    }
    mask = None if part.mask is None else axes.leading(part.mask, "the mask")
    for number, (path, leaf) in enumerate(_leaves(part.value, spec)):
        name = key + path
        array, impl = to_host(leaf, f"the value of {name!r}")
        values = axes.leading(array, f"the value of {name!r}")
        axes.check(len(values), name)
        tree = LEAF if number else spec
        yield name, Entries(values, steps, mask, attrs_of(axes, bool(path), number, tree, impl))
    if part.slot.counted:
        dropped = np.asarray(part.dropped)[None]
        yield f"{key}@{DROPPED}", Entries(dropped, attrs=Notes(DROPPED, key).to_attrs())


def _leaves(value: Any, spec: Spec) -> list[tuple[str, Any]]:
    """Every leaf, and what its name ends with."""
    if spec == LEAF:
        return [("", value)]
    found = jax.tree_util.tree_flatten_with_path(value)[0]
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in found]


# -- from records ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Column:
    """One series with all its notes, in order."""

    name: str
    entries: Entries
    notes: tuple[Notes, ...]

    @property
    def key(self) -> str:
        return self.notes[0].key or self.name

    @property
    def one_save(self) -> bool:
        """Whether all of it was saved together, as far as that makes a difference."""
        first, rows = self.notes[0], len(self.entries)
        alike = all(notes == first for notes in self.notes)
        return alike and (first.stacked or rows == 1) and first.rows in (None, rows)


def from_records(records: Mapping[str, Entries], runs: Mapping[str, Runs] | None = None) -> logdict:
    """The logdict that :func:`to_records` made records of, with numpy arrays.

    ``runs`` has the notes of each series where several saves were put together, one after the
    other; the logdict is then the sum of those that were saved. Series without notes have their
    entries along the first axis; those with an empty list of runs are left out.

    Raises:
        LogMismatchError: the saves do not go together.
        DamagedStoreError: a part of a pytree has fewer entries than another.

    >>> from_records(to_records(logdict({"x": np.arange(3.0)})))
    logdict:
      x  float64[3]  [0., 1., 2.]
    """
    keys: dict[str, dict[tuple[str, int], _Column]] = {}
    empty: dict[str, Nothing] = {}
    for column in _columns(records, runs):
        first = column.notes[0]
        if first.role == UNLOGGED:
            for notes in column.notes:
                empty.update((k, nothing_from(t)) for k, t in (notes.types or {}).items())
        else:
            keys.setdefault(column.key, {})[first.role, first.leaf] = column
    parts = [_part(key, columns) for key, columns in keys.items()]
    return logdict._of(parts, {k: v for k, v in empty.items() if k not in keys})


def _columns(records: Mapping[str, Entries], runs: Mapping[str, Runs] | None) -> Iterator[_Column]:
    kinds = Kinds()
    for name, entries in records.items():
        own = [(len(entries), entries.attrs)] if runs is None else runs[name]
        notes = [Notes.from_attrs(attrs) for _, attrs in own]
        for each in notes:
            kinds.check(name, each)
            kinds.add(name, each)
        if notes:
            yield _Column(name, entries, tuple(notes))


def _part(key: str, columns: Mapping[tuple[str, int], _Column]) -> Part:
    first = _leaf(key, columns, 0)
    leaves = [_leaf(key, columns, i) for i in range(count(first.notes[0].tree))]
    _check_complete(key, [first, *leaves])
    notes, whole = first.notes[0], first.one_save
    stacked = notes.stacked or not whole
    spec, outer = notes.tree, notes.outer

    def restore(array: np.ndarray) -> np.ndarray:
        return np.moveaxis(array, 0, outer) if stacked else array.reshape(array.shape[1:])

    arrays = [from_host(restore(leaf.entries.values), leaf.notes[0].impl) for leaf in leaves]
    entries, dropped = first.entries, columns.get((DROPPED, 0))
    own = (
        notes.slot
        if whole and notes.slot
        else (stacked, np.ndim(arrays[0]) - outer if arrays else 0)
    )
    slot = Slot(
        key,
        tuple(entries.steps),
        *own,
        batch=notes.batch,
        masked=entries.mask is not None,
        counted=dropped is not None,
        reduction=notes.reduction if whole else None,
    )
    return Part(
        build(spec, arrays),
        tuple(map(restore, entries.steps.values())),
        None if entries.mask is None else restore(entries.mask),
        slot,
        None if dropped is None else _total(dropped.entries.values),
    )


def _leaf(key: str, columns: Mapping[tuple[str, int], _Column], number: int) -> _Column:
    if (VALUE, number) not in columns:
        raise DamagedStoreError(
            f"Part {number} of the value of {key!r} is missing; there are "
            f"{', '.join(repr(column.name) for column in columns.values())}. Probably the program "
            "that saved it was stopped in between, or not all names were read."
        )
    return columns[VALUE, number]


def _check_complete(key: str, leaves: Sequence[_Column]) -> None:
    if len({len(leaf.entries) for leaf in leaves}) > 1:
        found = ", ".join(f"{len(leaf.entries)} of {leaf.name!r}" for leaf in leaves[1:])
        raise DamagedStoreError(
            f"The parts of {key!r} have different numbers of entries: {found}. Probably the "
            "program that saved them was stopped in between. Hint: "
            "sawlog.store.open(path).entries(name) reads them one by one."
        )


def _total(saves: np.ndarray) -> np.ndarray:
    return np.asarray(saves.sum(axis=0, dtype=saves.dtype))
