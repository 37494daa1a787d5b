"""Gather streams: the entries of equal names, one after the other in program order."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from sawlog.jax._core import arrays
from sawlog.jax._core.branch_slots import plan_branches
from sawlog.jax._core.stream import Stream, Streams, check_alike, first_unbounded, widened


def gather(streams: Sequence[Stream]) -> Streams:
    """Return one stream for each name, with the entries in program order.

    Raises:
        LogMismatchError: one name is logged with different types.
    """
    by_key: dict[str, list[Stream]] = {}
    for stream in streams:
        by_key.setdefault(stream.info.key, []).append(stream.map(arrays.in_context))
    return tuple(_sequence(group, 0) for group in by_key.values())


def _sequence(group: Sequence[Stream], depth: int) -> Stream:
    """Join streams of one name, given in program order.

    Streams of which a lane logs only one (see ``Site.branches``) share their places.
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
        parts.append(_overlay(alternatives, depth) if len(alternatives) > 1 else alternatives[0])
    return _concatenate(parts)


def _branch(stream: Stream, depth: int) -> tuple[int | None, int]:
    branches = stream.info.branches
    return branches[depth] if depth < len(branches) else (None, 0)


def _overlay(alternatives: Sequence[Stream], depth: int) -> Stream:
    """Join streams of which each lane logs only one, so that all take the same places."""
    slot = plan_branches([(stream,) for stream in alternatives])[0]
    slot = dataclasses.replace(slot, masked=True)
    first, *rest = map(slot.fit, alternatives)
    for other in rest:
        chosen = other.mask

        def pick(x: Any, y: Any, chosen: Any = chosen) -> Any:
            return arrays.select(chosen, y, x)

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
    first, *rest = group = _with_equal_lanes(group)
    for other in rest:
        check_alike(first, other)
    parts = [stream.stacked() for stream in group]
    masked = any(part.mask is not None for part in parts)
    join = arrays.concatenate
    shared = _common_branches([stream.info.branches for stream in group])
    info = dataclasses.replace(
        first.info, stacked=True, branches=shared, unbounded=first_unbounded(group)
    )
    return Stream(
        tuple(join(leaves) for leaves in zip(*(p.leaves for p in parts), strict=True)),
        tuple(join(steps) for steps in zip(*(p.steps for p in parts), strict=True)),
        join([p.full_mask() for p in parts]) if masked else None,
        info,
    )


def _with_equal_lanes(group: list[Stream]) -> list[Stream]:
    """Pad streams to the number of lanes of the widest, along each axis of ``vmap``.

    A ``lax.map`` with ``batch_size`` has fewer lanes in its remainder.
    """
    lanes = [stream.lanes for stream in group]
    meshes = {stream.lanes[: stream.info.mesh] for stream in group}
    if len(set(lanes)) == 1 or len(set(map(len, lanes))) > 1 or len(meshes) > 1:
        return group
    widest = tuple(map(max, zip(*lanes, strict=True)))
    return [widened(stream, widest) for stream in group]


def _common_branches(paths: Sequence[tuple[tuple[int, int], ...]]) -> tuple[tuple[int, int], ...]:
    shared = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False))
    return tuple(level[0] for level in shared)
