"""The form of a logged dict: checked once for a loop, in whose iterations only numbers change."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog.jax import _compat
from sawlog.jax._core.log_arguments import read_site
from sawlog.jax._logdict.entries import parts_of_site
from sawlog.jax._logdict.layout import LogdictLayout
from sawlog.jax._logdict.logdict import logdict

_MOST = 256  # forms in the cache
_OPTIONS = {"where", "tags", "prefix", "reduction"}  # of log; other keywords are step axes
_WHOLE = (-(2**31), 2**31 - 1)
_LARGEST = float(np.finfo(np.float32).max)
#: The range of numbers that JAX may truncate to 32 bits without changing them.
_CHECKED = {
    int: _WHOLE,
    np.int64: _WHOLE,
    float: (-_LARGEST, _LARGEST),
    np.float64: (-_LARGEST, _LARGEST),
}
_PLAIN = (bool, np.bool_, np.int32, np.float32)


@dataclasses.dataclass(frozen=True)
class Leaves:
    """A flattened logdict: its leaves, tree and layout."""

    leaves: list[Any]
    tree: Any
    layout: LogdictLayout

    @classmethod
    def of(cls, logs: logdict) -> Leaves:
        """Flatten a logdict."""
        leaves, tree = jax.tree_util.tree_flatten(logs)
        return cls(leaves, tree, logs._layout)

    @property
    def logs(self) -> logdict:
        """The logdict."""
        made: logdict = jax.tree_util.tree_unflatten(self.tree, self.leaves)
        return made


@dataclasses.dataclass(frozen=True)
class _Form:
    """The properties that all dicts of one form share.

    ``dtypes`` has the dtype that each value is converted to on the host, or None for no conversion.
    """

    tree: Any
    layout: LogdictLayout
    dtypes: tuple[Any, ...]


def one_entry(data: Mapping[str, Any], steps: dict[str, Any]) -> logdict:
    """Return a logdict of values that are logged once, as ``spool`` would return it.

    Raises:
        LogValueError: a value cannot be logged.
    """
    site, operands = read_site((dict(data),), steps, as_arrays=False)
    if site is None:
        return logdict()
    array = _host_array if _compat.not_tracing() else jnp.asarray
    named = site.split([array(operand) for operand in operands])
    logs = logdict._of(parts_of_site(site, named))
    if named.mask is not None:
        logs._settle_later()
    return logs


def _host_array(value: Any) -> Any:
    """Convert a value as ``jnp.asarray`` would, but leave host values on the host."""
    if isinstance(value, jax.Array):
        return value
    return np.asarray(value, jax.dtypes.result_type(value))


class Forms:
    """A cache of the forms of logged dicts."""

    def __init__(self) -> None:
        self._known: dict[Any, _Form] = {}

    def read(self, data: Mapping[str, Any], steps: dict[str, Any]) -> Leaves:
        """Return the leaves of ``one_entry(data, steps)``, faster if the form is known.

        Raises:
            LogValueError: a value cannot be logged.
        """
        values, tree = jax.tree_util.tree_flatten(list(data.values()))
        values.extend(steps.values())
        kinds = _kinds(values)
        if kinds is None or not _OPTIONS.isdisjoint(steps):
            return Leaves.of(one_entry(data, steps))
        wide = jax.config.jax_enable_x64  # type: ignore[attr-defined]
        key = (tuple(data), tuple(steps), tree, kinds, wide)
        form = self._known.get(key)
        if form is None:
            made = Leaves.of(one_entry(data, steps))
            self._learn(key, values, len(steps), made)
            return made
        own = [
            value if dtype is None else np.asarray(value, dtype)
            for value, dtype in zip(values, form.dtypes, strict=True)
        ]
        return Leaves(_repeated(own, len(steps), form.layout), form.tree, form.layout)

    def _learn(self, key: Any, values: list[Any], steps: int, made: Leaves) -> None:
        """Add a form, if its leaves are exactly the values and the repeated steps."""
        likely = _repeated(values, steps, made.layout)
        if len(likely) != len(made.leaves) or made.layout.masked:
            return
        pairs = list(zip(likely, made.leaves, strict=True))
        if not all(one is two or _is_number_for(one, two) for one, two in pairs):
            return
        by_id = {id(one): (None if one is two else two.dtype) for one, two in pairs}
        if len(self._known) >= _MOST:
            self._known.clear()
        dtypes = tuple(by_id.get(id(value)) for value in values)
        self._known[key] = _Form(made.tree, made.layout, dtypes)


def _repeated(values: list[Any], steps: int, layout: LogdictLayout) -> list[Any]:
    """Return the leaves of a logdict: all values, and the steps once for each name."""
    if not steps:
        return values
    return values[:-steps] + values[-steps:] * len(layout.slots)


def _kinds(values: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return the types that determine the form; None if values need a check of their own."""
    kinds: list[Any] = []
    for value in values:
        kind = type(value)
        bounds = _CHECKED.get(kind)
        if bounds is not None:
            if not bounds[0] <= value <= bounds[1]:
                return None
            kinds.append(kind)
        elif kind in _PLAIN:
            kinds.append(kind)
        elif kind is np.ndarray:
            if value.dtype.itemsize > 4 or value.dtype.kind not in "biuf":
                return None
            kinds.append((value.dtype, value.ndim))
        elif isinstance(value, jax.Array) and not _compat.is_tracer(value):
            kinds.append((kind, value.ndim))
        else:
            return None
    return tuple(kinds)


def _is_number_for(given: Any, made: Any) -> bool:
    """Return whether an array is a host number after conversion."""
    if isinstance(given, jax.Array) or not isinstance(made, np.ndarray):
        return False
    return bool(np.array_equal(np.array(given, made.dtype), made, equal_nan=True))
