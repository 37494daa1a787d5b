"""Payloads: what one host call of ``tap`` brings, described for the host that reads its arrays.

A program sends one log (:class:`LogPayload`), many entries of several names
(:class:`EntriesPayload`), a whole logdict (:class:`LogdictPayload`) or the states of collectors
(:class:`CollectedPayload`). Each knows which axes are lanes of a ``vmap`` around ``tap``, and reads
the arrays of each lane as a logdict.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from sawlog.jax import _compat
from sawlog.jax._core.site import Operands, Site
from sawlog.jax._logdict.entries import LogdictPart, Slot, parts_of_site, settle, stack
from sawlog.jax._logdict.logdict import logdict
from sawlog.jax._transforms.collectors import BufferCollector, ReductionCollector


class Payload:
    """The static description of one host call, with which the host reads its arrays.

    The first ``lanes`` axes are those of a ``vmap`` around ``tap``. If ``has_mask``, the last array
    is a mask. ``key_kinds`` tells which arrays are PRNG keys; these arrive as plain integers.
    ``split`` tells that it has one shard of several, some of which are those of other processes.
    """

    key_kinds: tuple[Any, ...]
    keys: Any
    where: Any
    split: bool

    @property
    def lanes(self) -> int:
        """The number of leading axes that are lanes."""
        raise NotImplementedError

    @property
    def has_mask(self) -> bool:
        """Whether the last array is a mask."""
        raise NotImplementedError

    def without_lanes(self, lanes: int) -> Payload:
        """Return the payload of one lane, without its first ``lanes`` axes."""
        raise NotImplementedError

    def logs(self, arrays: Sequence[Any]) -> Iterator[logdict]:
        """Yield a logdict for each lane that logged."""
        arrays = [np.asarray(array) for array in arrays]
        for lane in np.ndindex(arrays[0].shape[: self.lanes]):
            logs = self._of_lane([array[lane] for array in arrays])
            if logs:
                yield logs

    def _of_lane(self, arrays: list[Any]) -> logdict:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class LogPayload(Payload):
    """The payload of one log: its site, and which of its names are sent."""

    site: Site
    keys: tuple[str, ...]
    inside: int
    key_kinds: tuple[Any, ...]
    split: bool = False

    @property
    def where(self) -> str:
        """The source line of the log."""
        return self.site.where

    @property
    def lanes(self) -> int:
        """The axes that were added after the log was sent."""
        return self.site.batch - self.inside

    @property
    def has_mask(self) -> bool:
        """Whether the log is masked."""
        return self.site.masked

    def without_lanes(self, lanes: int) -> LogPayload:
        """Return the payload of one lane, without its first ``lanes`` axes."""
        site = dataclasses.replace(self.site, batch=self.site.batch - lanes)
        return dataclasses.replace(self, site=site)

    def _of_lane(self, arrays: list[Any]) -> logdict:
        named = self.site.split(arrays)
        mask = named.mask
        if mask is not None and not np.any(mask):
            return logdict()
        if mask is not None and np.all(mask):
            mask = None
        if mask is not None:
            named = named.blanked(_select)
        kinds = iter(self.key_kinds)
        wrapped = [tuple(wrap_keys(x, next(kinds)) for x in leaves) for leaves in named.values]
        named = Operands(wrapped, named.steps, mask)
        parts = [p for p in parts_of_site(self.site, named, self.lanes) if p.slot.key in self.keys]
        return logdict._of(parts)


Send = Callable[..., None]
"""``send(site, operands, **params)`` binds a host call; a mask is the last operand."""


def send_site(
    send: Send, site: Site, operands: Sequence[Any], keys: tuple[str, ...], due: Any = None
) -> None:
    """Bind a host call for one log, made if it is ``due``."""
    params: dict[str, Any] = {"gated": True} if site.conditional else {}
    if due is not None:
        operands = [*operands[: len(operands) - int(site.masked)], due]
        site = dataclasses.replace(site, masked=True)
        params["gated"] = True
    kinds = tuple(map(_compat.key_kind, operands))
    send(site, operands, keys=keys, inside=site.batch, key_kinds=kinds, **params)


@dataclasses.dataclass(frozen=True)
class EntriesPayload(Payload):
    """The payload of many entries that are sent together: values, steps and mask of each name.

    The ``tap`` primitive has it in place of a site, so it has the attributes by which ``vmap`` and
    masks change a site: ``batch``, ``masked``, ``branches`` and ``forward_mode``.
    """

    tree: Any
    slots: tuple[Slot, ...]
    key_kinds: tuple[Any, ...]
    batch: int = 0
    masked: bool = False
    branches: tuple[tuple[int, int], ...] = ()
    forward_mode: bool = False
    split: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """The names that are sent."""
        return tuple(slot.key for slot in self.slots)

    @property
    def where(self) -> str:
        """A placeholder, since the entries come from several source lines."""
        return "several places"

    @property
    def lanes(self) -> int:
        """The number of leading axes, all of which are lanes."""
        return self.batch

    @property
    def has_mask(self) -> bool:
        """Whether the last array says which lanes logged."""
        return self.masked

    def without_lanes(self, lanes: int) -> EntriesPayload:
        """Return the payload of one lane, without its first ``lanes`` axes."""
        return dataclasses.replace(self, batch=self.batch - lanes)

    def _of_lane(self, arrays: list[Any]) -> logdict:
        if self.masked and not arrays.pop():
            return logdict()
        return self._read(arrays)

    def _read(self, arrays: list[Any]) -> logdict:
        """Read the arrays of one lane."""
        parts = []
        for slot, (value, steps, mask) in zip(self.slots, self._unflatten(arrays), strict=True):
            part = settle(stack(LogdictPart(value, tuple(steps), mask, slot)))
            if part is not None and np.shape(part.first)[0]:
                parts.append(part)
        return logdict._of(parts)

    def _unflatten(self, arrays: list[Any]) -> Any:
        leaves = [wrap_keys(x, kind) for x, kind in zip(arrays, self.key_kinds, strict=True)]
        return jax.tree.unflatten(self.tree, leaves)


class LogdictPayload(EntriesPayload):
    """The payload of a whole logdict."""

    def _read(self, arrays: list[Any]) -> logdict:
        logs: logdict = self._unflatten([np.asarray(array) for array in arrays])
        return logs


def _select(mask: Any, x: Any, y: Any) -> Any:
    return np.where(mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim)), x, y)


def wrap_keys(leaf: Any, kind: Any) -> Any:
    """Convert the data of PRNG keys back to keys; they are moved to a device explicitly."""
    if kind is None:
        return leaf
    with jax.transfer_guard_host_to_device("allow"):
        return jax.random.wrap_key_data(leaf, impl=kind)


# -- states of collectors -------------------------------------------------------------------------


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


def pack(
    collector: BufferCollector | ReductionCollector, state: Any, filled: Any, lanes: int = 0
) -> Packed:
    """Pack the state of a collector; each index of the first ``lanes`` axes is sent separately."""
    info = collector.like.info
    if isinstance(collector, ReductionCollector):
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
