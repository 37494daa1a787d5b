"""``sawlog.concat``: concatenate logs, on first access."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from sawlog.errors import ArgumentError
from sawlog.jax._logdict.logdict import logdict
from sawlog.jax._logdict.settling import all_concrete, join


def concat(*several: Iterable[logdict] | logdict) -> logdict:
    """Concatenate logs, as if the programs had run in this order; also ``logs + more``.

    Takes a list of logdicts, or logdicts as separate arguments.

    In a Python loop, collect the logs of every step and concatenate them once, or add them one by
    one: the arrays are joined when the result is first read, so no step waits for the device.

    >>> import jax.numpy as jnp, sawlog
    >>> print(sawlog.concat([sawlog.logdict({"x": jnp.arange(i)}) for i in (1, 2, 3)])["x"])
    [0 0 1 0 1 2]

    Raises:
        ArgumentError: an argument is not a logdict.
        LogMismatchError: entries of one name have different types, structures or step axes.
    """
    single = len(several) == 1 and not isinstance(several[0], Mapping)
    listed: list[Any] = list(several[0] if single else several)
    for logs in listed:
        if not isinstance(logs, logdict):
            raise ArgumentError(
                f"concat takes several logdicts, as in concat([logs, more]), and got "
                f"{type(logs).__name__} among them. Hint: convert a dict with logdict(data)."
            )
    result, now = logdict(), False
    pieces: list[logdict] = []
    for logs in listed:
        if logs._pieces:
            fits = not pieces or _fits(pieces, logs._pieces[0])
            pieces.extend(logs._pieces)
        elif dict.__len__(logs) or logs._layout.empty:
            snapshot = _snapshot(logs)
            fits = _is_concrete(snapshot) and (not pieces or _fits(pieces, snapshot))
            pieces.append(snapshot)
        else:
            continue
        now = now or not fits
    result._pieces, result._pending = tuple(pieces), bool(pieces)
    if now:
        join(result)
    return result


def _is_concrete(logs: logdict) -> bool:
    return all_concrete(list(dict.values(logs)), logs._rest)


def _snapshot(logs: logdict) -> logdict:
    """Copy a logdict so that later changes to it do not matter; nothing is settled."""
    same = dict.__new__(logdict)
    dict.update(same, {key: _own(value) for key, value in dict.items(logs)})
    same._layout, same._rest = logs._layout, tuple(map(_own, logs._rest))
    same._pending, same._pieces = logs._pending, logs._pieces
    if same._layout.keys != tuple(dict.keys(same)):  # changed in place by dict's own methods
        return logs.copy()
    return same


def _own(value: Any) -> Any:
    """Copy numpy arrays, which can be changed in place; JAX arrays cannot."""
    return jax.tree.map(lambda x: x.copy() if isinstance(x, np.ndarray) else x, value)


def _fits(pieces: Sequence[logdict], new: logdict) -> bool:
    """Return whether ``new`` has the same types as an earlier piece.

    If not, all pieces are joined at once, so that an error is raised where they are added.
    """
    for old in (pieces[-1], pieces[0]):
        if old._layout == new._layout and _types(old) == _types(new):
            return True
    before = {id(piece._layout): piece for piece in pieces}
    return any(
        piece._layout == new._layout and _types(piece) == _types(new) for piece in before.values()
    )


def _types(logs: logdict) -> list[tuple[Any, ...]]:
    return [part.entry_types() for part in logs._raw_parts()]
