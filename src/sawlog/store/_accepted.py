"""What a writer has accepted, as a chain of states: a call counts once its state is in the chain.

A call stages what it was given behind what counts (see :mod:`sawlog.store._pending`), and builds
the state that there would be with it. One step, which no exception can divide, puts that state
behind the one that the call began with. Before that step nothing of the call counts, after it all
of it does: rows, entries, notes, segments that it filled, and the ids that are known from then on.
"""

from __future__ import annotations

import time

import numpy as np

from sawlog.store._ids import IdSet
from sawlog.store._pending import Chunk, Extent, Pending
from sawlog.store._schema import Series, Table
from sawlog.store._segment import Unpublished

Ids = np.ndarray | list[str]
_SPARE = 3  # how many published segments leave their memory for the next ones


class Sealed:
    """A segment to be published: what it holds does not change any more."""

    def __init__(
        self, sequence: int, parts: list[tuple[Chunk, Extent]], nbytes: int, memory: Pending | None
    ) -> None:
        self.sequence, self.parts, self.nbytes = sequence, parts, nbytes
        self.memory = memory  # which may be used again, once this is published
        self.unpublished: Unpublished | None = None
        self.done = False

    def finish(self) -> None:
        """Note that it is published. It may have been noted before."""
        self.done = True
        self.parts, self.unpublished = [], None


class _Additions:
    """What one call added, until it is settled."""

    __slots__ = ("chunks", "ids")

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.ids: list[tuple[IdSet, Ids]] = []

    def settle(self) -> None:
        """Let it count for good. Stopped in the middle, it can be done again."""
        for chunk in self.chunks:
            chunk.settle(self)
        for known, ids in self.ids:
            known.add(ids)
        self.chunks, self.ids = [], []


class State:
    """All that was accepted and is not published, after some call; ``after`` has the next one."""

    __slots__ = (
        "added",
        "after",
        "closed",
        "line",
        "nbytes",
        "pending",
        "sequence",
        "since",
        "spare",
    )

    def __init__(self) -> None:
        self.pending = Pending()
        self.nbytes = 0  # of what is pending
        self.since: float | None = None  # when the first of it was accepted
        self.line: tuple[Sealed, ...] = ()  # in the order in which they are published
        self.sequence = 0  # of the last one that was sealed
        self.spare: tuple[Pending, ...] = ()  # memory of published segments
        self.closed = False
        self.added = _Additions()
        self.after: dict[int, State] = {}

    @property
    def waiting(self) -> list[Sealed]:
        """The sealed segments that are not published yet."""
        return [sealed for sealed in self.line if not sealed.done]


class Call:
    """What one call of the writer adds, not yet accepted."""

    def __init__(self, base: State, nested: bool, largest: int) -> None:
        """Begin behind ``base``.

        ``nested``: another call on this thread is being staged in the same buffers, further up the
        stack. This one gets new ones, and the other will see that it has to begin again.
        ``largest``: the memory of segments with more bytes than that is not kept.
        """
        base.added.settle()
        self._base, self._nested, self._largest = base, nested, largest
        self._added = _Additions()
        self._pending, self.nbytes, self._since = base.pending, base.nbytes, base.since
        self._line, self._spare = list(base.line), list(base.spare)
        self._sequence, self.closed = base.sequence, base.closed
        if nested:
            self.seal()
            self._pending = Pending()

    def chunk(self, log: Table | Series) -> Chunk:
        """The chunk of a table or series to add to."""
        chunk = self._pending.chunk(log)
        self._added.chunks.append(chunk)
        return chunk

    @property
    def key(self) -> object:
        """What tells its additions from those of others."""
        return self._added

    def count(self, nbytes: int) -> None:
        """Note that something was added."""
        self.nbytes += nbytes
        if self._since is None:
            self._since = time.monotonic()

    def know(self, known: IdSet, ids: Ids) -> None:
        """Have ids counted as known, if the call is accepted."""
        self._added.ids.append((known, ids))

    @property
    def idle(self) -> bool:
        """Whether everything is published."""
        return all(s.done for s in self._line) and not self._pending.filled(self._added)

    def seal(self) -> None:
        """Make a segment of what is pending."""
        parts = self._pending.filled(self._added)
        if not parts:
            return
        self._collect_spare()
        self._sequence += 1
        reusable = not self._nested and self.nbytes <= self._largest
        memory = self._pending if reusable else None
        self._line.append(Sealed(self._sequence, parts, self.nbytes, memory))
        self._pending = self._spare.pop().recycled() if self._spare else Pending()
        self.nbytes, self._since = 0, None

    def _collect_spare(self) -> None:
        """Take what is published off the line."""
        line, self._line = self._line, []
        for sealed in line:
            if not sealed.done:
                self._line.append(sealed)
            elif sealed.memory is not None:
                self._spare.append(sealed.memory)

    def commit(self) -> bool:
        """Accept it all, in one step; or nothing, and say False, if another call came first."""
        if self._line:
            self._collect_spare()
        state = State()
        state.pending, state.nbytes, state.since = self._pending, self.nbytes, self._since
        state.line, state.sequence = tuple(self._line), self._sequence
        state.spare, state.closed = tuple(self._spare[:_SPARE]), self.closed
        state.added = self._added
        return self._base.after.setdefault(0, state) is state
