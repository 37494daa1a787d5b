"""Streams of branches: every branch of a ``cond`` must return the same types.

``plan_branches`` finds one :class:`BranchSlot` for each name that any branch logs;
``over_branches`` makes the streams of one branch fit the slots. Entries that a branch does not log
are filled with zeros and masked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from sawlog.jax._core import arrays
from sawlog.jax._core.stream import (
    Stream,
    StreamInfo,
    Streams,
    check_alike,
    entry_type,
    first_unbounded,
)


@dataclasses.dataclass(frozen=True)
class BranchSlot:
    """The type of stream that every branch must return for one name.

    Attributes:
        like: The types of one entry.
        stacked: Whether the stream has an entry axis.
        size: The number of entries.
        masked: Whether the stream has a mask.
    """

    like: Stream
    stacked: bool
    size: int
    masked: bool

    @property
    def info(self) -> StreamInfo:
        """The static part of the streams that fit."""
        return dataclasses.replace(self.like.info, stacked=self.stacked)

    def types(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return the types of the leaves and of the steps of the streams that fit."""

        def of(one: Any) -> Any:
            return arrays.rows(self.size, one) if self.stacked else one

        return tuple(map(of, self.like.leaves)), tuple(map(of, self.like.steps))

    def fit(self, stream: Stream) -> Stream:
        """Return a stream of this slot's type: with a mask, padded and resharded as needed."""
        if self.masked:
            stream = dataclasses.replace(stream, mask=stream.full_mask())
        if self.stacked:
            stream = stream.stacked()
            missing = self.size - stream.size
            if missing:
                stream = stream.map(lambda x: _lengthen(x, missing))
        leaves, steps = self.types()
        return Stream(
            tuple(map(arrays.reshard, stream.leaves, leaves)),
            tuple(map(arrays.reshard, stream.steps, steps)),
            stream.mask,
            self.info,
        )

    def empty(self) -> Stream:
        """Return a stream of this slot's type in which every entry is masked."""
        leaves, steps = (tuple(map(arrays.zeros, types)) for types in self.types())
        absent = Stream(leaves, steps, None, self.info)
        return dataclasses.replace(absent, mask=arrays.zeros(absent.mask_type()))


def plan_branches(branches: Sequence[Streams]) -> tuple[BranchSlot, ...]:
    """Find the streams that every branch can return, given what each one logs (types suffice).

    A name needs no mask if all branches log it equally often.

    Raises:
        LogMismatchError: two branches log one name with different types.
    """
    groups: dict[str, list[Stream]] = {}
    for streams in branches:
        for stream in streams:
            groups.setdefault(stream.info.key, []).append(stream)
    slots = []
    for group in groups.values():
        for other in group[1:]:
            check_alike(group[0], other)
        size = max(stream.size for stream in group)
        uneven = any(stream.mask is not None or stream.size != size for stream in group)
        slots.append(
            BranchSlot(
                like=_common_entry(group),
                stacked=any(stream.info.stacked for stream in group),
                size=size,
                masked=uneven or len(group) < len(branches),
            )
        )
    return tuple(slots)


def over_branches(slots: Sequence[BranchSlot], streams: Streams) -> Streams:
    """Return the streams of one branch in the types that were planned for all branches."""
    present = {stream.info.key: stream for stream in streams}
    return tuple(
        slot.fit(present[slot.info.key]) if slot.info.key in present else slot.empty()
        for slot in slots
    )


def _common_entry(group: Sequence[Stream]) -> Stream:
    """Return the types of one entry that fits all of these streams."""
    entries = [entry_type(stream) for stream in group]

    def fitting(types: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
        return tuple(map(arrays.common_type, zip(*types, strict=True)))

    info = dataclasses.replace(entries[0].info, unbounded=first_unbounded(group))
    leaves, steps = fitting([e.leaves for e in entries]), fitting([e.steps for e in entries])
    return Stream(leaves, steps, None, info)


def _lengthen(x: Any, missing: int) -> Any:
    return arrays.concatenate([x, arrays.zeros(arrays.resized(x, 0, missing))])
