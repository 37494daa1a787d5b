"""``logdict``: a ``dict`` of logged arrays, with steps, and a pytree.

Most of the time it is a dict and nothing else. What it adds: the step arrays of each key
(``logs.step["loss"]``), the entry axis (``logs.entries()``), and operations along that axis.

A key can hold entries that were not logged after all, in a branch that did not run or in a lane of
``vmap`` that took another way. While a program is traced nobody knows which, and ``logs.mask``
says so. Once the arrays are concrete those entries are gone; a key with none left is not in the
dict, and ``logs["key"]`` then gives an empty array. Only where lanes differ is the mask kept. That
happens when somebody first looks, not while JAX is building its outputs and must not be called.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from sawlog._names import did_you_mean, nearest
from sawlog.errors import ArgumentError, LogMismatchError, UnknownLogError
from sawlog.jax import _compat
from sawlog.jax._logdict import entries as entries_of
from sawlog.jax._logdict import joining as _joining
from sawlog.jax._logdict.entries import Nothing, Part, Slot
from sawlog.jax._logdict.statistics import Statistics


class Layout:
    """The static part of a logdict: its keys in the order they were first logged.

    ``empty`` are the names that the program knows and that were not logged in this run. They make
    no difference to whether two logdicts have the same structure.
    """

    __slots__ = ("_hash", "by_key", "empty", "keys", "masked", "slots")

    def __init__(self, slots: Iterable[Slot], empty: Mapping[str, Nothing] | None = None) -> None:
        self.slots = tuple(slots)
        self.empty = dict(empty or {})
        self.keys = tuple(slot.key for slot in self.slots)
        self.by_key = {slot.key: slot for slot in self.slots}
        self.masked = any(slot.masked for slot in self.slots)
        self._hash = hash(self.slots)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Layout) and self.slots == other.slots)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Layout({', '.join(self.keys)})"


class _Slicer:
    """What ``logs.slice`` is: something to index with a slice."""

    def __init__(self, logs: logdict) -> None:
        self._logs = logs

    def __getitem__(self, index: slice) -> logdict:
        if not isinstance(index, slice):
            raise ArgumentError(
                f"logs.slice takes a slice of entries, as in logs.slice[10:20], not {index!r}. "
                'Hint: one entry of one key is logs.entries()["key"][i].'
            )
        return self._logs._map(lambda part: entries_of.take(part, index))


class _Masks(Mapping[str, Any]):
    """What ``logs.mask`` is: for each key which entries were logged, made when it is asked for."""

    def __init__(self, logs: logdict) -> None:
        self._parts = {part.slot.key: part for part in logs._parts()}
        self._empty = logs._layout.empty

    def __getitem__(self, key: str) -> Any:
        if key in self._parts:
            return entries_of.full_mask(self._parts[key])
        if key in self._empty:
            return self._empty[key].mask()
        raise _unknown(key, self._parts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __repr__(self) -> str:
        return repr(dict(self))


class _Steps(dict):
    """Step axes by name, or the arrays of one by key; says what there is where one is missing."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def __missing__(self, key: Any) -> Any:
        raise UnknownLogError(f"Nothing {self._what} {key!r}. {did_you_mean(str(key), self)}")

    def _flat(self) -> tuple[tuple[Any, ...], tuple[str, tuple[str, ...]]]:
        return tuple(self.values()), (self._what, tuple(self))

    @classmethod
    def _of(cls, fixed: tuple[str, tuple[str, ...]], values: Iterable[Any]) -> _Steps:
        steps = cls(fixed[0])
        steps.update(zip(fixed[1], values, strict=True))
        return steps


class logdict(Statistics, dict):
    """The logs of a program: ``logs["k"]``, ``logs.step["k"]``, and operations along the entries.

    >>> import jax.numpy as jnp
    >>> logs = logdict({"loss": jnp.array([3.0, 2.0, 1.0])}, step={"loss": jnp.arange(3)})
    >>> print(logs["loss"], logs.step["loss"])
    [3. 2. 1.] [0 1 2]
    >>> print((logs + logs).reduce("mean")["loss"])
    2.0

    ``logdict(data, **steps)``: the values of ``data`` have a leading entry axis (a scalar is one
    entry as it is); ``steps`` maps each step axis to a dict of arrays, one for each key with it.
    """

    __slots__ = ("_layout", "_pending", "_pieces", "_rest")

    #: Not to be looked at as it is: something was added, or entries may have to be dropped.
    _pending: bool
    #: What was added and is not put together yet.
    _pieces: tuple[logdict, ...]

    def __init__(self, data: Mapping[str, Any] | Iterable = (), /, **steps: Mapping[str, Any]):
        super().__init__(data)
        self._pending, self._pieces = False, ()
        for name, by_key in steps.items():
            unknown = [key for key in by_key if key not in self]
            if unknown:
                raise ArgumentError(f"step axis {name!r} has values for unknown keys {unknown}")
        parts = []
        for key, value in self.items():
            own = {name: by_key[key] for name, by_key in steps.items() if key in by_key}
            parts.append(entries_of.part_of_user(key, value, own))
            entries_of.check_steps(parts[-1])
        self._adopt(parts)

    # -- construction ---------------------------------------------------------------------------

    def _adopt(self, parts: Iterable[Part], empty: Mapping[str, Nothing] | None = None) -> None:
        """Take over what the parts say about steps and masks."""
        parts = list(parts)
        self._layout = Layout((part.slot for part in parts), empty)
        self._rest = tuple(array for part in parts for array in part.rest())
        self._pending, self._pieces = False, ()

    @classmethod
    def _of(cls, parts: Iterable[Part], empty: Mapping[str, Nothing] | None = None) -> logdict:
        parts = list(parts)
        self = cls.__new__(cls)
        dict.update(self, ((part.slot.key, part.value) for part in parts))
        self._adopt(parts, empty)
        return self

    def _parts(self) -> Iterator[Part]:
        """Every key with its steps and mask, also after the user changed the dict in place."""
        return self._seen()._raw_parts()

    def _raw_parts(self) -> Iterator[Part]:
        position, known = 0, {}
        for slot in self._layout.slots:
            steps = self._rest[position : position + len(slot.steps)]
            position += len(slot.steps)
            mask = self._rest[position] if slot.masked else None
            position += int(slot.masked)
            dropped = self._rest[position] if slot.counted else None
            position += int(slot.counted)
            known[slot.key] = (steps, mask, slot, dropped)
        for key, value in dict.items(self):
            if key in known:
                yield Part(value, *known[key])
            else:
                yield entries_of.part_of_user(key, value, {})

    def _settle(self) -> None:
        """Put together what was added, or drop what was not logged."""
        if self._pieces:
            self._join()
            return
        _check_masks(self)
        self._pending = False
        parts, empty = [], dict(self._layout.empty)
        for part in list(self._raw_parts()):
            with _compat.evaluating():  # or what is traced around would get into the logs
                settled = entries_of.settle(part)
            if settled is None:
                empty[part.slot.key] = entries_of.nothing_of(part)
            else:
                parts.append(settled)
        dict.clear(self)
        dict.update(self, ((part.slot.key, part.value) for part in parts))
        self._adopt(parts, empty)

    def _settled_if_known(self) -> logdict:
        """This dict, without what was not logged as far as that is known."""
        if not self._pieces and self._layout.masked:
            parts = list(self._raw_parts())
            if all_known([part.value for part in parts], [part.rest() for part in parts]):
                self._settle()
        return self

    def _settle_later(self) -> None:
        """Drop what was not logged at the first look, if all of it is known by then."""
        parts = list(self._raw_parts())
        self._pending = all_known([p.value for p in parts], [p.rest() for p in parts])

    def _only_types(self) -> bool:
        """Whether this holds shapes and dtypes, as ``spool(f).eval_shape`` returns them."""
        return any(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(dict(self)))

    def _map(self, fun: Callable[[Part], Part]) -> logdict:
        if self._only_types():
            return jax.eval_shape(lambda logs: logs._map(fun), self)
        return self._of(map(fun, self._parts()), self._layout.empty)

    # -- reading --------------------------------------------------------------------------------

    def _seen(self) -> logdict:
        """This dict, once nothing is pending."""
        if self._pending:
            self._settle()
        return self

    def _join(self) -> None:
        """Put together what was added."""
        pieces = [piece._seen() for piece in self._pieces]
        parts: dict[str, list[Part]] = {}
        for piece in pieces:
            for part in piece._parts():
                parts.setdefault(part.slot.key, []).append(part)
        with _compat.evaluating() if _is_known(parts) else contextlib.nullcontext():
            joined = [p[0] if len(p) == 1 else _joining.concatenate(p) for p in parts.values()]
        known = {key: empty for piece in pieces for key, empty in piece._layout.empty.items()}
        dict.clear(self)
        dict.update(self, ((part.slot.key, part.value) for part in joined))
        self._adopt(joined, {key: empty for key, empty in known.items() if key not in parts})

    def __getitem__(self, key: str) -> Any:
        return dict.__getitem__(self._seen(), key)

    def __missing__(self, key: str) -> Any:
        if key in self._layout.empty:
            return self._layout.empty[key].value()
        raise _unknown(key, dict.keys(self))

    def __contains__(self, key: object) -> bool:
        return dict.__contains__(self._seen(), key)

    def __iter__(self) -> Iterator[str]:
        return dict.__iter__(self._seen())

    def __reversed__(self) -> Iterator[str]:
        return dict.__reversed__(self._seen())

    def __len__(self) -> int:
        return dict.__len__(self._seen())

    def __eq__(self, other: object) -> bool:
        return dict.__eq__(self._seen(), other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def keys(self) -> Any:
        """The names that were logged."""
        return dict.keys(self._seen())

    def values(self) -> Any:
        """The values, key by key."""
        return dict.values(self._seen())

    def items(self) -> Any:
        """Names and values."""
        return dict.items(self._seen())

    def get(self, key: str, default: Any = None) -> Any:
        """The value of ``key``, or ``default`` where nothing was logged under that name."""
        return dict.get(self._seen(), key, default)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        steps = self.steps
        if name in steps:
            return steps[name]
        raise AttributeError(_no_attribute(name, self, steps))

    @property
    def steps(self) -> dict[str, dict[str, Any]]:
        """Every step axis: its name, and the array of each key that was logged with it.

        They are in the order in which the log wrote them. ``logs.step`` is short for
        ``logs.steps["step"]``, for names that mean nothing else here.
        """
        found: dict[str, dict[str, Any]] = _Steps("has a step axis")
        for part in self._parts():
            for name, array in zip(part.slot.steps, part.steps, strict=True):
                by_key = found.setdefault(
                    name, _Steps(f"was logged with the step axis {name!r} under")
                )
                by_key[part.slot.key] = array
        return found

    @property
    def mask(self) -> Mapping[str, Any]:
        """For each key, which of its entries were really logged; all true where none is missing."""
        return _Masks(self)

    @property
    def dropped(self) -> dict[str, Any]:
        """For keys with limited room: how many entries did not fit."""
        return {p.slot.key: p.dropped for p in self._parts() if p.dropped is not None}

    def entries(self) -> dict[str, Any]:
        """The values with the entry axis always there, and in front."""
        if self._only_types():
            return jax.eval_shape(logdict.entries, self)
        return {part.slot.key: entries_of.leading(part) for part in self._parts()}

    def asdict(self) -> dict[str, Any]:
        """A plain dict of the values; what was reduced stands under the name of the reduction."""
        return {
            part.slot.key: part.value
            if part.slot.reduction is None
            else {part.slot.reduction: part.value}
            for part in self._parts()
        }

    def __repr__(self) -> str:
        from sawlog.jax._logdict.display import describe

        return describe(list(self._parts()))

    # -- operations -----------------------------------------------------------------------------

    def __add__(self, other: object) -> logdict:
        """As if the two programs had run one after the other; put together when first looked at."""
        from sawlog.jax._logdict.concat import concat

        return concat([self, other]) if isinstance(other, logdict) else NotImplemented

    def __or__(self, other: object) -> logdict:
        """The keys of both; where both have one, that of the right-hand side."""
        if not isinstance(other, logdict):
            if not isinstance(other, Mapping):
                return NotImplemented
            other = logdict(other)
        parts = {part.slot.key: part for part in (*self._parts(), *other._parts())}
        return self._of(parts.values(), _neither(self, other, parts))

    def __ror__(self, other: object) -> logdict:
        """As ``|``, with a plain dict on the left."""
        return logdict(other) | self if isinstance(other, Mapping) else NotImplemented

    def __ior__(self, other: object) -> logdict:
        merged = self | other
        dict.clear(self)
        dict.update(self, merged)
        self._layout, self._rest = merged._layout, merged._rest
        self._pending, self._pieces = False, ()
        return self

    @property
    def slice(self) -> _Slicer:
        """``logs.slice[a:b:c]``: the same slice of the entries of every key."""
        return _Slicer(self)

    def filter(self, predicate: Callable[[str, Any], bool]) -> logdict:
        """The keys for which ``predicate(key, value)`` holds."""
        return self._of(p for p in self._parts() if predicate(p.slot.key, p.value))

    def prefix(self, prefix: str) -> logdict:
        """The same logs with ``prefix`` in front of every key."""
        parts = [part.renamed(prefix + part.slot.key) for part in self._parts()]
        return self._of(parts, {prefix + k: v for k, v in self._layout.empty.items()})

    def reduce(self, mode: Any = "mean") -> logdict:
        """Reduce the entries of every key to one; other axes are left alone.

        ``mode`` is ``mean``, ``sum``, ``min``, ``max``, ``first``, ``last`` (or ``replace``),
        ``count``, ``std``, ``var``, ``append`` (leaves the entries as they are), a
        :class:`sawlog.Reduction`, or a dict of those by key. Steps follow: ``first`` keeps the
        first, ``mean`` their mean, all others the last.
        """
        from sawlog.jax._core.unmatched import warn_unmatched_keys
        from sawlog.jax._logdict.reduce_entries import reduce_part

        warn_unmatched_keys(mode, [*self, *self._layout.empty])
        return self._map(lambda part: reduce_part(part, mode))._settled_if_known()

    def to_numpy(self) -> logdict:
        """The same logs on the host, as numpy arrays (PRNG keys stay what they are)."""
        return self._map(entries_of.on_host)

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame``: columns for lanes and step axes, then one for each name.

        There is a row for each entry that was logged, and for each lane of ``vmap``. Names are side
        by side where their lanes and steps are the same; a name that has the same steps again is
        matched in order. Nested values are columns such as ``loss/policy``, arrays are cells.

        Raises:
            ArgumentError: the logs are traced.
            MissingPackageError: pandas is not installed.
        """
        from sawlog.jax._logdict.tables import to_pandas

        return to_pandas(list(self._parts()))

    def to_polars(self) -> Any:
        """A ``polars.DataFrame``; as :meth:`to_pandas`."""
        from sawlog.jax._logdict.tables import to_polars

        return to_polars(list(self._parts()))

    def plot(self, x: str | None = None, path: Any = None) -> Any:
        """Draw a curve for every name with one number an entry.

        With lanes it is their mean, and a band from the 10 % to the 90 % quantile. ``x`` is a step
        axis, the first one if not given. Returns the figure of matplotlib; ``path`` saves it.

        Raises:
            ArgumentError: there is nothing to draw, or no such step axis.
            MissingPackageError: matplotlib is not installed.
        """
        from sawlog.jax._logdict.plot import plot

        return plot(list(self._parts()), x, path)

    def save(self, path: Any, *, exists: str = "error", meta: Any = None) -> None:
        """Save as a store, see :func:`sawlog.save`; ``sawlog.load(path)`` gives it back."""
        from sawlog.jax._saving.disk import save

        save(path, self, exists=exists, meta=meta)

    # -- a dict that is changed in place keeps its steps straight ----------------------------------

    def __setitem__(self, key: str, value: Any) -> None:
        others = [part for part in self._parts() if part.slot.key != key]
        super().__setitem__(key, value)
        known = {part.slot.key: part for part in others}
        fresh = entries_of.part_of_user(key, value, {})
        self._adopt([known.get(k, fresh) for k in dict.keys(self)], self._layout.empty)

    def __delitem__(self, key: str) -> None:
        super(logdict, self._seen()).__delitem__(key)
        self._adopt_again()

    def _adopt_again(self) -> None:
        self._adopt(list(self._parts()), self._layout.empty)

    def pop(self, key: str, *default: Any) -> Any:
        """Remove a key with its steps and return its value."""
        value = super(logdict, self._seen()).pop(key, *default)
        self._adopt_again()
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove the last key with its steps."""
        item = super(logdict, self._seen()).popitem()
        self._adopt_again()
        return item

    def clear(self) -> None:
        """Remove every key."""
        super().clear()
        self._adopt(())

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set several keys; a logdict brings its steps along."""
        if len(args) == 1 and isinstance(args[0], logdict):
            self |= args[0]
            args = ()
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The value of ``key``, set to ``default`` first if it is not there."""
        if key not in self:
            self[key] = default
        return self[key]

    def _snapshot(self) -> logdict:
        """The same now, whatever is done to this dict later; nothing is looked at."""
        same = dict.__new__(logdict)
        dict.update(same, {key: _own(value) for key, value in dict.items(self)})
        same._layout, same._rest = self._layout, tuple(map(_own, self._rest))
        same._pending, same._pieces = self._pending, self._pieces
        if same._layout.keys != tuple(dict.keys(same)):  # changed in place by dict's own methods
            return self._of(self._parts(), self._layout.empty)
        return same

    def copy(self) -> logdict:
        """A shallow copy, steps included."""
        return self._of(self._parts(), self._layout.empty)

    def __copy__(self) -> logdict:
        return self.copy()

    def __reduce__(self) -> Any:
        return _restore, (list(self._parts()), self._layout.empty)


def _own(value: Any) -> Any:
    """Arrays of the host may be changed by whoever has them; those of JAX may not."""
    return jax.tree.map(lambda x: x.copy() if isinstance(x, np.ndarray) else x, value)


def _is_known(parts: Mapping[str, Sequence[Part]]) -> bool:
    """Whether no array of these parts is traced."""
    arrays = jax.tree.leaves([(p.value, p.rest()) for several in parts.values() for p in several])
    return _compat.not_tracing() or not any(map(_compat.is_tracer, arrays))


def _restore(parts: list[Part], empty: dict[str, Nothing]) -> logdict:
    return logdict._of(parts, empty)


def _neither(one: logdict, two: logdict, logged: Mapping[str, Part]) -> dict[str, Nothing]:
    """What both programs know and neither logged."""
    known = {**one._layout.empty, **two._layout.empty}
    return {key: nothing for key, nothing in known.items() if key not in logged}


#: Functions of sawlog that flatten the arguments of a program.
_ARGUMENTS_OF = frozenset({"_look_and_call", "_prepared"})

# -- the pytree ---------------------------------------------------------------------------------


def _flatten(logs: logdict) -> tuple[tuple[Any, ...], Layout]:
    if logs._pieces:
        logs._join()
    # JAX also flattens what it has just unflattened, and counts on the same leaves.
    if logs._pending and _compat.flattened_for(_ARGUMENTS_OF):
        logs._settle()
    return (*dict.values(logs), *logs._rest), logs._layout


def _flatten_with_keys(logs: logdict) -> tuple[tuple[Any, ...], Layout]:
    children, layout = _flatten(logs)
    names: list[str] = list(layout.keys)
    for slot in layout.slots:
        names.extend(f"{slot.key}@{step}" for step in slot.steps)
        names.extend([f"{slot.key}@mask"] * slot.masked)
        names.extend([f"{slot.key}@dropped"] * slot.counted)
    keys = map(jax.tree_util.DictKey, names)
    return tuple(zip(keys, children, strict=True)), layout


def _unflatten(
    layout: Layout, children: Any, new: Any = dict.__new__, update: Any = dict.update
) -> logdict:
    # JAX calls this at the end of every call of a program that returns logs.
    keys = layout.keys
    logs: logdict = new(logdict)
    update(logs, zip(keys, children))  # noqa: B905 (steps and masks come after the values)
    logs._layout = layout
    logs._rest = tuple(children[len(keys) :])
    logs._pieces = ()
    logs._pending = layout.masked and (
        all_known(children[: len(keys)], logs._rest) or _lost_masks(logs) != []
    )
    return logs


def _lost_masks(logs: logdict) -> list[str]:
    """Keys whose mask was computed with: somebody mapped a function over the logs."""
    parts = [part for part in logs._raw_parts() if part.slot.masked]
    return [part.slot.key for part in parts if _is_computed(part.mask)]


def _is_computed(mask: Any) -> bool:
    """Whether this is no mask any more: an array of another dtype, a number, text, or several.

    A 0 or None in its place, or a shape, is what a map makes that says something about the logs.
    """
    if hasattr(mask, "dtype"):
        return mask.dtype not in (np.dtype(bool), jax.dtypes.float0)
    if isinstance(mask, Mapping):
        mask = list(mask.values())
    if isinstance(mask, (tuple, list)):
        return not (isinstance(mask, tuple) and all(type(x) is int for x in mask))
    return isinstance(mask, (float, complex, str)) or (type(mask) is int and mask != 0)


def _is_tangent(mask: Any) -> bool:
    """Whether this stands where the derivative of a mask would be."""
    return bool(getattr(mask, "dtype", None) == jax.dtypes.float0)


def _check_masks(logs: logdict) -> None:
    """Refuse to show what was computed from entries that were never logged.

    Raises:
        LogMismatchError: a function such as ``jnp.mean`` was mapped over masked logs, or these are
            derivatives of some.
    """
    if tangents := [p.slot.key for p in logs._raw_parts() if p.slot.masked and _is_tangent(p.mask)]:
        raise LogMismatchError(
            f"These are derivatives of logs with entries that may be missing, those of "
            f"{', '.join(map(repr, tangents))}, and derivatives do not say which. Hint: take the "
            'derivative of what you read: jax.jvp(lambda x: spool(f)(x)[1].reduce("sum")["key"], '
            "...)."
        )
    if lost := _lost_masks(logs):
        raise LogMismatchError(
            f"A function was mapped over logs some of whose entries were never logged, those of "
            f"{', '.join(map(repr, lost))}, so its result includes values that are not there. "
            'Hint: logs.mean(over="lanes"), logs.reduce("mean"), or use logs.mask["key"].'
        )


def _unknown(key: Any, known: Iterable[str]) -> UnknownLogError:
    return UnknownLogError(f"Nothing was logged under {key!r}. {did_you_mean(str(key), known)}")


def _no_attribute(name: str, logs: logdict, steps: Mapping[str, Any]) -> str:
    """What to say of ``logs.name``, which is neither a method nor a step axis."""
    if name in logs:
        return f"logs have no attribute {name!r}, but a key of that name. Hint: logs[{name!r}]"
    methods = [each for each in dir(logdict) if not each.startswith("_")]
    close = nearest(name, [*methods, *steps, *logs])
    meant = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    axes = ", ".join(sorted(steps)) or "none"
    return (
        f"logs have no attribute {name!r}, and no step axis of that name (step axes here: {axes}). "
        f"Hint: {meant}A step axis comes from log({{...}}, {name}=...), values from logs['key']."
    )


def all_known(values: Any, rest: Any) -> bool:
    """Whether all arrays are concrete. A value may have a None in it, masks and steps may not."""
    leaves = jax.tree.leaves(rest, is_leaf=lambda x: x is None)
    return all(map(_is_known_array, (*leaves, *jax.tree.leaves(values))))


def _is_known_array(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray):
        return True
    return isinstance(leaf, jax.Array) and not _compat.is_tracer(leaf) and leaf.is_fully_addressable


jax.tree_util.register_pytree_with_keys(logdict, _flatten_with_keys, _unflatten, _flatten)
jax.tree_util.register_pytree_node(_Steps, _Steps._flat, _Steps._of)


def _layout_to_bytes(layout: Any) -> bytes:
    rows = [dataclasses.asdict(slot) for slot in layout.slots]
    return json.dumps(rows).encode()


def _layout_from_bytes(data: bytes) -> Layout:
    rows = json.loads(bytes(data).decode())
    return Layout(Slot(**{**row, "steps": tuple(row["steps"])}) for row in rows)


jax.export.register_pytree_node_serialization(
    logdict,
    serialized_name="sawlog.logdict",
    serialize_auxdata=_layout_to_bytes,
    deserialize_auxdata=_layout_from_bytes,
)
