"""What ``spool`` carries through a program: the entries of one name, as a pytree.

A stream is either one entry as it was logged, or entries stacked along a leading axis. Four
operations are all that control flow needs: :func:`gather` (one after the other), :func:`over_loop`
(one a iteration), :func:`over_branches` (only one branch runs) and :func:`over_mesh` (one a shard).

Every array of a stream has the shape ``[entries?, *batch, ...]``: the entry axis where
``info.stacked``, then ``info.batch`` axes of ``vmap`` or of a mesh, then the value's own.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import PyTreeDef

from sawlog.errors import LogMismatchError
from sawlog.jax._core import arrays as _arrays
from sawlog.jax._core.site import Site, as_written


@dataclasses.dataclass(frozen=True)
class StreamInfo:
    """The static part of a stream.

    ``mesh`` of the ``batch`` axes, the first ones, are those of a mesh. ``unbounded`` is the source
    line of a loop of unknown length around one of the logs, in a survey. ``steps`` are sorted;
    ``axes`` are the same names in the order in which the first log has them.
    """

    key: str
    tree: PyTreeDef
    steps: tuple[str, ...]
    reduction: Any
    where: str
    axes: tuple[str, ...] = ()
    batch: int = 0
    stacked: bool = False
    branches: tuple[tuple[int, int], ...] = ()
    mesh: int = 0
    unbounded: str = ""


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["leaves", "steps", "mask"],
    meta_fields=["info"],
)
@dataclasses.dataclass(frozen=True)
class Stream:
    """The entries logged under one name: leaves, one array for each step axis, a mask or None."""

    leaves: tuple[Any, ...]
    steps: tuple[Any, ...]
    mask: Any
    info: StreamInfo

    @property
    def size(self) -> int:
        """How many entries there is room for."""
        return int(self.leaves[0].shape[0]) if self.info.stacked else 1

    def written(self, steps: Sequence[Any] | None = None) -> tuple[Any, ...]:
        """The arrays of the step axes, or ``steps`` in place of them, as the log has them."""
        return as_written(self.info.axes, self.info.steps, self.steps if steps is None else steps)

    @property
    def lanes(self) -> tuple[int, ...]:
        """The sizes of the axes of ``vmap``."""
        start = int(self.info.stacked)
        return tuple(self.leaves[0].shape[start : start + self.info.batch])

    def map(self, fun: Callable[[Any], Any], **changes: Any) -> Stream:
        """Apply ``fun`` to every array, the mask included."""
        return Stream(
            tuple(map(fun, self.leaves)),
            tuple(map(fun, self.steps)),
            None if self.mask is None else fun(self.mask),
            dataclasses.replace(self.info, **changes),
        )

    def stacked(self) -> Stream:
        """The same entries, with the entry axis."""
        return self if self.info.stacked else self.map(lambda x: x[None], stacked=True)

    def full_mask(self) -> Any:
        """The mask, made if there is none."""
        if self.mask is not None:
            return self.mask
        return _arrays.ones(self.mask_type())

    def mask_type(self) -> _arrays.Type:
        """The type of a mask: the entry axis, and those of ``vmap`` or of a mesh."""
        return _arrays.leading(self.leaves[0], int(self.info.stacked) + self.info.batch)


Streams = tuple[Stream, ...]


def from_site(site: Site, operands: Sequence[Any], keys: Sequence[str]) -> Streams:
    """The streams that one call of ``log`` starts, for the chosen keys."""
    named = site.split(operands).blanked(_arrays.select)
    return tuple(
        Stream(
            leaves,
            tuple(named.steps.values()),
            named.mask,
            StreamInfo(
                key,
                tree,
                site.steps,
                site.reduction,
                site.where,
                site.axes,
                site.batch,
                branches=site.branches,
            ),
        )
        for key, tree, leaves in zip(site.keys, site.trees, named.values, strict=True)
        if key in keys
    )


def gather(streams: Sequence[Stream]) -> Streams:
    """One stream for each name: the entries of equal names, one after the other."""
    by_key: dict[str, list[Stream]] = {}
    for stream in streams:
        by_key.setdefault(stream.info.key, []).append(stream.map(_arrays.in_context))
    return tuple(_sequence(group, 0) for group in by_key.values())


def _sequence(group: Sequence[Stream], depth: int) -> Stream:
    """Streams of one name in program order, as one.

    Where a lane runs only one of several (see ``Site.branches``), they take the same places.
    """
    parts: list[Stream] = []
    for cond, members in itertools.groupby(group, lambda s: _branch(s, depth)[0]):
        if cond is None:
            parts.extend(members)
            continue
        by_branch: dict[int, list[Stream]] = {}
        for stream in members:
            by_branch.setdefault(_branch(stream, depth)[1], []).append(stream)
        alternatives = [_sequence(streams, depth + 1) for streams in by_branch.values()]
        parts.append(_either(alternatives, depth) if len(alternatives) > 1 else alternatives[0])
    return _concatenate(parts)


def _branch(stream: Stream, depth: int) -> tuple[int | None, int]:
    branches = stream.info.branches
    return branches[depth] if depth < len(branches) else (None, 0)


def _either(alternatives: Sequence[Stream], depth: int) -> Stream:
    """Streams of which each lane logs only one, in one place for all of them."""
    slot = plan_branches([(stream,) for stream in alternatives])[0]
    first, *rest = (_fit(dataclasses.replace(slot, masked=True), s) for s in alternatives)
    for other in rest:
        chosen = other.mask

        def pick(x: Any, y: Any, chosen: Any = chosen) -> Any:
            return _arrays.select(chosen, y, x)

        first = Stream(
            tuple(map(pick, first.leaves, other.leaves)),
            tuple(map(pick, first.steps, other.steps)),
            first.mask | other.mask,
            first.info,
        )
    info = dataclasses.replace(first.info, branches=first.info.branches[:depth])
    return dataclasses.replace(first, info=info)


def _concatenate(group: list[Stream]) -> Stream:
    if len(group) == 1:
        return group[0]
    first, *rest = group = _of_equal_lanes(group)
    for other in rest:
        check_alike(first, other)
    parts = [stream.stacked() for stream in group]
    masked = any(part.mask is not None for part in parts)
    join = _arrays.concatenate
    shared = _common_branches([stream.info.branches for stream in group])
    return Stream(
        tuple(join(leaves) for leaves in zip(*(p.leaves for p in parts), strict=True)),
        tuple(join(steps) for steps in zip(*(p.steps for p in parts), strict=True)),
        join([p.full_mask() for p in parts]) if masked else None,
        dataclasses.replace(first.info, stacked=True, branches=shared, unbounded=_unbounded(group)),
    )


def _of_equal_lanes(group: list[Stream]) -> list[Stream]:
    """Streams with as many lanes as the widest has, along each axis of ``vmap``.

    A ``lax.map`` in batches has fewer lanes in what is left over at the end.
    """
    lanes = [stream.lanes for stream in group]
    if len(set(lanes)) == 1 or len(set(map(len, lanes))) > 1 or any(s.info.mesh for s in group):
        return group
    widest = tuple(map(max, zip(*lanes, strict=True)))
    return [widened(stream, widest) for stream in group]


def widened(stream: Stream, lanes: tuple[int, ...]) -> Stream:
    """``stream`` with so many lanes along each axis of ``vmap``; the new ones log nothing."""
    if stream.lanes == lanes:
        return stream
    stream = dataclasses.replace(stream, mask=stream.full_mask())
    return stream.map(lambda x: _padded(x, lanes, int(stream.info.stacked)))


def widened_site(site: Site, operands: Sequence[Any], like: Stream) -> tuple[Site, Sequence[Any]]:
    """A log with as many lanes as ``like`` has, of which the new ones log nothing."""
    lanes = tuple(operands[0].shape[: site.batch])
    if lanes == like.lanes or len(lanes) != len(like.lanes) or like.info.mesh:
        return site, operands
    if not site.masked:
        site = dataclasses.replace(site, masked=True)
        operands = [*operands, _arrays.ones(_arrays.leading(operands[0], site.batch))]
    return site, [_padded(x, like.lanes, 0) for x in operands]


def _padded(x: Any, lanes: tuple[int, ...], start: int) -> Any:
    for axis, size in enumerate(lanes, start):
        missing = size - x.shape[axis]
        if missing:
            x = _arrays.concatenate([x, _arrays.zeros(_arrays.resized(x, axis, missing))], axis)
    return x


def _unbounded(group: Sequence[Stream]) -> str:
    return next((stream.info.unbounded for stream in group if stream.info.unbounded), "")


def _common_branches(paths: Sequence[tuple[tuple[int, int], ...]]) -> tuple[tuple[int, int], ...]:
    shared = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False))
    return tuple(level[0] for level in shared)


def over_loop(stream: Stream, *, reverse: bool) -> Stream:
    """``stream`` as a scan stacked it, one slice an iteration, in the order of execution."""
    if reverse:
        stream = stream.map(lambda x: lax.rev(x, (0,)) if _arrays.is_plain(x) else jnp.flip(x, 0))
    if not stream.info.stacked:
        return stream.map(lambda x: x, stacked=True)
    return stream.map(lambda x: x.reshape((x.shape[0] * x.shape[1], *x.shape[2:])))


def over_mesh(stream: Stream, axes: int) -> Stream:
    """``stream`` inside a shard, with ``axes`` axes of length one for the mesh."""
    at = int(stream.info.stacked)
    where = tuple(range(at, at + axes))
    return stream.map(
        lambda x: jnp.expand_dims(x, where),
        batch=stream.info.batch + axes,
        mesh=stream.info.mesh + axes,
    )


@dataclasses.dataclass(frozen=True)
class BranchSlot:
    """What every branch must return for one name: the type of a stream.

    ``like`` has the types of one entry.
    """

    like: Stream
    stacked: bool
    room: int
    masked: bool

    @property
    def info(self) -> StreamInfo:
        """The static part of the streams that fit."""
        return dataclasses.replace(self.like.info, stacked=self.stacked)

    def types(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The types of the leaves and of the steps of the streams that fit."""

        def of(one: Any) -> Any:
            return _arrays.rows(self.room, one) if self.stacked else one

        return tuple(map(of, self.like.leaves)), tuple(map(of, self.like.steps))


def plan_branches(branches: Sequence[Streams]) -> tuple[BranchSlot, ...]:
    """Find streams that every branch can return, given what each one logs (types suffice).

    What a branch does not log will be filled in and masked; where all of them log a name equally
    often there is no mask.
    """
    groups: dict[str, list[Stream]] = {}
    for streams in branches:
        for stream in streams:
            groups.setdefault(stream.info.key, []).append(stream)
    slots = []
    for group in groups.values():
        for other in group[1:]:
            check_alike(group[0], other)
        room = max(stream.size for stream in group)
        uneven = any(stream.mask is not None or stream.size != room for stream in group)
        slots.append(
            BranchSlot(
                like=_one_entry(group),
                stacked=any(stream.info.stacked for stream in group),
                room=room,
                masked=uneven or len(group) < len(branches),
            )
        )
    return tuple(slots)


def _one_entry(group: Sequence[Stream]) -> Stream:
    """The types of one entry that fits all of these streams."""
    entries = [entry_type(stream) for stream in group]

    def fitting(arrays: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
        return tuple(map(_arrays.common_type, zip(*arrays, strict=True)))

    info = dataclasses.replace(entries[0].info, unbounded=_unbounded(group))
    leaves, steps = fitting([e.leaves for e in entries]), fitting([e.steps for e in entries])
    return Stream(leaves, steps, None, info)


def entry_type(stream: Stream) -> Stream:
    """A stream of one entry, with types instead of values."""
    at = int(stream.info.stacked)
    return stream.map(lambda x: _arrays.inner(x, at), stacked=False)


def entry_types(streams: Sequence[Stream]) -> list[Stream]:
    """The entry type of each stream; those that name no mesh are on that of the others."""
    leaves, tree = jax.tree.flatten([entry_type(stream) for stream in streams])
    return list(jax.tree.unflatten(tree, _arrays.on_one_mesh(leaves)))


def over_branches(slots: Sequence[BranchSlot], streams: Streams) -> Streams:
    """The streams of one branch, made to fit the plan for all of them."""
    present = {stream.info.key: stream for stream in streams}
    return tuple(
        _fit(slot, present[slot.info.key]) if slot.info.key in present else _absent(slot)
        for slot in slots
    )


def _fit(slot: BranchSlot, stream: Stream) -> Stream:
    if slot.masked:
        stream = dataclasses.replace(stream, mask=stream.full_mask())
    if slot.stacked:
        stream = stream.stacked()
        missing = slot.room - stream.size
        if missing:
            stream = stream.map(lambda x: _lengthen(x, missing))
    leaves, steps = slot.types()
    return Stream(
        tuple(map(_arrays.reshard, stream.leaves, leaves)),
        tuple(map(_arrays.reshard, stream.steps, steps)),
        stream.mask,
        slot.info,
    )


def _lengthen(x: Any, missing: int) -> Any:
    return _arrays.concatenate([x, _arrays.zeros(_arrays.resized(x, 0, missing))])


def _absent(slot: BranchSlot) -> Stream:
    """As many entries as there is room for, none of which was logged."""
    leaves, steps = (tuple(map(_arrays.zeros, types)) for types in slot.types())
    absent = Stream(leaves, steps, None, slot.info)
    return dataclasses.replace(absent, mask=_arrays.zeros(absent.mask_type()))


def check_alike(first: Stream, other: Stream) -> None:
    """Refuse to put entries together that do not fit, naming both places.

    Raises:
        LogMismatchError: the structure, shapes, dtypes, steps or mapped axes differ.
    """
    checks = (
        ("pytree structure", str(first.info.tree), str(other.info.tree)),
        ("step axes", _steps_text(first), _steps_text(other)),
        ("shape and dtype", _types_text(first), _types_text(other)),
        ("reduction", repr(first.info.reduction), repr(other.info.reduction)),
    )
    for what, one, two in checks:
        if one != two:
            raise LogMismatchError(
                f"{first.info.key!r} is logged in two ways that cannot share one name: the {what} "
                f"is {one} at {first.info.where} and {two} at {other.info.where}. "
                "Hint: give one of them another name, or log both alike."
            )


def _steps_text(stream: Stream) -> str:
    return "(" + ", ".join(sorted(stream.info.steps)) + ")" if stream.info.steps else "none"


def _types_text(stream: Stream) -> str:
    start = int(stream.info.stacked)
    texts = [f"{x.dtype}[{','.join(map(str, x.shape[start:]))}]" for x in stream.leaves]
    steps = [f"{x.dtype}[{','.join(map(str, x.shape[start:]))}]" for x in stream.steps]
    return ", ".join(texts) + (f" with steps {', '.join(steps)}" if steps else "")
