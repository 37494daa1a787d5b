"""The accepted data of a writer, as a chain of states. A call counts once its state is linked.

A call stages its data behind the data that counts (see ``_pending.py``), and builds the state that
includes it. One atomic step links that state behind the one that the call started from. Before the
step nothing of the call counts; after it all of it does: rows, entries, attrs, the segments that it
filled, and the ids that are known from then on.
"""

from __future__ import annotations

import time

import numpy as np

from sawlog.store._format._schema import Series, Table
from sawlog.store._format._segment_writer import UnpublishedSegment
from sawlog.store._writing._id_set import IdSet
from sawlog.store._writing._pending import ChunkBuffer, Extent, PendingChunks

Ids = np.ndarray | list[str]
_SPARE = 3  # how many published segments leave their memory for the next ones


class SealedSegment:
    """A segment to be published: what it holds does not change any more."""

    def __init__(
        self,
        sequence: int,
        parts: list[tuple[ChunkBuffer, Extent]],
        nbytes: int,
        memory: PendingChunks | None,
    ) -> None:
        self.sequence, self.parts, self.nbytes = sequence, parts, nbytes
        self.memory = memory  # which may be used again, once this is published
        self.unpublished: UnpublishedSegment | None = None
        self.done = False

    def finish(self) -> None:
        """Note that it is published. It may have been noted before."""
        self.done = True
        self.parts, self.unpublished = [], None


class _Additions:
    """What one call added, until it is settled."""

    __slots__ = ("chunks", "ids")

    def __init__(self) -> None:
        self.chunks: list[ChunkBuffer] = []
        self.ids: list[tuple[IdSet, Ids]] = []

    def settle(self) -> None:
        """Let it count for good. Stopped in the middle, it can be done again."""
        for chunk in self.chunks:
            chunk.settle(self)
        for known, ids in self.ids:
            known.add(ids)
        self.chunks, self.ids = [], []


class WriterState:
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
        self.pending = PendingChunks()
        self.nbytes = 0  # of what is pending
        self.since: float | None = None  # when the first of it was accepted
        self.line: tuple[SealedSegment, ...] = ()  # in the order in which they are published
        self.sequence = 0  # of the last one that was sealed
        self.spare: tuple[PendingChunks, ...] = ()  # memory of published segments
        self.closed = False
        self.added = _Additions()
        self.after: dict[int, WriterState] = {}

    @property
    def waiting(self) -> list[SealedSegment]:
        """The sealed segments that are not published yet."""
        return [sealed for sealed in self.line if not sealed.done]


class WriterCall:
    """What one call of the writer adds, not yet accepted."""

    def __init__(self, base: WriterState, nested: bool, largest: int) -> None:
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
            self._pending = PendingChunks()

    def chunk(self, log: Table | Series) -> ChunkBuffer:
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
        self._line.append(SealedSegment(self._sequence, parts, self.nbytes, memory))
        self._pending = self._spare.pop().recycled() if self._spare else PendingChunks()
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
        state = WriterState()
        state.pending, state.nbytes, state.since = self._pending, self.nbytes, self._since
        state.line, state.sequence = tuple(self._line), self._sequence
        state.spare, state.closed = tuple(self._spare[:_SPARE]), self.closed
        state.added = self._added
        return self._base.after.setdefault(0, state) is state
