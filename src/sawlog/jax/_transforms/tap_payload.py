"""The payload of ``tap`` if entries are sent in batches or reduced."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from sawlog.jax import _compat
from sawlog.jax._logdict.entries import LogdictPart, Slot, settle
from sawlog.jax._logdict.logdict import logdict
from sawlog.jax._transforms.collectors import Keeping, Reducing
from sawlog.jax._transforms.tap_host import EntriesPayload


@dataclasses.dataclass(frozen=True)
class CollectedPayload(EntriesPayload):
    """The static description of collector states that are sent together.

    States are sent unchanged, so that the device computes nothing for entries that it does not send
    yet. ``entry_axes`` is the entry axis of each array.
    """

    entry_axes: tuple[int, ...] = ()

    def _read(self, arrays: list[Any]) -> logdict:
        pairs = zip(arrays, self.entry_axes, strict=True)
        moved = [np.moveaxis(x, axis, 0) if axis else x for x, axis in pairs]
        parts = []
        for slot, (value, steps, filled) in zip(self.slots, self._unflatten(moved), strict=True):
            part = LogdictPart(value, tuple(steps), None, slot)
            mask = _mask(filled, part.first.shape, slot)
            if mask.any():
                settled = settle(dataclasses.replace(part, mask=mask))
                assert settled is not None
                parts.append(settled)
        return logdict._of(parts)


def _mask(filled: Any, shape: tuple[int, ...], slot: Slot) -> np.ndarray:
    """Return the mask of the entries, given the number of entries in each lane."""
    if not slot.stacked:
        return np.asarray(filled > 0)
    order = np.arange(shape[0]).reshape((-1, *(1,) * slot.batch))
    return np.broadcast_to(order < filled, shape[: 1 + slot.batch])


@dataclasses.dataclass(frozen=True)
class Packed:
    """The state of one collector, ready to be sent.

    ``filled`` is the number of entries that it holds, for each lane with a separate state.
    """

    slot: Slot
    value: Any
    steps: Sequence[Any]
    filled: Any
    entry_axis: int


def pack(collector: Keeping | Reducing, state: Any, filled: Any, lanes: int = 0) -> Packed:
    """Pack the state of a collector; each index of the first ``lanes`` axes is sent separately."""
    info = collector.like.info
    if isinstance(collector, Reducing):
        part = collector.finish(state)
        slot = dataclasses.replace(
            part.slot, ndim=part.slot.ndim - lanes, batch=part.slot.batch - lanes, masked=True
        )
        return Packed(slot, part.value, part.steps, filled, 0)
    arrays, count = state["arrays"], len(collector.like.leaves)
    slot = Slot(
        key=info.key,
        steps=info.axes,
        stacked=True,
        ndim=arrays[0].ndim - lanes,
        batch=info.batch - lanes,
        masked=True,
    )
    value = jax.tree.unflatten(info.tree, arrays[:count])
    steps = collector.like.written(arrays[count:])
    return Packed(slot, value, steps, filled, collector.lead_axes - lanes)


def batch_of(packed: Sequence[Packed], lanes: int = 0) -> tuple[CollectedPayload, list[Any]]:
    """Return the static description and the operands, which have ``lanes`` leading axes."""
    triples = [(one.value, tuple(one.steps), one.filled) for one in packed]
    axes: list[int] = []
    for one in packed:
        arrays = len(jax.tree.leaves((one.value, one.steps)))
        axes.extend([one.entry_axis] * arrays + [0])
    leaves, tree = jax.tree.flatten(triples)
    kinds = tuple(map(_compat.key_kind, leaves))
    slots = tuple(one.slot for one in packed)
    return CollectedPayload(tree, slots, kinds, batch=lanes, entry_axes=tuple(axes)), leaves
