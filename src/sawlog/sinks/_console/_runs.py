"""``ConsoleRun``: the progress and the speed of one run on the console."""

from __future__ import annotations

import collections
import enum
import itertools

from sawlog._format import Number
from sawlog.sinks._console._digest import STEP, Digest

_SAMPLES = 64
_APART = 0.25  # seconds
_PATIENCE = 2.0  # times the longest pause so far; a longer pause counts as slowing down


class RunStatus(enum.Enum):
    """The status of a run."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    LEFT = "left open"


class StepRate:
    """The rate at which a reported number grows, over the latest reports.

    >>> rate = StepRate(0.0)
    >>> for second in range(1, 4):
    ...     rate.add(100 * second, float(second))
    >>> rate.rate(3.5)
    100.0
    """

    def __init__(self, start: float) -> None:
        self._start = start
        self._seen: collections.deque[tuple[float, float]] = collections.deque(maxlen=_SAMPLES)
        self._newest: tuple[float, float] | None = None

    def add(self, number: float, now: float) -> None:
        """Add a report."""
        self._newest = now, number
        if self._seen and number < self._seen[-1][1]:  # it restarted
            self._seen.clear()
            self._start = now
        if not self._seen or now - self._seen[-1][0] >= _APART:
            self._seen.append(self._newest)

    def rate(self, now: float) -> float | None:
        """Return the rate per second; None if it is not known yet."""
        if self._newest is None:
            return None
        (until, last), (since, first) = self._newest, self._seen[0]
        if until - since < _APART:  # one report: count from the start
            first, since = 0.0, self._start
        pauses = (two[0] - one[0] for one, two in itertools.pairwise(self._seen))
        pause = max(pauses, default=until - since)
        if now - until > max(_PATIENCE * pause, 1.0):
            until = now
        return (last - first) / (until - since) if until > since and last > first else None


class ConsoleRun:
    """One run: its name, its status, its latest step, and the number of entries of each name."""

    def __init__(self, name: str, total: int | None, now: float) -> None:
        self.name, self.total = name, total
        self.status = RunStatus.RUNNING
        self.counts: dict[str, int] = {}
        self.step: Number | None = None
        self._rate = StepRate(now)

    @property
    def done(self) -> float:
        """The number of steps that are done, by what was logged."""
        if self.step is None:
            return max(self.counts.values(), default=0)
        done = max(0.0, float(self.step) + 1)
        return done if self.total is None else min(done, self.total)

    def advance(self, digests: list[Digest], now: float) -> None:
        """Advance to the steps of what was just written."""
        steps = [each.step for each in digests if each.axis == STEP and each.step is not None]
        if steps:
            if self.step is None:
                self._rate = StepRate(now)  # before, entries were counted
            self.step = max(steps)
        self._rate.add(self.done, now)

    def rate(self, now: float) -> float | None:
        """Return the number of steps per second; None if it is not known yet."""
        return self._rate.rate(now)
