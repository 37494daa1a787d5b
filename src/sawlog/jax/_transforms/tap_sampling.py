"""``tap(interval=, reduce=)``: send only some entries to the host, or only their reduction.

The program carries a counter, a buffer or a reduction state for each name, like the collectors of
``spool``. Names that are always logged together share their host calls. A host call that is not due
is skipped: see ``gated`` in ``tap.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog._names import NOTHING, ByName
from sawlog._validate import optional, positive_integer
from sawlog.jax._core import arrays
from sawlog.jax._core.handler import Handler
from sawlog.jax._core.interpreter import Interpreter
from sawlog.jax._core.reductions import Reduction, check_mode, reduction_of
from sawlog.jax._core.select import Selection
from sawlog.jax._core.site import Site
from sawlog.jax._core.stream import (
    Stream,
    Streams,
    entry_type,
    entry_types,
    from_site,
    widened_site,
)
from sawlog.jax._transforms.collectors import (
    BufferCollector,
    Collector,
    ReductionCollector,
    State,
    counts,
)
from sawlog.jax._transforms.spool import Spool
from sawlog.jax._transforms.tap_payload import Packed, Send, batch_of, pack, send_site


@dataclasses.dataclass(frozen=True)
class Sampling:
    """The options of ``tap`` that limit what is sent; hashable."""

    interval: ByName = NOTHING
    modes: ByName | None = None
    buffer: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether every entry is sent unchanged."""
        return self.interval in (NOTHING, ByName(1)) and self.modes is None

    def interval_of(self, key: str) -> int:
        """Return n, where every n-th entry of a name is sent."""
        return self.interval.of(key) or 1

    def reduction_of(self, stream: Stream) -> Reduction | None:
        """Return the reduction of a name; that of the log itself applies if ``reduce`` is given."""
        if self.modes is None:
            return None
        return reduction_of(self.modes.of(stream.info.key) or stream.info.reduction)

    def by_name(self) -> dict[str, ByName]:
        """Return the options that can be given by name."""
        return {"interval": self.interval, "reduce": self.modes or NOTHING}


def read_sampling(interval: Any, reduce: Any, buffer: Any) -> Sampling:
    """Check the options.

    Raises:
        ArgumentError: a number is not a positive integer, or a reduction is unknown.
    """
    size = optional(positive_integer, "buffer", buffer)
    every = counts("interval", interval)
    if reduce is not None:
        check_mode(reduce, "reduce")
    return Sampling(every, None if reduce is None else ByName.read(reduce), size)


def run_sampled(
    closed: Any,
    values: Sequence[Any],
    chosen: Selection,
    sampling: Sampling,
    send: Send,
    keep_logs: bool = False,
) -> list[Any]:
    """Evaluate a traced program that sends some of its logs, and return its outputs."""
    handler = SamplingTap(chosen, _groups(closed, chosen, sampling), send)
    handler.keep_logs = keep_logs
    outs, _ = Interpreter(handler).run(closed.jaxpr, closed.consts, values)
    handler.send_rest()
    return outs


class SamplingTap(Handler):
    """The handler of ``tap(interval=, reduce=)``: pass each log to the groups of its names."""

    def __init__(self, chosen: Selection, groups: Sequence[NameGroup], send: Send) -> None:
        super().__init__()
        self._chosen = self.listens_for = chosen
        self._groups = groups
        self._send = send
        self.carry = {group.name: group.start() for group in groups}

    def wants(self, site: Site) -> bool:
        """Return whether any name of the site is selected."""
        return bool(self._chosen.keys(site))

    def carried(self, site: Site) -> Sequence[str]:
        """Return the groups whose names are logged here."""
        return [group.name for group in self._at(site)]

    def _at(self, site: Site) -> list[NameGroup]:
        keys = self._chosen.keys(site)
        return [group for group in self._groups if group.name in keys]

    def site(self, primitive: Any, site: Site, operands: Sequence[Any], params: dict) -> Streams:
        """Pass the log to its groups; names without a group are sent unchanged."""
        del primitive, params
        keys, groups = self._chosen.keys(site), self._at(site)
        grouped = {name for group in groups for name in group.names}
        plain = tuple(key for key in keys if key not in grouped)
        if plain:
            send_site(self._send, site, operands, plain)
        for group in groups:
            state = self.carry[group.name]
            self.carry[group.name] = group.log(state, site, operands, self._send)
        return ()

    def send_rest(self) -> None:
        """Send the entries that the groups hold at the end of the program."""
        by_lanes: dict[int, list[Packed]] = {}
        for group in self._groups:
            lanes, packed = group.rest(self.carry[group.name])
            by_lanes.setdefault(lanes, []).extend(packed)
        for lanes, packed in by_lanes.items():
            if packed:
                self._send(*batch_of(packed, lanes))


# -- the groups ------------------------------------------------------------------------------------


class NameGroup:
    """Names that are always logged together and have the same options."""

    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the state."""
        return self.names[0]

    def start(self) -> Any:
        """Return the initial state."""
        raise AssertionError

    def log(self, state: Any, site: Site, operands: Sequence[Any], send: Send) -> Any:
        """Return the state after one log, and send entries if they are due."""
        raise AssertionError

    def rest(self, state: Any) -> tuple[int, list[Packed]]:
        """Return the number of leading lane axes, and what remains to be sent at the end."""
        del state
        return 0, []


@dataclasses.dataclass(frozen=True)
class CountCollector(Collector):
    """Count the entries, per lane if lanes log at different times."""

    @property
    def lead_axes(self) -> int:
        """The number of axes with separate counts, as in :class:`BufferCollector`."""
        return self.like.info.batch if self.like.mask is not None else self.like.info.mesh

    def init(self, leaves: list[Any], steps: list[Any]) -> State:
        """Return a count of zero."""
        del leaves, steps
        return {"count": jnp.zeros((), np.int32)}

    def take(self, state: State, leaves: Any, steps: Any, taken: Any) -> State:
        """Return the state unchanged; the caller increments the count."""
        del leaves, steps, taken
        return dict(state)


@dataclasses.dataclass(frozen=True)
class SampledNames(NameGroup):
    """Names of which every n-th entry is sent immediately."""

    names: tuple[str, ...]
    counter: CountCollector

    def start(self) -> Any:
        """Return a count of zero."""
        return self.counter.start()

    def log(self, state: Any, site: Site, operands: Sequence[Any], send: Send) -> Any:
        """Send the entry if it is due."""
        site, operands = widened_site(site, operands, self.counter.like)
        mask = site.split(operands).mask
        due = state["count"] % self.counter.interval == 0
        due = arrays.broadcast(due, arrays.leading(operands[0], site.batch))
        send_site(send, site, operands, self.names, due if mask is None else due & mask)
        return self.counter.update(state, (), (), mask, site.batch)


@dataclasses.dataclass(frozen=True)
class BatchedNames(NameGroup):
    """Names whose entries are sent in batches, or reduced to one entry per batch.

    ``buffer`` is the number of entries in a batch; None to send once, at the end of the program.
    """

    names: tuple[str, ...]
    collectors: tuple[BufferCollector | ReductionCollector, ...]
    buffer: int | None
    apart: bool

    def start(self) -> Any:
        """Return the initial state of each collector."""
        return [each.start() for each in self.collectors]

    def log(self, state: Any, site: Site, operands: Sequence[Any], send: Send) -> Any:
        """Add the entry, and send the batch when it is full."""
        site, operands = widened_site(site, operands, self.collectors[0].like)
        streams = {s.info.key: s for s in from_site(site, operands, self.names)}
        ordered = [streams[name] for name in self.names]
        new = [
            each.update(old, stream.leaves, stream.steps, stream.mask, site.batch)
            for each, old, stream in zip(self.collectors, state, ordered, strict=True)
        ]
        if self.buffer is None:
            return new
        local = [_in_shard(*pair) for pair in zip(self.collectors, ordered, strict=True)]
        taken = self._taken(new[0])
        full = (taken != self._taken(state[0])) & (taken % self.buffer == 0)
        filled = jnp.where(full, jnp.int32(self.buffer), jnp.int32(0))
        packed = [pack(each, s, filled) for each, s in zip(local, new, strict=True)]
        batch, leaves = batch_of(packed)
        batch = dataclasses.replace(batch, masked=True)
        send(batch, [*leaves, jnp.any(full)], gated=True)
        return [_emptied(each, s, full) for each, s in zip(local, new, strict=True)]

    def rest(self, state: Any) -> tuple[int, list[Packed]]:
        """Return the incomplete batch; shards send separately, as they do for full batches."""
        first = self.collectors[0]
        lanes = first.like.info.mesh if self.apart else 0
        left = -(-first.size // first.interval)
        if first.certain and (left % self.buffer if self.buffer else left) == 0:
            return 0, []
        taken = self._taken(state[0])
        left = taken if self.buffer is None else taken % self.buffer
        pairs = zip(self.collectors, state, strict=True)
        return lanes, [pack(each, s, left, lanes) for each, s in pairs]

    def _taken(self, state: Any) -> Any:
        """Return the number of entries kept so far."""
        return -(-state["count"] // self.collectors[0].interval)


def _in_shard(collector: Any, entry: Stream) -> Any:
    """Return the collector as seen inside a shard, where ``entry`` has no mesh axes."""
    like = collector.like
    mesh = like.info.mesh
    if not mesh:
        return collector
    local = entry_type(entry)
    mask = None if like.mask is None else local.mask_type()
    info = dataclasses.replace(like.info, batch=like.info.batch - mesh, mesh=0)
    return dataclasses.replace(collector, like=Stream(local.leaves, local.steps, mask, info))


def _emptied(collector: Collector, state: Any, full: Any) -> Any:
    """Reset the lanes that are ``full`` after sending. A buffer is simply overwritten."""
    if isinstance(collector, BufferCollector):
        return state

    def pick(new: Any, old: Any) -> Any:
        return arrays.select(full, new, old)

    return {**jax.tree.map(pick, collector.start(), state), "count": state["count"]}


def _groups(closed: Any, chosen: Selection, sampling: Sampling) -> list[NameGroup]:
    """Group the names of a program by their sites and options."""
    interpreter = Interpreter(Spool(chosen, surveys=True))
    where: dict[str, dict[Site, None]] = {}
    for eqn in closed.jaxpr.eqns:
        for site in interpreter.wanted_in(eqn):
            for key in chosen.keys(site):
                where.setdefault(key, {})[site] = None
    by_treatment: dict[Any, list[Member]] = {}
    types = interpreter.trace(closed).stream_types
    for stream, like in zip(types, entry_types(types), strict=True):
        reduction = sampling.reduction_of(stream)
        key = stream.info.key
        treatment = (frozenset(where.get(key, ())), reduction is None, sampling.interval_of(key))
        by_treatment.setdefault(treatment, []).append(Member(like, stream.size, reduction))
    groups = [_group(sampling, members) for members in by_treatment.values()]
    return [group for group in groups if group is not None]


@dataclasses.dataclass(frozen=True)
class Member:
    """A name of a group: the type of an entry, the number of entries, and the reduction."""

    like: Stream
    size: int
    reduction: Reduction | None

    def options(self, sampling: Sampling) -> dict[str, Any]:
        """Return the arguments that every collector takes."""
        interval = sampling.interval_of(self.like.info.key)
        return {"like": self.like, "size": self.size, "interval": interval}


def _group(sampling: Sampling, members: Sequence[Member]) -> NameGroup | None:
    names = tuple(member.like.info.key for member in members)
    first = members[0]
    reduced = first.reduction is not None
    buffer, interval = sampling.buffer, sampling.interval_of(names[0])
    if buffer is None and not reduced:
        if interval == 1:
            return None
        return SampledNames(names, CountCollector(**first.options(sampling)))
    kept = -(-first.size // interval)
    ends = not first.like.info.unbounded and (buffer is None or kept <= buffer)
    collectors: Any
    if reduced:
        collectors = [
            ReductionCollector(**m.options(sampling), reduction=m.reduction)
            for m in members
            if m.reduction
        ]
    else:
        space = max(1, kept) if buffer is None or ends else buffer
        collectors = [
            BufferCollector(**m.options(sampling), capacity=space, ring=True) for m in members
        ]
    wait = ends or buffer is None
    return BatchedNames(
        names, tuple(collectors), None if wait else buffer, apart=buffer is not None
    )
