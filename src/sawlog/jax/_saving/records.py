"""Convert a logdict to ``Records`` and back, bit for bit.

``[*outer, entries?, *batch, ...]`` becomes ``[entries, *outer, *batch, ...]``: in ``Records`` the
entry axis always leads, and a value without one is a single entry. A pytree becomes one series per
leaf, called ``key['a'][0]``, each with the steps and the mask of the key. The number of dropped
entries is a series ``key@dropped``, one number per save. Names that the program knows but never
logged are in ``@unlogged``, a series without entries. ``metadata.py`` describes everything else.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from sawlog.errors import ArgumentError, DamagedStoreError, LogMismatchError, LogValueError
from sawlog.jax import _compat
from sawlog.jax._core.arrays import is_elsewhere
from sawlog.jax._logdict.entries import EmptyKey, LogdictPart, Slot
from sawlog.jax._logdict.logdict import logdict
from sawlog.jax._saving.metadata import (
    DROPPED,
    LEAF,
    UNLOGGED,
    VALUE,
    SaveCompatibility,
    SeriesMetadata,
    Spec,
    build,
    count,
    empty_key_from,
    impl_of,
    spec_of,
    types_of,
)
from sawlog.records import Entries, Records

#: The attributes of a series, each with the number of entries that it applies to.
CountedAttributes = Sequence[tuple[int, Mapping[str, Any]]]


# -- leaves and axes -------------------------------------------------------------------------------


def to_host(leaf: Any, what: str) -> tuple[np.ndarray, str | None]:
    """Return a leaf as a numpy array; for PRNG keys, their data and the name of their kind.

    Raises:
        LogValueError: the leaf is neither an array nor a number, or other processes have parts
            of it.
    """
    if is_elsewhere(leaf):
        raise LogValueError(
            f"Parts of {what} are on devices of other processes. Hint: collect it first, with "
            "jax.experimental.multihost_utils.process_allgather(logs)."
        )
    if isinstance(leaf, jax.Array) and _compat.key_kind(leaf) is not None:
        return np.asarray(jax.random.key_data(leaf)), impl_of(_compat.key_kind(leaf), what)
    array = np.asarray(leaf)
    if array.dtype.hasobject:
        raise LogValueError(
            f"{what[0].upper()}{what[1:]} is of type {type(leaf).__name__}, which is neither an "
            "array nor a number. Hint: log arrays, numbers, PRNG keys or pytrees of those."
        )
    return array, None


def from_host(array: np.ndarray, impl: str | None) -> Any:
    """Invert :func:`to_host`; dtypes are kept, whether or not JAX has 64 bits enabled."""
    data: Any = array
    return array if impl is None else jax.random.wrap_key_data(data, impl=impl)


@dataclasses.dataclass(frozen=True)
class EntryAxes:
    """The place of the entry axis in the arrays of a key: axis ``outer`` if ``stacked``.

    ``rows`` is the number of entries.
    """

    slot: Slot
    outer: int
    stacked: bool
    ndim: int
    rows: int

    @classmethod
    def of(cls, part: LogdictPart) -> EntryAxes:
        """Return the axes of a key with at least one leaf."""
        shape = np.shape(part.first)
        outer = max(0, len(shape) - part.slot.ndim)
        stacked = part.slot.stacked and len(shape) >= part.slot.ndim
        return cls(part.slot, outer, stacked, len(shape), shape[outer] if stacked else 1)

    def leading(self, array: Any, what: str) -> np.ndarray:
        """Move the entry axis to the front, or add one of length 1.

        Raises:
            LogMismatchError: the array has no such axis; ``what`` names it in the message.
        """
        array = np.asarray(array)
        if not self.stacked:
            return array[None]
        if array.ndim <= self.outer:
            raise LogMismatchError(
                f"The entries of {self.slot.key!r} are along axis {self.outer}, which {what} with "
                f"the shape {array.shape} does not have. Hint: give one item for each entry."
            )
        return np.moveaxis(array, self.outer, 0) if self.outer else array

    def check(self, rows: int, name: str) -> None:
        """Reject a leaf whose number of entries differs from that of the first leaf.

        Raises:
            LogMismatchError: the message names the leaf.
        """
        if rows != self.rows:
            raise LogMismatchError(
                f"The arrays of {self.slot.key!r} have different numbers of entries: {self.rows} "
                f"in the first one, {rows} in {name!r}. Hint: save them under different keys."
            )


# Cached: a program logs the same types again and again, and sinks compare attributes by identity.
@functools.lru_cache(maxsize=1024)
def attrs_of(
    axes: EntryAxes, inner: bool, leaf: int, tree: Spec, impl: str | None
) -> dict[str, Any]:
    """Return the attributes of the series of one leaf."""
    slot = axes.slot
    own, usual = (slot.stacked, slot.ndim), (axes.stacked, axes.ndim - axes.outer)
    return SeriesMetadata(
        key=slot.key if inner else None,
        leaf=leaf,
        tree=tree,
        stacked=axes.stacked,
        outer=axes.outer,
        batch=slot.batch,
        reduction=slot.reduction,
        rows=axes.rows if slot.reduction is not None or not axes.rows else None,
        slot=None if own == usual else own,
        impl=impl,
    ).to_attrs()


# -- to records ------------------------------------------------------------------------------------


def to_records(logs: Mapping[str, Any]) -> Records:
    """Convert logs to numpy arrays, with the metadata that :func:`from_records` needs in ``attrs``.

    Raises:
        ArgumentError: the logs are traced, or a key is not a string.
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
        metadata = SeriesMetadata(UNLOGGED, types=types_of(logs._layout.empty))
        found[f"@{UNLOGGED}"] = Entries(np.zeros(0, bool), attrs=metadata.to_attrs())
    return Records(found)


def _check_concrete(logs: logdict) -> None:
    if any(map(_compat.is_tracer, jax.tree.leaves(logs))):
        raise ArgumentError(
            "These logs are traced: the program that creates them is being compiled, and their "
            "values do not exist yet. Hint: return the logs and save them outside of jit, vmap or "
            "grad, or write them from inside with sawlog.loggers.SaveLogger."
        )


def _check_new(name: str, found: Mapping[str, Entries]) -> None:
    if name in found:
        raise LogMismatchError(
            f"Two keys of these logs would be saved under the name {name!r}: one key has "
            "this name, the other is a pytree that is saved leaf by leaf. Hint: rename one with "
            "logs.prefix(...)."
        )


def _series_of(part: LogdictPart) -> Iterator[tuple[str, Entries]]:
    """Yield the series of one key: one per leaf, and one for the number of dropped entries."""
    key = part.slot.key
    if not isinstance(key, str):
        raise ArgumentError(f"Keys of saved logs must be strings; got {key!r}. Hint: use str(key).")
    spec = spec_of(part.value, f"the value of {key!r}")
    if not count(spec):
        metadata = SeriesMetadata(tree=spec, stacked=False)
        yield key, Entries(np.zeros((1, 0), bool), attrs=metadata.to_attrs())
        return
    axes = EntryAxes.of(part)
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
        yield f"{key}@{DROPPED}", Entries(dropped, attrs=SeriesMetadata(DROPPED, key).to_attrs())


def _leaves(value: Any, spec: Spec) -> list[tuple[str, Any]]:
    """Return every leaf with the suffix of its series name."""
    if spec == LEAF:
        return [("", value)]
    found = jax.tree_util.tree_flatten_with_path(value)[0]
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in found]


# -- from records ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _SavedSeries:
    """One series with the metadata of its saves, in order."""

    name: str
    entries: Entries
    saves: tuple[SeriesMetadata, ...]

    @property
    def key(self) -> str:
        return self.saves[0].key or self.name

    @property
    def one_save(self) -> bool:
        """Whether the series can be restored as one save."""
        first, rows = self.saves[0], len(self.entries)
        alike = all(each == first for each in self.saves)
        return alike and (first.stacked or rows == 1) and first.rows in (None, rows)


def from_records(
    records: Mapping[str, Entries], attributes: Mapping[str, CountedAttributes] | None = None
) -> logdict:
    """Rebuild the logdict that :func:`to_records` converted, with numpy arrays.

    ``attributes`` holds those of each series if several saves were concatenated; the result is
    then the concatenation of the saved logdicts. Series without metadata have their entries along
    the first axis. Series with an empty list of attributes are omitted.

    Raises:
        LogMismatchError: the saves cannot be concatenated.
        DamagedStoreError: a leaf of a pytree is missing or has fewer entries than another.

    >>> from_records(to_records(logdict({"x": np.arange(3.0)})))
    logdict:
      x  float64[3]  [0., 1., 2.]
    """
    keys: dict[str, dict[tuple[str, int], _SavedSeries]] = {}
    empty: dict[str, EmptyKey] = {}
    for series in _saved_series(records, attributes):
        first = series.saves[0]
        if first.role == UNLOGGED:
            for metadata in series.saves:
                empty.update((k, empty_key_from(t)) for k, t in (metadata.types or {}).items())
        else:
            keys.setdefault(series.key, {})[first.role, first.leaf] = series
    parts = [_part(key, several) for key, several in keys.items()]
    return logdict._of(parts, {k: v for k, v in empty.items() if k not in keys})


def _saved_series(
    records: Mapping[str, Entries], attributes: Mapping[str, CountedAttributes] | None
) -> Iterator[_SavedSeries]:
    compatibility = SaveCompatibility()
    for name, entries in records.items():
        own = [(len(entries), entries.attrs)] if attributes is None else attributes[name]
        saves = [SeriesMetadata.from_attrs(attrs) for _, attrs in own]
        for each in saves:
            compatibility.check(name, each)
            compatibility.add(name, each)
        if saves:
            yield _SavedSeries(name, entries, tuple(saves))


def _part(key: str, series: Mapping[tuple[str, int], _SavedSeries]) -> LogdictPart:
    first = _leaf(key, series, 0)
    leaves = [_leaf(key, series, i) for i in range(count(first.saves[0].tree))]
    _check_complete(key, [first, *leaves])
    metadata, whole = first.saves[0], first.one_save
    stacked = metadata.stacked or not whole
    spec, outer = metadata.tree, metadata.outer

    def restore(array: np.ndarray) -> np.ndarray:
        return np.moveaxis(array, 0, outer) if stacked else array.reshape(array.shape[1:])

    arrays = [from_host(restore(leaf.entries.values), leaf.saves[0].impl) for leaf in leaves]
    entries, dropped = first.entries, series.get((DROPPED, 0))
    own = (
        metadata.slot
        if whole and metadata.slot
        else (stacked, np.ndim(arrays[0]) - outer if arrays else 0)
    )
    slot = Slot(
        key,
        tuple(entries.steps),
        *own,
        batch=metadata.batch,
        masked=entries.mask is not None,
        counted=dropped is not None,
        reduction=metadata.reduction if whole else None,
    )
    return LogdictPart(
        build(spec, arrays),
        tuple(map(restore, entries.steps.values())),
        None if entries.mask is None else restore(entries.mask),
        slot,
        None if dropped is None else _total(dropped.entries.values),
    )


def _leaf(key: str, series: Mapping[tuple[str, int], _SavedSeries], number: int) -> _SavedSeries:
    if (VALUE, number) not in series:
        raise DamagedStoreError(
            f"Part {number} of the value of {key!r} is missing; found "
            f"{', '.join(repr(each.name) for each in series.values())}. Probably the program that "
            "saved it was stopped in between, or not all names were read."
        )
    return series[VALUE, number]


def _check_complete(key: str, leaves: Sequence[_SavedSeries]) -> None:
    if len({len(leaf.entries) for leaf in leaves}) > 1:
        found = ", ".join(f"{len(leaf.entries)} of {leaf.name!r}" for leaf in leaves[1:])
        raise DamagedStoreError(
            f"The parts of {key!r} have different numbers of entries: {found}. Probably the "
            "program that saved them was stopped in between. Hint: "
            "sawlog.store.open(path).entries(name) reads them one by one."
        )


def _total(saves: np.ndarray) -> np.ndarray:
    return np.asarray(saves.sum(axis=0, dtype=saves.dtype))
