"""Waiting for each other without anything that an exception could leave locked for good.

A lock that is taken by ``with`` is left locked where an exception comes between the end of the
block and the release. Here a turn ends by one assignment, and a turn whose call is no longer on the
stack of its thread is over in any case: the next one takes it.
"""

from __future__ import annotations

import _thread
import collections
import sys
from collections.abc import Callable
from types import FrameType, TracebackType

_LOOK_AGAIN = 0.05  # seconds after which those who wait look for turns that were left


class Signal:
    """Wakes those who wait for something to change."""

    def __init__(self) -> None:
        self._gates: collections.deque[_thread.LockType] = collections.deque()

    def ring(self) -> None:
        """Wake all who wait."""
        while self._gates:
            try:
                gate = self._gates.popleft()
            except IndexError:
                return
            gate.release()

    def wait(self, happened: Callable[[], bool], seconds: float = 1.0) -> bool:
        """Wait until it happened, or for so long; says whether it did."""
        if happened():
            return True
        gate = _thread.allocate_lock()
        gate.acquire()
        self._gates.append(gate)
        if happened():  # between the question and the gate
            return True
        gate.acquire(timeout=seconds)
        return happened()


class _Hold:
    """One turn: whose it is, while it lasts, and the one after it."""

    __slots__ = ("after", "frame", "thread")

    def __init__(self, thread: int, frame: FrameType | None) -> None:
        self.thread, self.frame = thread, frame
        self.after: dict[int, _Hold] = {}

    @property
    def over(self) -> bool:
        """Whether it was ended, or its call was left without ending it."""
        frame = self.frame
        return frame is None or not _runs(self.thread, frame)


def _runs(thread: int, frame: FrameType) -> bool:
    """Whether a call is on the stack of its thread."""
    at = sys._current_frames().get(thread)
    while at is not None:
        if at is frame:
            return True
        at = at.f_back
    return False


class Turn:
    """One caller at a time: ``with turn.taken() as nested:``.

    ``nested`` says that this very thread is within a turn already, further up its stack: a signal
    handler that came in the middle of a call. It must not wait for itself.
    """

    def __init__(self) -> None:
        self._last = _Hold(0, None)
        self._freed = Signal()

    def taken(self) -> Taken:
        """For ``with``: wait for the turn."""
        return Taken(self)

    def take(self, frame: FrameType, wait: bool = True) -> _Hold | None:
        """The turn of a call, or None if it is within one, or would have to wait and may not."""
        thread = _thread.get_ident()
        while True:
            last = self._current()
            if last.over:
                mine = _Hold(thread, frame)
                if last.after.setdefault(0, mine) is mine:  # one step: nobody comes in between
                    self._last = mine
                    return mine
            elif last.thread == thread or not wait:
                return None
            else:
                self._freed.wait(lambda last=last: last.frame is None, _LOOK_AGAIN)  # type: ignore[misc]

    def _current(self) -> _Hold:
        last = self._last
        while (after := last.after.get(0)) is not None:
            last = after
        return last

    def end(self, hold: _Hold) -> None:
        """Let others have it."""
        hold.frame = None
        self._freed.ring()


class Taken:
    """A turn, for ``with``."""

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
