"""Collectors: states of fixed size for names whose entries cannot all be returned.

Every log of the name updates the state, wherever it is in the program; the interpreter carries the
state there and back. :class:`ReductionCollector` keeps one value, and
:class:`BufferCollector` a buffer.
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
from sawlog._validate import one_of, optional, positive_integer
from sawlog.errors import ArgumentError
from sawlog.jax import _compat
from sawlog.jax._core import arrays
from sawlog.jax._core.reductions import Reduction, begin, for_steps, reduction_of
from sawlog.jax._core.registry import raise_unknown_length
from sawlog.jax._core.stream import Stream, entry_types
from sawlog.jax._logdict.entries import LogdictPart, Slot

State = Any


@dataclasses.dataclass(frozen=True)
class Limits:
    """The options of ``spool`` that limit how many entries of each name are kept."""

    interval: ByName = NOTHING
    window: int | None = None
    capacity: ByName = NOTHING
    keep: str = "first"

    def interval_of(self, key: str) -> int:
        """Return n, where every n-th entry of a name is kept."""
        return self.interval.of(key) or 1


def read_limits(interval: Any, window: Any, capacity: Any, keep: str) -> Limits:
    """Check the options of ``spool`` that bound its memory.

    Raises:
        ArgumentError: a number is not a positive integer, or ``keep`` is unknown.
    """
    window = optional(positive_integer, "window", window)
    one_of("keep", keep, ("first", "last"))
    return Limits(counts("interval", interval), window, counts("capacity", capacity), keep)


def counts(option: str, given: Any) -> ByName:
    """Read an option that is a positive integer, or a dict of those by name.

    Raises:
        ArgumentError: a number is not a positive integer.
    """
    read = ByName.read(given)
    named = [
        (name, optional(positive_integer, f"{option}[{name!r}]", number))
        for name, number in read.named
    ]
    return ByName(optional(positive_integer, option, read.overall), tuple(named))


@dataclasses.dataclass(frozen=True)
class Collector:
    """Collect the entries of one name.

    ``like`` is the type of one entry, as a survey of the program found it. Its arrays have
    ``like.info.batch`` leading axes, of which the first ``like.info.mesh`` are mesh axes. ``size``
    is the number of entries that the program logs at most.
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
        """Whether the program always logs exactly ``size`` entries."""
        return self.like.mask is None and not self.like.info.unbounded

    @property
    def lead_axes(self) -> int:
        """The number of leading axes that have separate states: here, all of them."""
        return self.like.info.batch

    def start(self) -> State:
        """Return the initial state."""
        axes, like = self.lead_axes, self.like
        blank = like.map(lambda x: arrays.zeros(arrays.inner(x, axes)))
        one = self.init(list(blank.leaves), list(blank.steps))
        lead = arrays.leading(like.leaves[0], axes)

        def lanes(x: Any) -> Any:
            return arrays.broadcast(x, arrays.under(lead, x), first=axes)

        return jax.tree.map(lanes, one)

    def update(
        self, state: State, leaves: Sequence[Any], steps: Sequence[Any], mask: Any, batch: int
    ) -> State:
        """Return the state after one log, whose arrays have ``batch`` leading axes."""
        fun: Callable[..., State] = self._step
        for _ in range(batch if self.lead_axes > self.like.info.mesh else 0):
            fun = jax.vmap(fun)
        like = self.like
        leaves = self._sharded(state, leaves, like.leaves, batch)
        steps = self._sharded(state, steps, like.steps, batch)
        if mask is not None and self.masked:
            (mask,) = self._sharded(state, [mask], [like.mask], batch)
        with arrays.mesh_context(state):
            return fun(state, leaves, steps, mask)

    def _sharded(
        self, state: State, logged: Sequence[Any], types: Sequence[Any], batch: int
    ) -> tuple[Any, ...]:
        """Reshard logged arrays as the state is sharded. Inside a shard they have no mesh axes."""
        outside = self.like.info.batch - batch
        pairs = zip(logged, types, strict=False)
        return tuple(arrays.reshard(x, arrays.beside(state, t, outside)) for x, t in pairs)

    def _step(self, state: State, leaves: Any, steps: Any, mask: Any) -> State:
        """Update the state of one lane with one entry."""
        here = jnp.ones((), bool) if mask is None else mask
        taken = here if self.interval == 1 else here & (state["count"] % self.interval == 0)
        always = mask is None and self.interval == 1
        inner = self.take(state, leaves, steps, None if always else taken)
        count = state["count"] + here.astype(np.int32)
        return {**inner, "count": _like(count, state["count"])}

    def init(self, leaves: list[Any], steps: list[Any]) -> State:
        """Return the initial state of one lane."""
        raise AssertionError

    def take(self, state: State, leaves: Any, steps: Any, taken: Any) -> State:
        """Return the state of one lane with one more entry, if ``taken`` (None: always)."""
        raise AssertionError

    def finish(self, state: State) -> LogdictPart:
        """Return the key of the logdict."""
        raise AssertionError


@dataclasses.dataclass(frozen=True)
class ReductionCollector(Collector):
    """Reduce the entries to one."""

    reduction: Reduction

    def init(self, leaves: list[Any], steps: list[Any]) -> State:
        """Return a count and the states of the reduction, for the value and for each step."""
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
            new = jax.tree.map(lambda a, b: arrays.select(taken, a, b), new, old)
        return {**state, **new}

    def _same_types(self, old: Any, new: Any) -> Any:
        shapes = [jax.tree.map(jnp.shape, tree) for tree in (old, new)]
        if shapes[0] != shapes[1] or not all(jax.tree.leaves(jax.tree.map(_fits, new, old))):
            raise ArgumentError(
                f"The state of the reduction {self.reduction.name!r} changes its structure, shapes "
                f"or dtypes when {self.like.info.key!r} is logged at {self.like.info.where}. "
                "Hint: update(state, value) must return a state of the same type as its input."
            )
        return jax.tree.map(_like, new, old)

    def finish(self, state: State) -> LogdictPart:
        """Return one entry per lane, masked where a lane may have logged nothing."""
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
        return LogdictPart(result, steps, mask, slot)


@dataclasses.dataclass(frozen=True)
class BufferCollector(Collector):
    """Keep some entries: the first ones, or in a ring buffer the last ones."""

    capacity: int
    ring: bool

    @property
    def lead_axes(self) -> int:
        """The number of axes with separate states: lanes have them if they may log separately."""
        return self.like.info.batch if self.like.mask is not None else self.like.info.mesh

    @property
    def stored(self) -> int:
        """The number of entries to store if the buffer were large enough."""
        return -(-self.size // self.interval)

    def init(self, leaves: list[Any], steps: list[Any]) -> State:
        """Return a count and empty buffers."""
        return {
            "count": jnp.zeros((), np.int32),
            "arrays": [arrays.zeros(arrays.rows(self.capacity, x)) for x in (*leaves, *steps)],
        }

    def take(self, state: State, leaves: Any, steps: Any, taken: Any) -> State:
        """Write the entry at the next position."""
        place = state["count"] // self.interval
        fits = self.ring or (self.certain and self.stored <= self.capacity)
        if self.ring:
            place = place % self.capacity
        elif not fits:
            here = jnp.ones((), bool) if taken is None else taken
            taken = here & (place < self.capacity)

        def write(buffer: Any, x: Any) -> Any:
            if taken is not None:
                old = lax.dynamic_index_in_dim(buffer, place, keepdims=False)
                x = arrays.select(taken, x, old)
            return lax.dynamic_update_index_in_dim(buffer, x, place, 0)

        entry = (*leaves, *steps)
        return {
            **state,
            "arrays": [write(b, x) for b, x in zip(state["arrays"], entry, strict=True)],
        }

    def finish(self, state: State) -> LogdictPart:
        """Return the buffers in program order, masked where they were not filled."""
        fun: Callable[..., Any] = self._ordered
        for _ in range(self.lead_axes):
            fun = jax.vmap(fun)
        buffers, mask, dropped = fun(state)
        info, axes = self.like.info, self.lead_axes
        buffers = [jnp.moveaxis(x, axes, 0) for x in buffers]
        leaves, rest = buffers[: len(self.like.leaves)], buffers[len(self.like.leaves) :]
        full = self.certain and self.stored >= self.capacity
        if full:
            mask = None
        else:
            mask = jnp.moveaxis(mask, axes, 0)
            mask = arrays.broadcast(mask, arrays.leading(leaves[0], 1 + info.batch))
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
        return LogdictPart(jax.tree.unflatten(info.tree, leaves), steps, mask, slot, dropped)

    def _ordered(self, state: State) -> tuple[list[Any], Any, Any]:
        stored = -(-state["count"] // self.interval)
        kept = jnp.minimum(stored, self.capacity)
        buffers = state["arrays"]
        if self.ring:
            start = jnp.where(stored > self.capacity, stored % self.capacity, 0)
            order = (start + jnp.arange(self.capacity)) % self.capacity
            buffers = [arrays.take_rows(x, order) for x in buffers]
        return buffers, jnp.arange(self.capacity) < kept, stored - kept


def _strong(state: State) -> State:
    """Make the types strong, so that an update cannot change them."""
    return jax.tree.map(lambda x: _like(x, jnp.asarray(x)), state)


def _fits(new: Any, old: Any) -> bool:
    """Return whether a new state can replace an old one without loss of precision."""
    return jnp.result_type(new) == old.dtype or (
        _compat.is_weak(new) and jnp.promote_types(jnp.result_type(new), old.dtype) == old.dtype
    )


def _like(new: Any, old: Any) -> Any:
    """Convert ``new`` to the exact type of ``old``, as the carry of a loop requires."""
    new = jnp.asarray(new)
    if new.dtype != old.dtype or _compat.is_weak(new):
        new = lax.convert_element_type(new, old.dtype)
    new = arrays.reshard(new, old)
    return _compat.make_varying(new, _compat.varying_axes(old))


def plan(
    types: Sequence[Stream], modes: Callable[[Stream], Any], limits: Limits
) -> dict[str, Collector]:
    """Return a collector for each name that needs one, given the types of all streams.

    Raises:
        UnsupportedLoopError: a name is logged in a loop of unknown length without a limit.
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
    info, interval = stream.info, limits.interval_of(stream.info.key)
    if stream.symbolic:  # a dimension of jax.export is like a loop of unknown length, but for one
        options = (reduction, limits.window, limits.capacity.of(info.key))
        if interval == 1 and all(option is None for option in options):
            return None
        info = dataclasses.replace(info, unbounded=info.unbounded or info.where)
        like = dataclasses.replace(like, info=dataclasses.replace(info, stacked=False))
    size = 1 if stream.symbolic else stream.size
    common: dict[str, Any] = {"like": like, "size": size, "interval": interval}
    if reduction is not None and limits.window is None:
        return ReductionCollector(**common, reduction=reduction)
    if not info.stacked and not info.unbounded:
        return None
    stored = -(-size // interval)
    capacity, ring = limits.window, True
    if capacity is None:
        capacity, ring = limits.capacity.of(info.key), limits.keep == "last"
        if capacity is None and info.unbounded:
            raise_unknown_length(info.unbounded, [info.where])
        if capacity is not None and not info.unbounded and not limits.capacity.names_it(info.key):
            capacity = None  # a capacity for all names applies only to loops of unknown length
    if info.unbounded:
        assert capacity is not None
        return BufferCollector(**common, capacity=capacity, ring=ring)
    if capacity is None and interval == 1:
        return None
    capacity = stored if capacity is None else min(capacity, stored)
    if not capacity:
        return None
    return BufferCollector(**common, capacity=capacity, ring=ring and capacity < stored)
