"""``sawlog.concat``: logs one after the other, put together when somebody looks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from sawlog.errors import ArgumentError
from sawlog.jax._logdict.logdict import all_known, logdict


def concat(*several: Iterable[logdict] | logdict) -> logdict:
    """Logs one after the other, as if the programs had run in this order; also ``logs + more``.

    Takes logdicts in a list, or one by one.

    In a Python loop, collect the logs of every step and join them once, or add them one by one:
    what is added is put together when it is first looked at, so no step waits for the device.

    >>> import jax.numpy as jnp, sawlog
    >>> print(sawlog.concat([sawlog.logdict({"x": jnp.arange(i)}) for i in (1, 2, 3)])["x"])
    [0 0 1 0 1 2]

    Raises:
        ArgumentError: something else than logs is given.
        LogMismatchError: entries of one name do not fit together.
    """
    single = len(several) == 1 and not isinstance(several[0], Mapping)
    listed: list[Any] = list(several[0] if single else several)
    for logs in listed:
        if not isinstance(logs, logdict):
            raise ArgumentError(
                f"concat takes several logdicts, as in concat([logs, more]), and got "
                f"{type(logs).__name__} among them. Hint: logdict(data) makes one of a dict."
            )
    result, now = logdict(), False
    pieces: list[logdict] = []
    for logs in listed:
        if logs._pieces:
            fits = not pieces or _fits(pieces, logs._pieces[0])
            pieces.extend(logs._pieces)
        elif dict.__len__(logs) or logs._layout.empty:
            snapshot = logs._snapshot()
            fits = _is_known(snapshot) and (not pieces or _fits(pieces, snapshot))
            pieces.append(snapshot)
        else:
            continue
        now = now or not fits
    result._pieces, result._pending = tuple(pieces), bool(pieces)
    if now:
        result._join()
    return result


def _is_known(logs: logdict) -> bool:
    return all_known(list(dict.values(logs)), logs._rest)


def _fits(pieces: Sequence[logdict], new: logdict) -> bool:
    """Whether the entries of ``new`` go with those of a piece before, as far as can be told.

    Otherwise all of them are put together now, so that an error comes where they are added.
    """
    for old in (pieces[-1], pieces[0]):
        if old._layout == new._layout and _types(old) == _types(new):
            return True
    before = {id(piece._layout): piece for piece in pieces}
    return any(
        piece._layout == new._layout and _types(piece) == _types(new) for piece in before.values()
    )


def _types(logs: logdict) -> list[tuple[Any, ...]]:
    """What must be the same of two pieces: dtypes, and shapes but for the entries."""
    found = []
    for part in logs._raw_parts():
        leaves, tree = jax.tree.flatten(part.value)
        axis = part.outer
        behind = axis + int(part.stacked)
        shapes = [(x.dtype, np.shape(x)[:axis], np.shape(x)[behind:]) for x in leaves]
        found.append((tree, *shapes))
    return found
