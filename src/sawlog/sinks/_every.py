"""``Every``: every n-th entry."""

from __future__ import annotations

import dataclasses

import numpy as np

from sawlog._validate import optional, positive_integer, string
from sawlog.errors import LogMismatchError
from sawlog.records import Entries, Records
from sawlog.sinks._base import Sink, WrapperSink
from sawlog.sinks._entries import any_of, deepened, logged, taken
from sawlog.sinks._logdict_metadata import is_value


class Every(WrapperSink):
    """Write every ``n``-th entry of each name, beginning with the first; drop the others.

    Entries are counted over all writes. Entries that are masked entirely do not count.

    Args:
        sink: the sink to write to.
        n: the interval.
        axis: a step axis; then the entries whose step is divisible by ``n`` are written. If steps
            are arrays, such as one step for each seed, the other items are masked.

    Raises:
        ArgumentError: ``sink`` is not a sink, ``n`` is not a positive integer, or ``axis`` is not a
            string.
        LogMismatchError: from ``write``: a name does not have the axis, or its steps are not
            integers.

    >>> import numpy as np
    >>> from sawlog.records import Entries, Records
    >>> from sawlog.sinks import MemorySink
    >>> memory = MemorySink()
    >>> sink = Every(memory, 2)
    >>> for start in (0, 3):
    ...     sink.write(Records({"x": Entries(np.arange(start, start + 3))}))
    >>> memory.logs
    {'x': array([0, 2, 4])}
    """

    def __init__(self, sink: Sink, n: int, *, axis: str | None = None) -> None:
        super().__init__(sink)
        self._n = positive_integer("n", n)
        self._axis = optional(string, "axis", axis)
        self._seen: dict[str, int] = {}

    def __repr__(self) -> str:
        axis = "" if self._axis is None else f", axis={self._axis!r}"
        return f"Every({self._sink!r}, {self._n}{axis})"

    def _write(self, records: Records) -> None:
        chosen, seen = {}, {}
        for name, entries in records.items():
            if not len(entries) or not is_value(entries):
                chosen[name] = entries
                continue
            own = logged(entries)
            seen[name] = self._seen.get(name, 0) + len(own)
            own = self._by_count(name, own) if self._axis is None else self._by_step(name, own)
            if len(own):
                chosen[name] = own
        self._forward(chosen)
        self._seen.update(seen)  # only now: refused entries do not count

    def _by_count(self, name: str, entries: Entries) -> Entries:
        return taken(entries, slice(-self._seen.get(name, 0) % self._n, None, self._n))

    def _by_step(self, name: str, entries: Entries) -> Entries:
        steps = entries.steps.get(self._axis or "")
        if steps is None or steps.dtype.kind not in "iu":
            has = ", ".join(f"{axis!r} ({a.dtype})" for axis, a in entries.steps.items()) or "none"
            raise LogMismatchError(
                f"{name!r} has no step axis {self._axis!r} of integers, of which to take every "
                f"{self._n}th step; its step axes: {has}. Hint: log it with "
                f"{self._axis}=..., or leave it out with Select."
            )
        hit = steps % self._n == 0
        some = any_of(hit)
        left, hit = taken(entries, some), hit[some]
        return left if hit.all() else _masked(name, left, hit)


def _masked(name: str, entries: Entries, hit: np.ndarray) -> Entries:
    if hit.shape != entries.values.shape[: hit.ndim]:
        raise LogMismatchError(
            f"The steps of {name!r} have the shape {list(hit.shape)}, which are not the leading "
            f"axes of its values {list(entries.values.shape)}, so they select no items. "
            "Hint: Every(sink, n) without axis= counts entries instead."
        )
    mask = hit
    if entries.mask is not None:
        ndim = max(hit.ndim, entries.mask.ndim)
        mask = deepened(hit, ndim) & deepened(entries.mask, ndim)
    return logged(dataclasses.replace(entries, mask=mask))
