"""``State``: what is known of all runs of a dashboard, and ``Snapshot``: what of it is shown.

Its memory grows with the number of names and of runs, not with that of entries.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Iterable, Sequence

from sawlog.sinks._console._course import Course
from sawlog.sinks._console._digest import Digest, Last, Number
from sawlog.sinks._console._runs import Run, Status


@dataclasses.dataclass(frozen=True)
class Row:
    """One name: the last values of all its runs.

    Args:
        name: the name.
        runs: how many runs logged it.
        mean: the mean over the runs; of arrays, over all their elements. None where no value is
            finite.
        std: the standard deviation over the same; None of a single number.
        least: the least of the same.
        greatest: the greatest of the same.
        odd: how many values are ``"nan"``, ``"inf"``, ``"-inf"``, or of arrays ``"not finite"``.
        shape: that of arrays.
        text: the last value of what is no number.
        steps: the least and the greatest step the runs are at.
        course: the mean over the runs from the beginning until now.
    """

    name: str
    runs: int
    mean: Number | None
    std: float | None
    least: Number | None
    greatest: Number | None
    odd: dict[str, int]
    shape: tuple[int, ...] | None
    text: str | None
    steps: tuple[Number, Number] | None
    course: list[float | None]


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """Everything that is shown.

    Args:
        rows: the names that are shown.
        hidden: how many more there are.
        runs: the names of the runs by status.
        elapsed: seconds since the first run began.
        steps: the least and the greatest step of the runs that are running, or of all.
        counted: whether these are steps that were logged; if not, entries.
        total: how many steps there will be, where that is known.
        share: how much of all is done, from 0 to 1, where that is known.
        rate: steps a second of each run.
        remaining: seconds, where that is known.
    """

    rows: Sequence[Row]
    hidden: int
    runs: dict[Status, list[str]]
    elapsed: float
    steps: tuple[Number, Number] | None
    counted: bool
    total: int | None
    share: float | None
    rate: float | None
    remaining: float | None

    @property
    def many(self) -> bool:
        """Whether there is more than one run."""
        return sum(map(len, self.runs.values())) > 1


class _Name:
    """What is known of one name."""

    def __init__(self) -> None:
        self.course = Course()
        self.lasts: dict[Run, Last] = {}
        self.steps: dict[Run, Number] = {}

    def row(self, name: str, width: int) -> Row:
        lasts = list(self.lasts.values())
        steps = self.steps.values()
        return Row(
            name,
            len(lasts),
            *_pooled(lasts),
            odd=_odd(lasts),
            shape=lasts[-1].shape,
            text=lasts[-1].text,
            steps=(min(steps), max(steps)) if steps else None,
            course=self.course.means(width),
        )


def _pooled(
    lasts: Sequence[Last],
) -> tuple[Number | None, float | None, Number | None, Number | None]:
    """Mean, standard deviation, least and greatest of all finite values together."""
    there = [last for last in lasts if last.size and last.text is None]
    if not there:
        return None, None, None, None
    if len(there) == 1:
        one = there[0]
        single = one.shape is None and len(lasts) == 1
        return one.mean, None if single else one.std, one.least, one.greatest
    least, greatest = min(last.least for last in there), max(last.greatest for last in there)
    size = sum(last.size for last in there)
    scale = max(abs(float(least)), abs(float(greatest))) or 1.0  # so that no square overflows
    mean = math.fsum(float(last.mean) / scale * (last.size / size) for last in there)
    square = math.fsum(
        ((last.std / scale) ** 2 + (float(last.mean) / scale - mean) ** 2) * (last.size / size)
        for last in there
    )
    inside = min(max(mean * scale, float(least)), float(greatest))
    return inside, math.sqrt(square) * scale, least, greatest


def _odd(lasts: Iterable[Last]) -> dict[str, int]:
    found: dict[str, int] = {}
    for last in lasts:
        if last.odd:
            kind = "not finite" if last.shape is not None else str(float(last.mean))
            found[kind] = found.get(kind, 0) + last.odd
    return found


class State:
    """What was written to a dashboard; threads may share it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: dict[str, Run] = {}
        self._names: dict[str, _Name] = {}
        self._began: float | None = None
        self._ended: float | None = None
        self.version = 0

    def open(self, name: str, total: int | None) -> Run:
        """Begin a run, or go on with one of this name that has ended."""
        with self._lock:
            now = self._clock()
            self._began = now if self._began is None else self._began
            self._ended = None
            self.version += 1
            plain, number = name, 1
            while name in self._runs and self._runs[name].status is Status.RUNNING:
                number += 1
                name = f"{plain} ({number})"
            if name in self._runs:
                self._runs[name].status = Status.RUNNING
                self._runs[name].total = total
            else:
                self._runs[name] = Run(name, total, now)
            return self._runs[name]

    def close(self, run: Run, status: Status) -> None:
        """End a run."""
        with self._lock:
            if run.status is Status.RUNNING:
                run.status = status
            self.version += 1
            if not self._running():
                self._ended = self._clock()

    def leave(self, status: Status) -> None:
        """End all runs."""
        with self._lock:
            for run in self._running():
                run.status = status
            self._ended = self._clock() if self._ended is None else self._ended
            self.version += 1

    def take(self, run: Run, digests: list[Digest]) -> None:
        """Take in what a run has logged."""
        with self._lock:
            self.version += 1
            for each in digests:
                if each.name not in self._names:
                    self._names[each.name] = _Name()
                name = self._names[each.name]
                at = run.counts.get(each.name, 0)
                name.course.add(each.numbers, at)
                run.counts[each.name] = at + max(1, len(each.numbers))
                name.lasts[run] = each.last
                if each.step is not None:
                    name.steps[run] = each.step
            if digests:
                run.advance(digests, self._clock())

    def _running(self) -> list[Run]:
        return [run for run in self._runs.values() if run.status is Status.RUNNING]

    @property
    def running(self) -> int:
        """How many runs are running."""
        with self._lock:
            return len(self._running())

    def count(self, run: Run, name: str) -> int:
        """How many entries of a name a run has had."""
        with self._lock:
            return run.counts.get(name, 0)

    def snapshot(self, most: int | None = None, width: int = 40) -> Snapshot:
        """What to show: at most so many names, and courses of at most so many points."""
        with self._lock:
            now = self._clock() if self._ended is None else self._ended
            shown = list(self._names.items())[:most]
            runs: dict[Status, list[str]] = {status: [] for status in Status}
            for run in self._runs.values():
                runs[run.status].append(run.name)
            active = self._running() or list(self._runs.values())
            begun = [run for run in active if run.counts]
            steps = [(run.done if run.step is None else run.step) for run in begun]
            rates = [rate for run in begun if (rate := run.rate(now)) is not None]
            known = [run for run in self._runs.values() if run.total is not None]
            return Snapshot(
                rows=[name.row(text, width) for text, name in shown],
                hidden=len(self._names) - len(shown),
                runs=runs,
                elapsed=0.0 if self._began is None else now - self._began,
                steps=(min(steps), max(steps)) if steps else None,
                counted=any(run.step is not None for run in begun),
                total=max((run.total or 0 for run in known), default=None),
                share=_share(known),
                rate=sum(rates) / len(rates) if rates else None,
                remaining=_remaining(self._running(), now),
            )


def _share(runs: Sequence[Run]) -> float | None:
    total = sum(run.total or 0 for run in runs)
    return min(1.0, sum(run.done for run in runs) / total) if total else None


def _remaining(running: Sequence[Run], now: float) -> float | None:
    """Until the last of them is done; None where that is not known of all."""
    longest = 0.0
    for run in running:
        rate = run.rate(now)
        if run.total is None or rate is None:
            return None
        longest = max(longest, max(0.0, run.total - run.done) / rate)
    return longest if running else None
