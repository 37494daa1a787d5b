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
_SPARE = 3  # published segments whose memory is kept for the next ones


class SealedSegment:
    """A segment that waits to be published; its contents are final."""

    def __init__(
        self,
        sequence: int,
        parts: list[tuple[ChunkBuffer, Extent]],
        nbytes: int,
        memory: PendingChunks | None,
    ) -> None:
        self.sequence, self.parts, self.nbytes = sequence, parts, nbytes
        self.memory = memory  # reusable once the segment is published
        self.unpublished: UnpublishedSegment | None = None  # once it is hashed
        self.written = False  # or tried to: a failure is raised when it is published
        self.seconds = 0.0  # that hashing and writing took
        self.done = False

    def finish(self) -> None:
        """Mark the segment as published; idempotent."""
        self.done = True
        self.parts, self.unpublished = [], None


class _Additions:
    """What one call added, until it is settled."""

    __slots__ = ("chunks", "ids")

    def __init__(self) -> None:
        self.chunks: list[ChunkBuffer] = []
        self.ids: list[tuple[IdSet, Ids]] = []

    def settle(self) -> None:
        """Make the additions permanent. After an interrupt it can be called again."""
        for chunk in self.chunks:
            chunk.settle(self)
        for known, ids in self.ids:
            known.add(ids)
        self.chunks, self.ids = [], []


class WriterState:
    """All data that is accepted and not published; ``after`` holds the next state."""

    __slots__ = (
        "added",
        "after",
        "closed",
        "nbytes",
        "pending",
        "queue",
        "sequence",
        "since",
        "spare",
    )

    def __init__(self) -> None:
        self.pending = PendingChunks()
        self.nbytes = 0  # of the pending data
        self.since: float | None = None  # when the first pending data was accepted
        self.queue: tuple[SealedSegment, ...] = ()  # in the order of publication
        self.sequence = 0  # of the last sealed segment
        self.spare: tuple[PendingChunks, ...] = ()  # memory of published segments
        self.closed = False
        self.added = _Additions()
        self.after: dict[int, WriterState] = {}

    @property
    def waiting(self) -> list[SealedSegment]:
        """The sealed segments that are not published yet."""
        return [sealed for sealed in self.queue if not sealed.done]


class WriterCall:
    """The additions of one call of the writer, before they are accepted."""

    def __init__(self, base: WriterState, nested: bool, largest: int) -> None:
        """Start from the state ``base``.

        Args:
            base: the current state.
            nested: whether a call further up the stack of this thread, interrupted by a signal
                handler, is staging in the same buffers. This call then uses new buffers, and the
                other call is staged again.
            largest: the memory of segments with more bytes is not kept.
        """
        base.added.settle()
        self._base, self._nested, self._largest = base, nested, largest
        self._added = _Additions()
        self._pending, self.nbytes, self._since = base.pending, base.nbytes, base.since
        self._queue, self._spare = list(base.queue), list(base.spare)
        self._sequence, self.closed = base.sequence, base.closed
        if nested:
            self.seal()
            self._pending = PendingChunks()

    def chunk(self, log: Table | Series) -> ChunkBuffer:
        """Return the buffers of a table or series."""
        chunk = self._pending.chunk(log)
        self._added.chunks.append(chunk)
        return chunk

    @property
    def key(self) -> object:
        """The object that identifies the additions of this call."""
        return self._added

    def count(self, nbytes: int) -> None:
        """Count bytes that were added."""
        self.nbytes += nbytes
        if self._since is None:
            self._since = time.monotonic()

    def know(self, known: IdSet, ids: Ids) -> None:
        """Add ids to a set of known ids, if the call is accepted."""
        self._added.ids.append((known, ids))

    @property
    def idle(self) -> bool:
        """Whether everything is published."""
        return all(s.done for s in self._queue) and not self._pending.filled(self._added)

    def seal(self) -> None:
        """Turn the pending data into a sealed segment."""
        parts = self._pending.filled(self._added)
        if not parts:
            return
        self._collect_spare()
        self._sequence += 1
        reusable = not self._nested and self.nbytes <= self._largest
        memory = self._pending if reusable else None
        self._queue.append(SealedSegment(self._sequence, parts, self.nbytes, memory))
        self._pending = self._spare.pop().recycled() if self._spare else PendingChunks()
        self.nbytes, self._since = 0, None

    def _collect_spare(self) -> None:
        """Remove published segments from the queue, and keep their memory."""
        before, self._queue = self._queue, []
        for sealed in before:
            if not sealed.done:
                self._queue.append(sealed)
            elif sealed.memory is not None:
                self._spare.append(sealed.memory)

    def commit(self) -> bool:
        """Accept the call in one step; return False if another call was accepted first."""
        if self._queue:
            self._collect_spare()
        state = WriterState()
        state.pending, state.nbytes, state.since = self._pending, self.nbytes, self._since
        state.queue, state.sequence = tuple(self._queue), self._sequence
        state.spare, state.closed = tuple(self._spare[:_SPARE]), self.closed
        state.added = self._added
        return self._base.after.setdefault(0, state) is state
