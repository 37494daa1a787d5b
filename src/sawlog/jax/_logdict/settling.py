"""Settling a logdict: concatenate what was added, and drop entries that were not logged.

Both happen on first access. A program that returns logs never waits for their masks, and
``logs + more`` in a Python loop neither waits for the device nor compiles anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from sawlog.errors import LogMismatchError
from sawlog.jax import _compat
from sawlog.jax._logdict import entries as entries_of
from sawlog.jax._logdict import joining
from sawlog.jax._logdict.entries import LogdictPart

if TYPE_CHECKING:
    from sawlog.jax._logdict.logdict import logdict


def settle(logs: logdict) -> None:
    """Concatenate pending pieces, or drop the entries that were not logged, in place."""
    if logs._pieces:
        join(logs)
        return
    _check_masks(logs)
    logs._pending = False
    parts, empty = [], dict(logs._layout.empty)
    for part in list(logs._raw_parts()):
        with _compat.evaluating():  # otherwise a surrounding trace would capture the result
            settled = entries_of.settle(part)
        if settled is None:
            empty[part.slot.key] = entries_of.empty_key_of(part)
        else:
            parts.append(settled)
    logs._replace(parts, empty)


def join(logs: logdict) -> None:
    """Concatenate the pieces of a logdict, in place."""
    pieces = [piece._settled() for piece in logs._pieces]
    parts: dict[str, list[LogdictPart]] = {}
    for piece in pieces:
        for part in piece._parts():
            parts.setdefault(part.slot.key, []).append(part)
    with contextlib.nullcontext() if _has_tracers(parts) else _compat.evaluating():
        joined = [p[0] if len(p) == 1 else joining.concatenate(p) for p in parts.values()]
    known = {key: empty for piece in pieces for key, empty in piece._layout.empty.items()}
    logs._replace(joined, {key: empty for key, empty in known.items() if key not in parts})


def is_concrete(logs: logdict) -> bool:
    """Return whether every array of a logdict without pending pieces is concrete."""
    parts = list(logs._raw_parts())
    return all_concrete([part.value for part in parts], [part.rest() for part in parts])


def all_concrete(values: Any, rest: Any) -> bool:
    """Return whether all arrays are concrete; a value may contain None, a step or mask may not."""
    leaves = jax.tree.leaves(rest, is_leaf=lambda x: x is None)
    return all(map(_is_concrete_array, (*leaves, *jax.tree.leaves(values))))


def _is_concrete_array(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray):
        return True
    return isinstance(leaf, jax.Array) and not _compat.is_tracer(leaf) and leaf.is_fully_addressable


def _has_tracers(parts: Mapping[str, Sequence[LogdictPart]]) -> bool:
    if _compat.not_tracing():
        return False
    arrays = jax.tree.leaves([(p.value, p.rest()) for several in parts.values() for p in several])
    return any(map(_compat.is_tracer, arrays))


# -- masks that a function was mapped over ---------------------------------------------------------


def lost_masks(logs: logdict) -> list[str]:
    """Return the keys whose mask is no longer a mask: a function was mapped over the logs."""
    parts = [part for part in logs._raw_parts() if part.slot.masked]
    return [part.slot.key for part in parts if _is_computed(part.mask)]


def _is_computed(mask: Any) -> bool:
    """Return whether a mask was replaced by values that were computed.

    A 0, None or a shape in its place is allowed: such a map asks about the logs, for example for
    ``in_axes``.
    """
    if hasattr(mask, "dtype"):
        return mask.dtype not in (np.dtype(bool), jax.dtypes.float0)
    if isinstance(mask, Mapping):
        mask = list(mask.values())
    if isinstance(mask, (tuple, list)):
        return not (isinstance(mask, tuple) and all(type(x) is int for x in mask))
    return isinstance(mask, (float, complex, str)) or (type(mask) is int and mask != 0)


def _is_tangent(mask: Any) -> bool:
    return bool(getattr(mask, "dtype", None) == jax.dtypes.float0)


def _check_masks(logs: logdict) -> None:
    """Refuse to show values computed from entries that were never logged.

    Raises:
        LogMismatchError: a function such as ``jnp.mean`` was mapped over masked logs, or these are
            derivatives of masked logs.
    """
    if tangents := [p.slot.key for p in logs._raw_parts() if p.slot.masked and _is_tangent(p.mask)]:
        raise LogMismatchError(
            f"These are derivatives of logs with entries that may be missing, those of "
            f"{', '.join(map(repr, tangents))}, and derivatives do not say which. Hint: take the "
            'derivative of what you read: jax.jvp(lambda x: spool(f)(x)[1].reduce("sum")["key"], '
            "...)."
        )
    if lost := lost_masks(logs):
        raise LogMismatchError(
            f"A function was mapped over logs some of whose entries were never logged, those of "
            f"{', '.join(map(repr, lost))}, so its result includes values that were not logged. "
            'Hint: logs.mean(over="lanes"), logs.reduce("mean"), or use logs.mask["key"].'
        )
