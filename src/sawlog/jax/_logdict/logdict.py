"""``logdict``: a ``dict`` of logged arrays with their steps; also a pytree.

Mostly it behaves as a plain dict. It adds the step arrays of each key (``logs.step["loss"]``), the
entry axis (``logs.entries()``), and operations along that axis.

A key can hold entries that were not logged: in a branch that did not run, or in a lane of ``vmap``
that took another branch. While a program is traced, ``logs.mask`` marks the real entries. Once the
arrays are concrete, the others are dropped, and a key without entries is not in the dict
(``logs["key"]`` then returns an empty array). A mask remains only where lanes differ. Entries are
dropped on first access and not earlier, because JAX must not be called while it unflattens outputs;
see ``settling.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax

from sawlog.errors import ArgumentError
from sawlog.jax._logdict import entries as entries_of
from sawlog.jax._logdict import pytree, settling
from sawlog.jax._logdict.display_methods import DisplayMethods
from sawlog.jax._logdict.entries import EmptyKey, LogdictPart
from sawlog.jax._logdict.layout import LogdictLayout
from sawlog.jax._logdict.statistics import StatisticsMethods
from sawlog.jax._logdict.views import EntrySlicer, MaskView, StepView, no_attribute, unknown_log


class logdict(DisplayMethods, StatisticsMethods, dict):
    """The logs of a program: ``logs["k"]``, ``logs.step["k"]``, and operations along the entries.

    >>> import jax.numpy as jnp
    >>> logs = logdict({"loss": jnp.array([3.0, 2.0, 1.0])}, step={"loss": jnp.arange(3)})
    >>> print(logs["loss"], logs.step["loss"])
    [3. 2. 1.] [0 1 2]
    >>> print((logs + logs).reduce("mean")["loss"])
    2.0

    ``logdict(data, **steps)``: the values of ``data`` have a leading entry axis (a scalar is a
    single entry without that axis); ``steps`` maps each step axis to a dict of arrays by key.

    Raises:
        ArgumentError: a step axis has values for a key that ``data`` does not have.
        LogMismatchError: a step array has another length than the entries of its key.
    """

    __slots__ = ("_layout", "_pending", "_pieces", "_rest")

    #: Whether to settle before the next access: pieces to join, or entries that may be dropped.
    _pending: bool
    #: Logdicts that were added and are not concatenated yet.
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

    def _adopt(
        self, parts: Iterable[LogdictPart], empty: Mapping[str, EmptyKey] | None = None
    ) -> None:
        """Store the layout, steps and masks of ``parts``, whose values are in the dict."""
        parts = list(parts)
        self._layout = LogdictLayout((part.slot for part in parts), empty)
        self._rest = tuple(array for part in parts for array in part.rest())
        self._pending, self._pieces = False, ()

    @classmethod
    def _of(
        cls, parts: Iterable[LogdictPart], empty: Mapping[str, EmptyKey] | None = None
    ) -> logdict:
        self = cls.__new__(cls)
        self._replace(parts, empty)
        return self

    def _replace(
        self, parts: Iterable[LogdictPart], empty: Mapping[str, EmptyKey] | None = None
    ) -> None:
        """Replace the whole contents, in place."""
        parts = list(parts)
        dict.clear(self)
        dict.update(self, ((part.slot.key, part.value) for part in parts))
        self._adopt(parts, empty)

    def _parts(self) -> Iterator[LogdictPart]:
        """Yield every key with its steps and mask, also after the dict was changed in place."""
        return self._settled()._raw_parts()

    def _raw_parts(self) -> Iterator[LogdictPart]:
        """Yield the parts without settling first."""
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
                yield LogdictPart(value, *known[key])
            else:
                yield entries_of.part_of_user(key, value, {})

    def _settled(self) -> logdict:
        """Do what is pending, and return this logdict."""
        if self._pending:
            settling.settle(self)
        return self

    def _settled_if_concrete(self) -> logdict:
        """Drop entries that were not logged if the masks are concrete; return this logdict."""
        if not self._pieces and self._layout.masked and settling.is_concrete(self):
            settling.settle(self)
        return self

    def _settle_later(self) -> None:
        """Drop entries that were not logged on first access, if the arrays are concrete."""
        self._pending = settling.is_concrete(self)

    def _only_types(self) -> bool:
        """Return whether this holds shapes and dtypes, as ``spool(f).eval_shape`` returns them."""
        return any(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(dict(self)))

    def _map(self, fun: Callable[[LogdictPart], LogdictPart]) -> logdict:
        """Apply a function to every key."""
        if self._only_types():
            return jax.eval_shape(lambda logs: logs._map(fun), self)
        return self._of(map(fun, self._parts()), self._layout.empty)

    # -- reading --------------------------------------------------------------------------------

    def __getitem__(self, key: str) -> Any:
        return dict.__getitem__(self._settled(), key)

    def __missing__(self, key: str) -> Any:
        if key in self._layout.empty:
            return self._layout.empty[key].value()
        raise unknown_log(key, dict.keys(self))

    def __contains__(self, key: object) -> bool:
        return dict.__contains__(self._settled(), key)

    def __iter__(self) -> Iterator[str]:
        return dict.__iter__(self._settled())

    def __reversed__(self) -> Iterator[str]:
        return dict.__reversed__(self._settled())

    def __len__(self) -> int:
        return dict.__len__(self._settled())

    def __eq__(self, other: object) -> bool:
        return dict.__eq__(self._settled(), other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def keys(self) -> Any:
        """Return the names that were logged."""
        return dict.keys(self._settled())

    def values(self) -> Any:
        """Return the values, in the order of the keys."""
        return dict.values(self._settled())

    def items(self) -> Any:
        """Return pairs of name and value."""
        return dict.items(self._settled())

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of ``key``, or ``default`` if nothing was logged under that name."""
        return dict.get(self._settled(), key, default)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        steps = self.steps
        if name in steps:
            return steps[name]
        methods = [each for each in dir(logdict) if not each.startswith("_")]
        raise AttributeError(no_attribute(name, methods, steps, self))

    @property
    def steps(self) -> dict[str, dict[str, Any]]:
        """Every step axis by name, each a dict of arrays by key.

        Axes keep the order in which the log gave them. ``logs.step`` is short for
        ``logs.steps["step"]``; this works for any name that is not an attribute of ``logdict``.
        """
        found: dict[str, dict[str, Any]] = StepView("has a step axis")
        for part in self._parts():
            for name, array in zip(part.slot.steps, part.steps, strict=True):
                relation = f"was logged with the step axis {name!r} under"
                found.setdefault(name, StepView(relation))[part.slot.key] = array
        return found

    @property
    def mask(self) -> Mapping[str, Any]:
        """For each key, which of its entries were logged; all true if no entry is missing."""
        return MaskView(self)

    @property
    def dropped(self) -> dict[str, Any]:
        """For each key with a capacity or window, the number of entries that did not fit."""
        return {p.slot.key: p.dropped for p in self._parts() if p.dropped is not None}

    def entries(self) -> dict[str, Any]:
        """Return the values with the entry axis in front, added where a value has none."""
        if self._only_types():
            return jax.eval_shape(logdict.entries, self)
        return {part.slot.key: entries_of.leading(part) for part in self._parts()}

    def asdict(self) -> dict[str, Any]:
        """Return a plain dict; a reduced value is ``{reduction: value}``."""
        return {
            part.slot.key: part.value
            if part.slot.reduction is None
            else {part.slot.reduction: part.value}
            for part in self._parts()
        }

    # -- operations -----------------------------------------------------------------------------

    def __add__(self, other: object) -> logdict:
        """Concatenate, as if the two programs had run in this order; done on first access."""
        from sawlog.jax._logdict.concat import concat

        return concat([self, other]) if isinstance(other, logdict) else NotImplemented

    def __or__(self, other: object) -> logdict:
        """Merge the keys of both; the right-hand side takes precedence."""
        if not isinstance(other, logdict):
            if not isinstance(other, Mapping):
                return NotImplemented
            other = logdict(other)
        parts = {part.slot.key: part for part in (*self._parts(), *other._parts())}
        empty = {**self._layout.empty, **other._layout.empty}
        return self._of(parts.values(), {k: v for k, v in empty.items() if k not in parts})

    def __ror__(self, other: object) -> logdict:
        """Merge with a plain dict on the left."""
        return logdict(other) | self if isinstance(other, Mapping) else NotImplemented

    def __ior__(self, other: object) -> logdict:
        merged = self | other
        self._replace(merged._parts(), merged._layout.empty)
        return self

    @property
    def slice(self) -> EntrySlicer:
        """``logs.slice[a:b:c]``: the same slice of the entries of every key."""
        return EntrySlicer(self)

    def filter(self, predicate: Callable[[str, Any], bool]) -> logdict:
        """Return the keys for which ``predicate(key, value)`` is true."""
        return self._of(p for p in self._parts() if predicate(p.slot.key, p.value))

    def prefix(self, prefix: str) -> logdict:
        """Return the same logs with ``prefix`` in front of every key."""
        parts = [part.renamed(prefix + part.slot.key) for part in self._parts()]
        return self._of(parts, {prefix + k: v for k, v in self._layout.empty.items()})

    def reduce(self, mode: Any = "mean") -> logdict:
        """Reduce the entries of every key to one; other axes are unchanged.

        ``mode`` is ``mean``, ``sum``, ``min``, ``max``, ``first``, ``last`` (or ``replace``),
        ``count``, ``std``, ``var``, ``append`` (which keeps all entries), a
        :class:`sawlog.Reduction`, or a dict of those by key. Steps are reduced too: ``first`` keeps
        the first step, ``mean`` the mean, and all other modes the last.
        """
        from sawlog.jax._core.unmatched import warn_unmatched_keys
        from sawlog.jax._logdict.reduce_entries import reduce_part

        warn_unmatched_keys(mode, [*self, *self._layout.empty])
        return self._map(lambda part: reduce_part(part, mode))._settled_if_concrete()

    def to_numpy(self) -> logdict:
        """Copy the logs to the host as numpy arrays; PRNG keys stay JAX arrays."""
        return self._map(entries_of.on_host)

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame``: columns for lanes and step axes, then one per name.

        There is one row for each logged entry and lane of ``vmap``. Names with the same lanes and
        step axes share rows; repeated steps are matched in order. Nested values become columns such
        as ``loss/policy``; arrays become cells.

        Raises:
            ArgumentError: the logs are traced, or two columns would have the same name.
            MissingPackageError: pandas is not installed.
        """
        from sawlog.jax._logdict.tables import to_pandas

        return to_pandas(list(self._parts()))

    def to_polars(self) -> Any:
        """Return a ``polars.DataFrame``; see :meth:`to_pandas`."""
        from sawlog.jax._logdict.tables import to_polars

        return to_polars(list(self._parts()))

    def plot(self, x: str | None = None, path: Any = None) -> Any:
        """Draw a curve for every name whose entries are single numbers.

        With lanes, the curve is their mean, with a band from the 10 % to the 90 % quantile. ``x``
        is a step axis, by default the first one. Returns the matplotlib figure; ``path`` saves it.

        Raises:
            ArgumentError: no name can be drawn, or a name does not have the step axis ``x``.
            MissingPackageError: matplotlib is not installed.
        """
        from sawlog.jax._logdict.plot import plot

        return plot(list(self._parts()), x, path)

    def save(self, path: Any, *, exists: str = "error", meta: Any = None) -> None:
        """Save as a store; see :func:`sawlog.save`. ``sawlog.load(path)`` loads it."""
        from sawlog.jax._saving.disk import save

        save(path, self, exists=exists, meta=meta)

    # -- changes in place: every method keeps steps and masks in line with the keys ----------------

    def __setitem__(self, key: str, value: Any) -> None:
        others = [part for part in self._parts() if part.slot.key != key]
        super().__setitem__(key, value)
        known = {part.slot.key: part for part in others}
        fresh = entries_of.part_of_user(key, value, {})
        self._adopt([known.get(k, fresh) for k in dict.keys(self)], self._layout.empty)

    def __delitem__(self, key: str) -> None:
        super(logdict, self._settled()).__delitem__(key)
        self._adopt_again()

    def _adopt_again(self) -> None:
        self._adopt(list(self._parts()), self._layout.empty)

    def pop(self, key: str, *default: Any) -> Any:
        """Remove a key with its steps and return its value."""
        value = super(logdict, self._settled()).pop(key, *default)
        self._adopt_again()
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove the last key with its steps and return both key and value."""
        item = super(logdict, self._settled()).popitem()
        self._adopt_again()
        return item

    def clear(self) -> None:
        """Remove every key."""
        self._replace(())

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set several keys; from a logdict, steps and masks are copied too."""
        if len(args) == 1 and isinstance(args[0], logdict):
            self |= args[0]
            args = ()
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return the value of ``key``; set it to ``default`` first if it is missing."""
        if key not in self:
            self[key] = default
        return self[key]

    def copy(self) -> logdict:
        """Return a shallow copy, steps included."""
        return self._of(self._parts(), self._layout.empty)

    __copy__ = copy

    def __reduce__(self) -> Any:
        return logdict._of, (list(self._parts()), self._layout.empty)


pytree.register(logdict)
