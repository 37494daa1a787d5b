"""What a loop logs in every turn: its form is read and checked once, then only numbers change."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from sawlog.jax import _compat
from sawlog.jax._logdict.layout import LogdictLayout
from sawlog.jax._logdict.logdict import logdict

_MOST = 256  # forms that are remembered
_OPTIONS = {"where", "tags", "prefix", "reduction"}  # of log, beside step axes
_WHOLE = (-(2**31), 2**31 - 1)
_LARGEST = float(np.finfo(np.float32).max)
#: Numbers that JAX may cut to 32 bits; those that fit are not changed by it.
_CHECKED = {
    int: _WHOLE,
    np.int64: _WHOLE,
    float: (-_LARGEST, _LARGEST),
    np.float64: (-_LARGEST, _LARGEST),
}
_PLAIN = (bool, np.bool_, np.int32, np.float32)


@dataclasses.dataclass(frozen=True)
class Leaves:
    """A logdict in parts: its leaves, and what they belong to."""

    leaves: list[Any]
    tree: Any
    layout: LogdictLayout

    @classmethod
    def of(cls, logs: logdict) -> Leaves:
        """Those of a logdict."""
        leaves, tree = jax.tree_util.tree_flatten(logs)
        return cls(leaves, tree, logs._layout)

    @property
    def logs(self) -> logdict:
        """The logdict."""
        made: logdict = jax.tree_util.tree_unflatten(self.tree, self.leaves)
        return made


@dataclasses.dataclass(frozen=True)
class _Form:
    """What is the same for all dicts of one form.

    ``dtypes`` says of each number what it becomes on the host, None where it stays as it is.
    """

    tree: Any
    layout: LogdictLayout
    dtypes: tuple[Any, ...]


class Forms:
    """The forms of what was logged before."""

    def __init__(self) -> None:
        self._known: dict[Any, _Form] = {}

    def read(
        self, data: Mapping[str, Any], steps: dict[str, Any], make: Callable[..., logdict]
    ) -> Leaves:
        """The logdict that ``make(data, steps)`` makes, faster where the form is known.

        Raises:
            LogValueError: from ``make``.
        """
        values, tree = jax.tree_util.tree_flatten(list(data.values()))
        values.extend(steps.values())
        kinds = _kinds(values)
        if kinds is None or not _OPTIONS.isdisjoint(steps):
            return Leaves.of(make(data, steps))
        wide = jax.config.jax_enable_x64  # type: ignore[attr-defined]
        key = (tuple(data), tuple(steps), tree, kinds, wide)
        form = self._known.get(key)
        if form is None:
            made = Leaves.of(make(data, steps))
            self._learn(key, values, len(steps), made)
            return made
        own = [
            value if dtype is None else np.asarray(value, dtype)
            for value, dtype in zip(values, form.dtypes, strict=True)
        ]
        return Leaves(_repeated(own, len(steps), form.layout), form.tree, form.layout)

    def _learn(self, key: Any, values: list[Any], steps: int, made: Leaves) -> None:
        """Remember a form, if it is what it is taken for."""
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
    """The leaves of a logdict: all values, and the steps once for each name."""
    if not steps:
        return values
    return values[:-steps] + values[-steps:] * len(layout.slots)


def _kinds(values: Sequence[Any]) -> tuple[Any, ...] | None:
    """What makes a difference for the form; None where numbers have to be looked at."""
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
    """Whether a number of the host became this array."""
    if isinstance(given, jax.Array) or not isinstance(made, np.ndarray):
        return False
    return bool(np.array_equal(np.array(given, made.dtype), made, equal_nan=True))
