"""Collectors: what takes the entries of one name where they cannot all be returned.

A collector has a state of fixed size. Every log of the name updates it, wherever in the program;
the walk carries it there and back. :class:`Reducing` keeps one value, :class:`Keeping` a buffer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sawlog._names import NOTHING, ByName
from sawlog.errors import ArgumentError, UnsupportedLoopError
from sawlog.jax import _compat
from sawlog.jax._core import arrays as _arrays
from sawlog.jax._core.stream import Stream, entry_types
from sawlog.jax._logdict.entries import Part, Slot
from sawlog.jax._transforms.reductions import Reduction, begin, for_steps, reduction_of

State = Any


@dataclasses.dataclass(frozen=True)
class Limits:
    """How much of each name is kept."""

    interval: ByName = NOTHING
    window: int | None = None
    capacity: ByName = NOTHING
    keep: str = "first"

    def interval_of(self, key: str) -> int:
        """Every how many-th entry of a name is kept."""
        return self.interval.of(key) or 1


def read_limits(interval: Any, window: Any, capacity: Any, keep: str) -> Limits:
    """Check the options of ``spool`` that bound its memory.

    Raises:
        ArgumentError: one of them is not a whole number from 1 on.
    """
    check_count("window", window)
    if keep not in ("first", "last"):
        raise ArgumentError(f'keep must be "first" or "last", got {keep!r}.')
    return Limits(counts("interval", interval), window, counts("capacity", capacity), keep)


def counts(option: str, given: Any) -> ByName:
    """Read an option that is a whole number, or a dict of those by name.

    Raises:
        ArgumentError: naming what is no whole number from 1 on.
    """
    by_name = ByName.read(given)
    check_count(option, by_name.overall)
    for name, number in by_name.named:
        check_count(name, number)
    return by_name


def check_count(name: str, number: Any) -> None:
    """Refuse a limit that is no whole number from 1 on.

    Raises:
        ArgumentError: naming the option.
    """
    whole = isinstance(number, (int, np.integer)) and not isinstance(number, bool)
    if number is not None and not (whole and number >= 1):
        raise ArgumentError(f"{name} must be a whole number from 1 on, got {number!r}.")


@dataclasses.dataclass(frozen=True)
class Collector:
    """Takes the entries of one name; ``like`` is their type, as a survey of the program found it.

    ``like`` has one entry; its arrays have ``like.info.batch`` leading axes, the first
    ``like.info.mesh`` of them those of a mesh.
    """

    like: Stream
    size: int
    interval: int

    @property
    def masked(self) -> bool:
        """Whether lanes may log at different times."""
        return self.like.mask is not None

    @property
    def certain(self) -> bool:
        """Whether exactly ``size`` entries are logged, whatever happens."""
        return self.like.mask is None and not self.like.info.unbounded

    @property
    def lead_axes(self) -> int:
        """How many of the leading axes have separate states: here, all of them."""
        return self.like.info.batch

    def start(self) -> State:
        """The state before anything was logged."""
        axes, like = self.lead_axes, self.like
        blank = like.map(lambda x: _arrays.zeros(_arrays.inner(x, axes)))
        one = self.init(list(blank.leaves), list(blank.steps))
        lead = _arrays.leading(like.leaves[0], axes)

        def lanes(x: Any) -> Any:
            return _arrays.broadcast(x, _arrays.under(lead, x), first=axes)

        return jax.tree.map(lanes, one)

    def update(
        self, state: State, leaves: Sequence[Any], steps: Sequence[Any], mask: Any, batch: int
    ) -> State:
        """The state after one log, whose arrays have ``batch`` leading axes."""
        fun: Callable[..., State] = self._step
        for _ in range(batch if self.lead_axes > self.like.info.mesh else 0):
            fun = jax.vmap(fun)
        like = self.like
        leaves = self._sharded(state, leaves, like.leaves, batch)
        steps = self._sharded(state, steps, like.steps, batch)
        if mask is not None and self.masked:
            (mask,) = self._sharded(state, [mask], [like.mask], batch)
        with _arrays.mesh_context(state):
            return fun(state, leaves, steps, mask)

    def _sharded(
        self, state: State, arrays: Sequence[Any], types: Sequence[Any], batch: int
    ) -> tuple[Any, ...]:
        """What is logged here, sharded as the state is. Inside a shard it has no mesh axes."""
        outside = self.like.info.batch - batch
        pairs = zip(arrays, types, strict=False)
        return tuple(_arrays.reshard(x, _arrays.beside(state, t, outside)) for x, t in pairs)

    def _step(self, state: State, leaves: Any, steps: Any, mask: Any) -> State:
        """One entry of one lane."""
        here = jnp.ones((), bool) if mask is None else mask
        taken = here if self.interval == 1 else here & (state["count"] % self.interval == 0)
        always = mask is None and self.interval == 1
        inner = self.take(state, leaves, steps, None if always else taken)
        count = state["count"] + here.astype(np.int32)
        return {**inner, "count": _like(count, state["count"])}

    def init(self, leaves: list[Any], steps: list[Any]) -> State:
        """The state of one lane before anything was logged."""
        raise AssertionError

    def take(self, state: State, leaves: Any, steps: Any, taken: Any) -> State:
        """The state of one lane with one more entry, if ``taken`` (None: certainly)."""
        raise AssertionError

    def finish(self, state: State) -> Part:
        """What the logdict holds."""
        raise AssertionError


@dataclasses.dataclass(frozen=True)
class Reducing(Collector):
    """Keeps what a reduction needs."""

    reduction: Reduction

    def init(self, leaves: list[Any], steps: list[Any]) -> State:
        """A count and the state of the reduction, for the value and for each step."""
        value = jax.tree.unflatten(self.like.info.tree, leaves)
        step = for_steps(self.reduction)
        return _strong(
            {
                "count": jnp.zeros((), np.int32),
                "value": begin(self.reduction, value),
                "steps": [begin(step, x) for x in steps],
            }
        )

    def take(self, state: State, leaves: Any, steps: Any, taken: Any) -> State:
        """Update the reductions."""
        value = jax.tree.unflatten(self.like.info.tree, leaves)
        step = for_steps(self.reduction)
        old = {"value": state["value"], "steps": state["steps"]}
        new = {
            "value": self.reduction.update(state["value"], value),
            "steps": [step.update(s, x) for s, x in zip(state["steps"], steps, strict=True)],
        }
        new = self._same_types(old, new)
        if taken is not None:
            new = jax.tree.map(lambda a, b: _arrays.select(taken, a, b), new, old)
        return {**state, **new}

    def _same_types(self, old: Any, new: Any) -> Any:
        shapes = [jax.tree.map(jnp.shape, tree) for tree in (old, new)]
        if shapes[0] != shapes[1] or not all(jax.tree.leaves(jax.tree.map(_fits, new, old))):
            raise ArgumentError(
                f"The state of the reduction {self.reduction.name!r} changes its structure, shapes "
                f"or dtypes when {self.like.info.key!r} is logged at {self.like.info.where}. "
                "Hint: update(state, value) must return a state just like the one it got."
            )
        return jax.tree.map(_like, new, old)

    def finish(self, state: State) -> Part:
        """One entry for each lane, masked where there may be none."""
        value, step = self.reduction.finish, for_steps(self.reduction).finish
        for _ in range(self.lead_axes):
            value, step = jax.vmap(value), jax.vmap(step)
        info = self.like.info
        result = value(state["value"])
        mask = None if self.certain and self.size else state["count"] > 0
        slot = Slot(
            key=info.key,
            steps=info.axes,
            stacked=False,
            ndim=np.ndim(jax.tree.leaves(result)[0]),
            batch=info.batch,
            masked=mask is not None,
            reduction=self.reduction.name,
        )
        steps = self.like.written(list(map(step, state["steps"])))
        return Part(result, steps, mask, slot)


@dataclasses.dataclass(frozen=True)
class Keeping(Collector):
    """Keeps some entries: the first ones, or in a ring the last ones."""

    room: int
    ring: bool

    @property
    def lead_axes(self) -> int:
        """Lanes have separate states only where they log at different times."""
        return self.like.info.batch if self.like.mask is not None else self.like.info.mesh

    @property
    def stored(self) -> int:
        """How many entries would be stored if there were room."""
        return -(-self.size // self.interval)

    def init(self, leaves: list[Any], steps: list[Any]) -> State:
        """A count and empty buffers."""
        return {
            "count": jnp.zeros((), np.int32),
            "arrays": [_arrays.zeros(_arrays.rows(self.room, x)) for x in (*leaves, *steps)],
        }

    def take(self, state: State, leaves: Any, steps: Any, taken: Any) -> State:
        """Write at the next place."""
        place = state["count"] // self.interval
        fits = self.ring or (self.certain and self.stored <= self.room)
        if self.ring:
            place = place % self.room
        elif not fits:
            here = jnp.ones((), bool) if taken is None else taken
            taken = here & (place < self.room)

        def write(buffer: Any, x: Any) -> Any:
            if taken is not None:
                old = lax.dynamic_index_in_dim(buffer, place, keepdims=False)
                x = _arrays.select(taken, x, old)
            return lax.dynamic_update_index_in_dim(buffer, x, place, 0)

        entry = (*leaves, *steps)
        return {
            **state,
            "arrays": [write(b, x) for b, x in zip(state["arrays"], entry, strict=True)],
        }

    def finish(self, state: State) -> Part:
        """The buffers in order, masked where they were not filled."""
        fun: Callable[..., Any] = self._ordered
        for _ in range(self.lead_axes):
            fun = jax.vmap(fun)
        arrays, mask, dropped = fun(state)
        info, axes = self.like.info, self.lead_axes
        arrays = [jnp.moveaxis(x, axes, 0) for x in arrays]
        leaves, rest = arrays[: len(self.like.leaves)], arrays[len(self.like.leaves) :]
        full = self.certain and self.stored >= self.room
        if full:
            mask = None
        else:
            mask = jnp.moveaxis(mask, axes, 0)
            mask = _arrays.broadcast(mask, _arrays.leading(leaves[0], 1 + info.batch))
        slot = Slot(
            key=info.key,
            steps=info.axes,
            stacked=True,
            ndim=leaves[0].ndim,
            batch=info.batch,
            masked=mask is not None,
            counted=True,
        )
        steps = self.like.written(rest)
        return Part(jax.tree.unflatten(info.tree, leaves), steps, mask, slot, dropped)

    def _ordered(self, state: State) -> tuple[list[Any], Any, Any]:
        stored = -(-state["count"] // self.interval)
        kept = jnp.minimum(stored, self.room)
        arrays = state["arrays"]
        if self.ring:
            start = jnp.where(stored > self.room, stored % self.room, 0)
            order = (start + jnp.arange(self.room)) % self.room
            arrays = [_arrays.take_rows(x, order) for x in arrays]
        return arrays, jnp.arange(self.room) < kept, stored - kept


def _strong(state: State) -> State:
    """Arrays whose types do not change when they are added to."""
    return jax.tree.map(lambda x: _like(x, jnp.asarray(x)), state)


def _fits(new: Any, old: Any) -> bool:
    """Whether a new state can take the place of an old one without losing anything."""
    return jnp.result_type(new) == old.dtype or (
        _compat.is_weak(new) and jnp.promote_types(jnp.result_type(new), old.dtype) == old.dtype
    )


def _like(new: Any, old: Any) -> Any:
    """``new`` with the exact type of ``old``, as a loop's carry must have it."""
    new = jnp.asarray(new)
    if new.dtype != old.dtype or _compat.is_weak(new):
        new = lax.convert_element_type(new, old.dtype)
    new = _arrays.reshard(new, old)
    return _compat.make_varying(new, _compat.varying_axes(old))


def plan(
    types: Sequence[Stream], modes: Callable[[Stream], Any], limits: Limits
) -> dict[str, Collector]:
    """Which names need a collector, given the types of all streams of a program.

    Raises:
        UnsupportedLoopError: a name is logged in a loop of unknown length, and nothing bounds it.
    """
    found = {}
    for stream, like in zip(types, entry_types(types), strict=True):
        collector = _collector(stream, like, reduction_of(modes(stream)), limits)
        if collector is not None:
            found[stream.info.key] = collector
    return found


def _collector(
    stream: Stream, like: Stream, reduction: Reduction | None, limits: Limits
) -> Collector | None:
    info, size = stream.info, stream.size
    interval = limits.interval_of(info.key)
    common: dict[str, Any] = {"like": like, "size": size, "interval": interval}
    if reduction is not None and limits.window is None:
        return Reducing(**common, reduction=reduction)
    if not info.stacked and not info.unbounded:
        return None
    stored = -(-size // interval)
    room, ring = limits.window, True
    if room is None:
        room, ring = limits.capacity.of(info.key), limits.keep == "last"
        if room is None and info.unbounded:
            raise_unknown_length(info.unbounded, [info.where])
        if room is not None and not info.unbounded and not limits.capacity.names_it(info.key):
            room = None  # one capacity for all is meant for what has no length of its own
    if info.unbounded:
        assert room is not None
        return Keeping(**common, room=room, ring=ring)
    if room is None and interval == 1:
        return None
    room = stored if room is None else min(room, stored)
    if not room:
        return None
    return Keeping(**common, room=room, ring=ring and room < stored)


def raise_unknown_length(loop: str, sites: Sequence[str]) -> None:
    """Say that a loop has no room for its logs, and what to do.

    Raises:
        UnsupportedLoopError: always.
    """
    raise UnsupportedLoopError(
        f"There is a log inside the loop at {loop}, and how often that loop runs is not known when "
        "the program is compiled, so spool cannot make room for all entries. The log stands at "
        f"{', '.join(dict.fromkeys(sites))}. Hint: say how many to keep, as in "
        'spool(f, capacity=1000, keep="last"), or reduce them, as in spool(f, reduce="mean"); '
        "sawlog.tap streams them, and argnames= leaves them out."
    )
