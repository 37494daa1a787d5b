"""Concatenate the entries of one key, for ``logs + more`` and ``sawlog.concat``.

A Python loop that adds the logs of every step must neither wait for the device nor compile anything
for each new length. So pieces are stored, and concatenated on first access: on the host if the
arrays are small or already there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from sawlog.errors import LogMismatchError
from sawlog.jax import _compat
from sawlog.jax._core import arrays
from sawlog.jax._logdict.entries import LogdictPart, full_mask, on_host, stack

#: Arrays of an accelerator up to this size are concatenated on the host, without compilation.
_HOST_BYTES = 16 << 20


def concatenate(parts: Sequence[LogdictPart]) -> LogdictPart:
    """Concatenate several parts of one key.

    Raises:
        LogMismatchError: their types, structures or step axes differ.
    """
    device = _one_device([x for part in parts for x in _arrays_of(part)])
    if device is None:
        return _concatenated([stack(part) for part in parts])
    with jax.transfer_guard("allow"):  # a guard is meant for the transfers of the user
        joined = _concatenated([stack(on_host(part)) for part in parts])
        # on the default device, leave the result uncommitted
        default = jax.device_put(0).devices()
        return joined.map(lambda x: jax.device_put(x, None if device in default else device))


def _arrays_of(part: LogdictPart) -> tuple[Any, ...]:
    return (*jax.tree.leaves(part.value), *part.rest())


def _concatenated(parts: Sequence[LogdictPart]) -> LogdictPart:
    first = parts[0]
    types = (first.entry_types(), first.slot.steps)
    for part in parts[1:]:
        if (part.entry_types(), part.slot.steps) != types:  # may still fit: compare in full
            check_alike(first, part)
    masked = any(part.mask is not None for part in parts)
    counted = [part.dropped for part in parts if part.slot.counted]

    def join(*pieces: Any) -> Any:
        if all(isinstance(x, (np.ndarray, np.generic)) for x in pieces):
            return np.concatenate(pieces, axis=first.outer)
        return arrays.concatenate(pieces, axis=first.outer)

    steps = [_steps_like(first, part) for part in parts]
    return LogdictPart(
        jax.tree.map(join, *(part.value for part in parts)),
        tuple(map(join, *steps)) if first.steps else (),
        join(*map(full_mask, parts)) if masked else None,
        dataclasses.replace(first.slot, masked=masked, counted=bool(counted), reduction=None),
        sum(counted[1:], counted[0]) if counted else None,
    )


def _steps_like(first: LogdictPart, part: LogdictPart) -> tuple[Any, ...]:
    by_name = dict(zip(part.slot.steps, part.steps, strict=True))
    return tuple(by_name[name] for name in first.slot.steps)


def _one_device(several: Sequence[Any]) -> Any:
    """Return the device of concrete arrays that may be joined on the host, or None."""
    known = [x for x in several if isinstance(x, jax.Array)]
    if any(map(_compat.is_tracer, known)) or not all(map(arrays.is_plain, several)):
        return None
    devices = {device for x in known for device in x.devices()}
    if len(devices) != 1:
        return None
    (device,) = devices
    small = device.platform == "cpu" or sum(x.nbytes for x in several) <= _HOST_BYTES
    return device if small else None


def check_alike(one: LogdictPart, two: LogdictPart) -> None:
    """Check that two parts can be concatenated.

    Raises:
        LogMismatchError: the message says what differs.
    """
    key, axis = one.slot.key, one.outer

    def types(part: LogdictPart) -> str:
        def text(x: Any) -> str:
            shape = x.shape[:axis] + x.shape[axis + 1 :]
            return f"{x.dtype}[{','.join(map(str, shape))}]"

        return str(jax.tree.map(text, part.value))

    for what, left, right in (
        ("steps", sorted(one.slot.steps), sorted(two.slot.steps)),
        ("structure", jax.tree.structure(one.value), jax.tree.structure(two.value)),
        ("type of an entry", types(one), types(two)),
    ):
        if left != right:
            raise LogMismatchError(
                f"The entries of {key!r} cannot be concatenated: the {what} is {left} on the left "
                f"and {right} on the right. Hint: rename one with logs.prefix(...)."
            )
