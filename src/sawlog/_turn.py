"""Mutual exclusion that no exception can leave locked.

A lock that is taken by ``with`` stays locked if a signal raises between the end of the block and
the release. A :class:`Turn` ends by one assignment. A turn whose call is no longer on the stack of
its thread has ended, too, so that the next caller can take it.
"""

from __future__ import annotations

import _thread
import collections
import sys
from collections.abc import Callable
from types import FrameType, TracebackType

_POLL = 0.05  # seconds between checks for turns that were abandoned


class Signal:
    """Wakes threads that wait for a condition."""

    def __init__(self) -> None:
        self._gates: collections.deque[_thread.LockType] = collections.deque()

    def ring(self) -> None:
        """Wake all threads that wait."""
        while self._gates:
            try:
                gate = self._gates.popleft()
            except IndexError:
                return
            gate.release()

    def wait(self, happened: Callable[[], bool], seconds: float = 1.0) -> bool:
        """Wait until ``happened()``, at most for ``seconds``; return whether it happened."""
        if happened():
            return True
        gate = _thread.allocate_lock()
        gate.acquire()
        self._gates.append(gate)
        if happened():  # since the first check
            return True
        gate.acquire(timeout=seconds)
        return happened()


class _Hold:
    """One turn: its thread, its call while it lasts, and the turn after it."""

    __slots__ = ("after", "frame", "thread")

    def __init__(self, thread: int, frame: FrameType | None) -> None:
        self.thread, self.frame = thread, frame
        self.after: dict[int, _Hold] = {}

    @property
    def over(self) -> bool:
        """Whether it was ended, or its call has returned without ending it."""
        frame = self.frame
        return frame is None or not _runs(self.thread, frame)


def _runs(thread: int, frame: FrameType) -> bool:
    """Return whether a call is on the stack of its thread."""
    at = sys._current_frames().get(thread)
    while at is not None:
        if at is frame:
            return True
        at = at.f_back
    return False


class Turn:
    """One caller at a time: ``with turn.taken() as nested:``.

    ``nested`` is true if this thread has the turn already, further up its stack: then this is a
    signal handler that interrupted a call, and it must not wait for itself.
    """

    def __init__(self) -> None:
        self._last = _Hold(0, None)
        self._freed = Signal()

    def taken(self) -> Taken:
        """Return a context manager that waits for the turn."""
        return Taken(self)

    def take(self, frame: FrameType, wait: bool = True) -> _Hold | None:
        """Take the turn; None if this thread has it, or if it is taken and ``wait`` is false."""
        thread = _thread.get_ident()
        while True:
            last = self._current()
            if last.over:
                mine = _Hold(thread, frame)
                if last.after.setdefault(0, mine) is mine:  # atomic
                    self._last = mine
                    return mine
            elif last.thread == thread or not wait:
                return None
            else:
                self._freed.wait(lambda last=last: last.frame is None, _POLL)  # type: ignore[misc]

    def _current(self) -> _Hold:
        last = self._last
        while (after := last.after.get(0)) is not None:
            last = after
        return last

    def end(self, hold: _Hold) -> None:
        """End a turn."""
        hold.frame = None
        self._freed.ring()


class Taken:
    """The context manager of a turn."""

    __slots__ = ("_hold", "_turn")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._hold: _Hold | None = None

    def __enter__(self) -> bool:
        self._hold = self._turn.take(sys._getframe(1))
        return self._hold is None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._hold is not None:
            self._turn.end(self._hold)
