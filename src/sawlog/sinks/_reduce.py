"""``Reduce``: replace every block of entries by one entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sawlog._reductions import REDUCTION_KINDS
from sawlog._validate import positive_integer, refuse
from sawlog.errors import ArgumentError
from sawlog.records import Entries, Records
from sawlog.sinks._base import Sink, WrapperSink
from sawlog.sinks._entries import check_alike, copied, joined, logged, taken
from sawlog.sinks._logdict_metadata import is_value, matches
from sawlog.sinks._reduce_entries import check_dtype, reduced
from sawlog.sinks._unmatched import UnmatchedPatterns


class Reduce(WrapperSink):
    """Reduce every ``n`` entries of a name to one; ``flush`` and ``close`` write incomplete blocks.

    The reduced entry has the step of the last entry of its block (``"first"``: of the first).
    Fully masked entries are skipped; where a mask has more axes, each item is reduced over the
    entries that have it. Floats keep their dtype and are added in double precision; ``"std"`` and
    ``"var"`` divide by the number of entries.

    Args:
        sink: the sink to write to.
        n: the number of entries in a block.
        how: ``"mean"``, ``"sum"``, ``"min"``, ``"max"``, ``"first"``, ``"last"`` (or
            ``"replace"``), ``"count"``, ``"std"``, ``"var"``, or a dict of these by name or
            pattern: ``{"loss": "mean", "*": "last"}``. An exact name takes precedence over
            patterns, and an earlier pattern over later ones. Names that match nothing are reported,
            like those of :class:`Select`.

    Raises:
        ArgumentError: a reduction is unknown; from ``write``, the dict does not cover a name.
        LogValueError: from ``write``, a dtype does not support its reduction.
        LogMismatchError: from ``write``, entries have another type or other step axes than their
            block.

    >>> import numpy as np
    >>> from sawlog.records import Entries, Records
    >>> from sawlog.sinks import MemorySink
    >>> memory = MemorySink()
    >>> with Reduce(memory, 2, "mean") as sink:
    ...     sink.write(Records({"x": Entries(np.arange(5.0), {"step": np.arange(5)})}))
    >>> memory.records["x"].values, memory.records["x"].steps["step"]
    (array([0.5, 2.5, 4. ]), array([1, 3, 4]))
    """

    def __init__(self, sink: Sink, n: int, how: str | Mapping[str, str] = "mean") -> None:
        super().__init__(sink)
        self._n = positive_integer("n", n, 'Reduce(sink, 10, "mean").')
        self._how = _checked(how)
        self._unmatched = UnmatchedPatterns("Reduce", self._how)
        self._waiting: dict[str, list[Entries]] = {}

    def __repr__(self) -> str:
        return f"Reduce({self._sink!r}, {self._n}, {dict(self._how)!r})"

    def _write(self, records: Records) -> None:
        out: dict[str, Entries] = {}
        waiting = dict(self._waiting)
        for name, entries in records.items():
            if not is_value(entries):
                out[name] = entries
                continue
            blocks, left = self._blocks(name, logged(entries))
            waiting[name] = left
            if blocks:
                out[name] = joined(blocks)
        self._forward(out)
        self._waiting = waiting  # only after the sink has accepted the blocks
        self._unmatched.see(records.items())

    def _blocks(self, name: str, entries: Entries) -> tuple[list[Entries], list[Entries]]:
        """Return the complete blocks, reduced, and the entries left over."""
        waiting = self._waiting.get(name, [])
        if waiting:
            check_alike(name, waiting[0], entries)
        how = self._how_of(name, entries)
        check_dtype(name, entries.values.dtype, how)
        have = sum(map(len, waiting))
        if have + len(entries) < self._n:
            return [], [*waiting, copied(entries)] if len(entries) else waiting
        whole = joined([*waiting, entries])
        ends = range(self._n, len(whole) + 1, self._n)
        blocks = [reduced(name, taken(whole, slice(e - self._n, e)), how) for e in ends]
        rest = taken(whole, slice(ends[-1], None))
        return blocks, [copied(rest)] if len(rest) else []

    def _how_of(self, name: str, entries: Entries) -> str:
        if name in self._how:
            return self._how[name]
        for pattern, how in self._how.items():
            if matches(name, entries, pattern):
                return how
        raise ArgumentError(
            f"{name!r} is not among the names that {self!r} reduces. Nothing of the call was "
            'taken. Hint: add "*": "last" for all others, or leave it out with Select.'
        )

    def _flush(self) -> None:
        self._unmatched.warn()
        self._write_rest()
        self._sink.flush()

    def _close(self) -> None:
        self._unmatched.warn()
        self._write_rest()
        self._sink.close()

    def _write_rest(self) -> None:
        """Write incomplete blocks; they are kept if that fails."""
        out = {}
        for name, parts in self._waiting.items():
            if parts:
                rest = joined(parts)
                out[name] = reduced(name, rest, self._how_of(name, rest))
        self._forward(out)
        self._waiting = {}


def _checked(how: Any) -> Mapping[str, str]:
    by_name = how if isinstance(how, Mapping) else {"*": how}
    known = all(isinstance(each, str) and each in REDUCTION_KINDS for each in by_name.values())
    if not known or not by_name or not all(isinstance(name, str) for name in by_name):
        required = f"one of {', '.join(map(repr, REDUCTION_KINDS))}, or a dict of these by name"
        refuse("how", required, how, 'Reduce(sink, 9, {"loss": "mean", "*": "max"})')
    return dict(by_name)
