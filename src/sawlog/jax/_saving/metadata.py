"""The JSON metadata that a store keeps beside the arrays of a logdict.

Three kinds of facts are stored, so that a logdict can be rebuilt exactly:

- the *tree spec* of a pytree: a leaf is its position in ``jax.tree.leaves``, ``None`` is null, and
  a container is a pair of its kind and its children: ``["list", [0, 1]]``, ``["tuple", [0]]``,
  ``["dict", [["a", 0]]]``. In memory these are tuples, which can be hashed; JSON returns lists.
- dtypes, including the PRNG implementation of keys.
- :class:`SeriesMetadata`, a dict under ``"logdict"`` in :attr:`sawlog.records.Entries.attrs`. Only
  values that differ from the default are stored: a plain array with a leading entry axis has no
  metadata at all.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from sawlog.errors import LogMismatchError, LogValueError
from sawlog.jax import _compat
from sawlog.jax._core.arrays import Type
from sawlog.jax._logdict.entries import EmptyKey

_SECTION = "logdict"

VALUE, DROPPED, UNLOGGED = "value", "dropped", "unlogged"

# -- tree specs ------------------------------------------------------------------------------------

Spec = Any

#: The spec of a value that is a single array.
LEAF: Spec = 0


def spec_of(value: Any, what: str) -> Spec:
    """Return the tree spec of ``value``.

    Raises:
        LogValueError: it contains containers other than dicts, lists and tuples; ``what`` names the
            value in the message.
    """
    leaves, tree = jax.tree.flatten(value)
    if len(leaves) == 1 and leaves[0] is value:
        return LEAF
    numbered = jax.tree.unflatten(tree, range(len(leaves)))
    return _spec(value, numbered, what)


def _spec(value: Any, numbered: Any, what: str) -> Spec:
    if value is None:
        return None
    if type(value) is dict:
        for key in value:
            _check_dict_key(key, what)
        pairs = ((k, _spec(v, numbered[k], f"{what}[{k!r}]")) for k, v in value.items())
        return ("dict", tuple(pairs))
    if type(value) in (list, tuple):
        both = enumerate(zip(value, numbered, strict=True))
        items = (_spec(item, number, f"{what}[{i}]") for i, (item, number) in both)
        return (type(value).__name__, tuple(items))
    if type(numbered) is int:
        return numbered
    raise LogValueError(
        f"{what} is a {type(value).__qualname__}, and only dicts, lists, tuples and arrays can be "
        "saved: other containers could not be rebuilt on load. Hint: log it as a dict, for example "
        "value._asdict() for a namedtuple or vars(value) for an object."
    )


def _check_dict_key(key: Any, what: str) -> None:
    if type(key) not in (str, int):
        raise LogValueError(
            f"{what} is a dict with the key {key!r}, and only strings and integers can be saved as "
            "keys. Hint: log it with str(key)."
        )


def build(spec: Spec, leaves: Sequence[Any]) -> Any:
    """Return the value with this structure and these leaves."""
    if spec is None:
        return None
    if isinstance(spec, int):
        return leaves[spec]
    kind, items = spec
    if kind == "dict":
        return {key: build(item, leaves) for key, item in items}
    kinds: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple}
    return kinds[kind](build(item, leaves) for item in items)


def count(spec: Spec) -> int:
    """Return the number of leaves."""
    if spec is None or isinstance(spec, int):
        return int(spec is not None)
    kind, items = spec
    return sum(count(item[1] if kind == "dict" else item) for item in items)


def structure(spec: Spec) -> Any:
    """Return the JAX tree structure, which ignores the order of dict keys."""
    return jax.tree.structure(build(spec, range(count(spec))))


# -- dtypes ----------------------------------------------------------------------------------------


def dtype_to_json(dtype: Any, what: str) -> Any:
    """Return a dtype in a form that JSON can hold.

    Raises:
        LogValueError: JAX cannot look up the PRNG implementation of these keys by name.
    """
    kind = _compat.key_kind(dtype)
    if kind is not None:
        return {"impl": impl_of(kind, what)}
    plain = np.dtype(dtype)
    return plain.name if plain.type.__module__ == "ml_dtypes" else plain.str


def dtype_from_json(text: Any) -> Any:
    """Invert :func:`dtype_to_json`."""
    return np.dtype(text) if isinstance(text, str) else _key_dtype(text["impl"])


def impl_of(kind: Any, what: str) -> str:
    """Return the name by which JAX looks up a PRNG implementation.

    Raises:
        LogValueError: the implementation is not registered under its name.
    """
    name = str(kind.name)
    try:
        known = _compat.key_kind(_key_dtype(name)) == kind
    except ValueError:
        known = False
    if not known:
        raise LogValueError(
            f"{what[0].upper()}{what[1:]} holds PRNG keys of the kind {name!r}, which JAX does not "
            "know by that name. Hint: log jax.random.key_data(key)."
        )
    return name


@functools.cache
def _key_dtype(impl: str) -> Any:
    return jax.eval_shape(lambda: jax.random.key(0, impl=impl)).dtype


# -- series ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SeriesMetadata:
    """The metadata of the entries of one series.

    Args:
        role: what the series holds: values, the number of dropped entries, or no entries at all.
        key: the key of the logdict; None if it equals the name of the series.
        leaf: the position of this leaf in the pytree of the key.
        tree: the spec of that pytree, stored with the first leaf.
        stacked: whether the value has an entry axis; without one, each save is one entry.
        outer: the number of axes of a ``vmap`` around the logdict; they follow the entry axis.
        batch: the number of axes of a ``vmap`` inside the logged function; they follow ``outer``.
        reduction: the name of the reduction that was applied to the value.
        rows: the number of entries saved together, where that affects loading.
        slot: ``(stacked, ndim)`` of the slot, if the user has indexed axes away.
        impl: the PRNG implementation, if the values are key data.
        types: for names that were never logged, the types that their entries would have.
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
        """Return the attributes of a series; empty if every field has its default."""
        set_fields = {name: value for name, value in vars(self).items() if value != _DEFAULTS[name]}
        return {_SECTION: set_fields} if set_fields else {}

    @classmethod
    def from_attrs(cls, attrs: Mapping[str, Any]) -> SeriesMetadata:
        """Invert :meth:`to_attrs`; attributes of other origin are ignored."""
        found = {
            name: value for name, value in attrs.get(_SECTION, {}).items() if name in _DEFAULTS
        }
        if found.get("slot") is not None:
            found["slot"] = tuple(found["slot"])
        return cls(**found)


_DEFAULTS = {field.name: field.default for field in dataclasses.fields(SeriesMetadata)}


class SaveCompatibility:
    """Check that successive saves agree on the key of each series and the structure of each key."""

    def __init__(self) -> None:
        self._series: dict[str, SeriesMetadata] = {}
        self._keys: dict[str, tuple[str, Spec]] = {}

    def check(self, name: str, metadata: SeriesMetadata) -> None:
        """Reject entries that cannot be concatenated with earlier ones of the same series.

        Raises:
            LogMismatchError: the message says what differs.
        """
        before = self._series.get(name, metadata)
        if metadata is before or metadata == before:
            self._check_key(name, metadata)
            return
        for what, one, two in (
            ("role", before.role, metadata.role),
            ("key", before.key or name, metadata.key or name),
            ("leaf", before.leaf, metadata.leaf),
            ("number of outer vmap axes", before.outer, metadata.outer),
            ("kind of PRNG keys", before.impl, metadata.impl),
        ):
            if one != two:
                raise _mismatch(metadata.key or name, f"{what} of the series {name!r}", one, two)
        self._check_key(name, metadata)

    def _check_key(self, name: str, metadata: SeriesMetadata) -> None:
        if metadata.role != VALUE or metadata.leaf:
            return
        key = metadata.key or name
        place, tree = self._keys.get(key, (name, metadata.tree))
        if (place, tree) == (name, metadata.tree):
            return
        one, two = structure(tree), structure(metadata.tree)
        if one != two:
            raise _mismatch(key, "structure", one, two)

    def add(self, name: str, metadata: SeriesMetadata) -> None:
        """Remember metadata that has been checked."""
        self._series.setdefault(name, metadata)
        if metadata.role == VALUE and not metadata.leaf:
            self._keys.setdefault(metadata.key or name, (name, metadata.tree))


def _mismatch(key: str, what: str, one: Any, two: Any) -> LogMismatchError:
    return LogMismatchError(
        f"The entries of {key!r} cannot be concatenated: the {what} is {one} in what was saved "
        f"before and {two} now. Hint: rename one with logs.prefix(...), or save to another path."
    )


# -- names that were never logged ------------------------------------------------------------------


def types_of(empty: Mapping[str, EmptyKey]) -> dict[str, Any]:
    """Return what is stored about names that were never logged.

    Raises:
        LogValueError: a value has a structure that cannot be saved.
    """
    return {key: _type_of(key, empty_key) for key, empty_key in empty.items()}


def _type_of(key: str, empty_key: EmptyKey) -> dict[str, Any]:
    skeleton = jax.tree.unflatten(empty_key.tree, range(len(empty_key.types)))
    return {
        "tree": spec_of(skeleton, f"the value of {key!r}"),
        "batch": empty_key.batch,
        "shapes": [list(one.shape) for one in empty_key.types],
        "dtypes": [dtype_to_json(one.dtype, f"the value of {key!r}") for one in empty_key.types],
    }


def empty_key_from(stored: Mapping[str, Any]) -> EmptyKey:
    """Invert :func:`types_of` for one name."""
    pairs = zip(map(tuple, stored["shapes"]), map(dtype_from_json, stored["dtypes"]), strict=True)
    types = tuple(Type(*pair) for pair in pairs)
    return EmptyKey(structure(stored["tree"]), types, stored.get("batch", 0))
