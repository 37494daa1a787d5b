"""What a store notes beside the arrays of a logdict, so that it comes back as it was.

The notes of a series are a dict under ``"logdict"`` in :attr:`sawlog.records.Entries.attrs`, and
only say what is not the usual: a plain array with its entries in front has none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from sawlog.errors import LogMismatchError
from sawlog.jax._core.arrays import Type
from sawlog.jax._logdict.entries import Nothing
from sawlog.jax._saving.leaves import dtype_from_json, dtype_to_json
from sawlog.jax._saving.treespec import LEAF, Spec, spec_of, structure

_SECTION = "logdict"

VALUE, DROPPED, UNLOGGED = "value", "dropped", "unlogged"


@dataclasses.dataclass(frozen=True)
class Notes:
    """The notes of the entries of one series.

    Args:
        role: what is in the series: values, how many entries did not fit, or nothing at all.
        key: the key of the logdict; None where the series has the same name.
        leaf: which leaf of a pytree this is.
        tree: the structure of that pytree, noted with its first leaf.
        stacked: whether there is an entry axis; if not, each save is one entry.
        outer: how many axes of a ``vmap`` around the whole logdict follow the entry axis.
        batch: how many axes of a ``vmap`` inside the logged function follow those.
        reduction: what the value was reduced with.
        rows: how many entries were saved together, where that makes a difference.
        slot: ``(stacked, ndim)`` of the slot, where a user indexed axes away.
        impl: which PRNG keys these are the data of.
        types: for names that were never logged: what they would have been.
    """

    role: str = VALUE
    key: str | None = None
    leaf: int = 0
    tree: Spec = LEAF
    stacked: bool = True
    outer: int = 0
    batch: int = 0
    reduction: str | None = None
    rows: int | None = None
    slot: tuple[bool, int] | None = None
    impl: str | None = None
    types: Mapping[str, Any] | None = None

    def to_attrs(self) -> dict[str, Any]:
        """The attributes of a series; none where all is as usual."""
        said = {name: value for name, value in vars(self).items() if value != _USUAL[name]}
        return {_SECTION: said} if said else {}

    @classmethod
    def from_attrs(cls, attrs: Mapping[str, Any]) -> Notes:
        """The inverse of :meth:`to_attrs`; attributes of others are passed over."""
        said = {name: value for name, value in attrs.get(_SECTION, {}).items() if name in _USUAL}
        if said.get("slot") is not None:
            said["slot"] = tuple(said["slot"])
        return cls(**said)


_USUAL = {field.name: field.default for field in dataclasses.fields(Notes)}


class Kinds:
    """Which key each series belongs to and how each key is built, so that saves go together."""

    def __init__(self) -> None:
        self._series: dict[str, Notes] = {}
        self._keys: dict[str, tuple[str, Spec]] = {}

    def check(self, name: str, notes: Notes) -> None:
        """Refuse entries that cannot go with those that were seen before.

        Raises:
            LogMismatchError: saying what differs.
        """
        before = self._series.get(name, notes)
        if notes is before or notes == before:
            self._check_key(name, notes)
            return
        for what, one, two in (
            ("what is in it", before.role, notes.role),
            ("key", before.key or name, notes.key or name),
            ("leaf", before.leaf, notes.leaf),
            ("number of outer vmap axes", before.outer, notes.outer),
            ("kind of PRNG keys", before.impl, notes.impl),
        ):
            if one != two:
                raise _mismatch(notes.key or name, f"{what} of the series {name!r}", one, two)
        self._check_key(name, notes)

    def _check_key(self, name: str, notes: Notes) -> None:
        if notes.role != VALUE or notes.leaf:
            return
        key = notes.key or name
        place, tree = self._keys.get(key, (name, notes.tree))
        if (place, tree) == (name, notes.tree):
            return
        one, two = structure(tree), structure(notes.tree)
        if one != two:
            raise _mismatch(key, "structure", one, two)

    def add(self, name: str, notes: Notes) -> None:
        """Remember what was checked."""
        self._series.setdefault(name, notes)
        if notes.role == VALUE and not notes.leaf:
            self._keys.setdefault(notes.key or name, (name, notes.tree))


def _mismatch(key: str, what: str, one: Any, two: Any) -> LogMismatchError:
    return LogMismatchError(
        f"The entries of {key!r} cannot be put together: the {what} is {one} in what was saved "
        f"before and {two} now. Hint: rename one with logs.prefix(...), or save to another place."
    )


# -- names that were never logged ------------------------------------------------------------------


def types_of(empty: Mapping[str, Nothing]) -> dict[str, Any]:
    """What is noted about names that were never logged.

    Raises:
        LogValueError: a value has a structure that cannot be saved.
    """
    return {key: _type_of(key, nothing) for key, nothing in empty.items()}


def _type_of(key: str, nothing: Nothing) -> dict[str, Any]:
    skeleton = jax.tree.unflatten(nothing.tree, range(len(nothing.types)))
    return {
        "tree": spec_of(skeleton, f"the value of {key!r}"),
        "batch": nothing.batch,
        "shapes": [list(one.shape) for one in nothing.types],
        "dtypes": [dtype_to_json(one.dtype, f"the value of {key!r}") for one in nothing.types],
    }


def nothing_from(noted: Mapping[str, Any]) -> Nothing:
    """The inverse of what :func:`types_of` notes about one name."""
    pairs = zip(map(tuple, noted["shapes"]), map(dtype_from_json, noted["dtypes"]), strict=True)
    types = tuple(Type(*pair) for pair in pairs)
    return Nothing(structure(noted["tree"]), types, noted.get("batch", 0))
