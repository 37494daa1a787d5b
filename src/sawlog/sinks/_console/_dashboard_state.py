"""``DashboardState``: the data of a dashboard, and ``Snapshot``: the part that is shown.

Memory grows with the number of names and runs, not with the number of entries.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

from sawlog._format import Number
from sawlog._turn import Turn
from sawlog.sinks._console._digest import Digest, LastDigest
from sawlog.sinks._console._running_trend import RunningTrend
from sawlog.sinks._console._runs import ConsoleRun, RunStatus


@dataclasses.dataclass(frozen=True)
class Row:
    """One name: the last values of all its runs.

    Args:
        name: the name.
        runs: how many runs logged it.
        mean: the mean over the runs; for arrays, over all their elements. None if no value is
            finite.
        std: the standard deviation over the same values; None for a single number.
        least: the least of these values.
        greatest: the greatest of these values.
        odd: how many values are ``"nan"``, ``"inf"``, ``"-inf"``, or for arrays ``"not finite"``.
        shape: the shape of an array; None for a number.
        text: the last value, if it is not a number.
        steps: the least and the greatest of the latest steps of the runs.
        trend: the mean over the runs, from their start until now.
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
    trend: list[float | None]


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The data that is shown.

    Args:
        rows: the names that are shown.
        hidden: how many further names there are.
        runs: the names of the runs by status.
        elapsed: seconds since the first run started.
        steps: the least and the greatest step of the running runs; if none is running, of all.
        counted: whether steps were logged; if not, ``steps`` counts entries.
        total: the number of steps of a run, if known.
        share: the fraction of all steps that is done, if known.
        rate: steps per second of each run, if known.
        remaining: the remaining seconds, if known.
    """

    rows: Sequence[Row]
    hidden: int
    runs: dict[RunStatus, list[str]]
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
    """The data of one name."""

    def __init__(self) -> None:
        self.trend = RunningTrend()
        self.lasts: dict[ConsoleRun, LastDigest] = {}
        self.steps: dict[ConsoleRun, Number] = {}

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
            trend=self.trend.means(width),
        )


def _pooled(
    lasts: Sequence[LastDigest],
) -> tuple[Number | None, float | None, Number | None, Number | None]:
    """Return mean, standard deviation, least and greatest of all finite values together."""
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


def _odd(lasts: Iterable[LastDigest]) -> dict[str, int]:
    found: dict[str, int] = {}
    for last in lasts:
        if last.odd:
            kind = "not finite" if last.shape is not None else str(float(last.mean))
            found[kind] = found.get(kind, 0) + last.odd
    return found


class DashboardState:
    """The data of a dashboard; safe to share between threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._turn = Turn()
        self._runs: dict[str, ConsoleRun] = {}
        self._names: dict[str, _Name] = {}
        self._started: float | None = None
        self._ended: float | None = None
        self.version = 0

    def open(self, name: str, total: int | None) -> ConsoleRun:
        """Start a run, or resume one of this name that has ended."""
        with self._turn.taken():
            now = self._clock()
            self._started = now if self._started is None else self._started
            self._ended = None
            self.version += 1
            plain, number = name, 1
            while name in self._runs and self._runs[name].status is RunStatus.RUNNING:
                number += 1
                name = f"{plain} ({number})"
            if name in self._runs:
                self._runs[name].status = RunStatus.RUNNING
                self._runs[name].total = total
            else:
                self._runs[name] = ConsoleRun(name, total, now)
            return self._runs[name]

    def close(self, run: ConsoleRun, status: RunStatus) -> None:
        """End a run."""
        with self._turn.taken():
            if run.status is RunStatus.RUNNING:
                self.version += 1
                run.status = status
            if not self._running() and self._ended is None:
                self._ended = self._clock()

    def leave(self, status: RunStatus) -> None:
        """End all runs."""
        with self._turn.taken():
            for run in self._running():
                run.status = status
            self._ended = self._clock() if self._ended is None else self._ended
            self.version += 1

    def take(self, run: ConsoleRun, digests: list[Digest]) -> None:
        """Add what a run has logged."""
        with self._turn.taken():
            self.version += 1
            for each in digests:
                name = self._names.get(each.name) or _Name()
                at = run.counts.get(each.name, 0)
                name.trend.add(each.numbers, at)
                run.counts[each.name] = at + max(1, len(each.numbers))
                name.lasts[run] = each.last
                if each.step is not None:
                    name.steps[run] = each.step
                self._names[each.name] = name  # last, so that an interrupt leaves no empty row
            if digests:
                run.advance(digests, self._clock())

    def _running(self) -> list[ConsoleRun]:
        return [run for run in self._runs.values() if run.status is RunStatus.RUNNING]

    @property
    def running(self) -> int:
        """The number of running runs."""
        with self._turn.taken():
            return len(self._running())

    def count(self, run: ConsoleRun, name: str) -> int:
        """Return how many entries of a name a run has logged."""
        with self._turn.taken():
            return run.counts.get(name, 0)

    def snapshot(self, most: int | None = None, width: int = 40) -> Snapshot:
        """Return the data of at most ``most`` names, with trends of at most ``width`` points."""
        with self._turn.taken():
            now = self._clock() if self._ended is None else self._ended
            shown = list(self._names.items())[:most]
            runs: dict[RunStatus, list[str]] = {status: [] for status in RunStatus}
            for run in self._runs.values():
                runs[run.status].append(run.name)
            active = self._running() or list(self._runs.values())
            started = [run for run in active if run.counts]
            steps = [(run.done if run.step is None else run.step) for run in started]
            rates = [rate for run in started if (rate := run.rate(now)) is not None]
            known = [run for run in self._runs.values() if run.total is not None]
            return Snapshot(
                rows=[name.row(text, width) for text, name in shown],
                hidden=len(self._names) - len(shown),
                runs=runs,
                elapsed=0.0 if self._started is None else now - self._started,
                steps=(min(steps), max(steps)) if steps else None,
                counted=any(run.step is not None for run in started),
                total=max((run.total or 0 for run in known), default=None),
                share=_share(known),
                rate=sum(rates) / len(rates) if rates else None,
                remaining=_remaining(self._running(), now),
            )


def _share(runs: Sequence[ConsoleRun]) -> float | None:
    total = sum(run.total or 0 for run in runs)
    return min(1.0, sum(run.done for run in runs) / total) if total else None


def _remaining(running: Sequence[ConsoleRun], now: float) -> float | None:
    """Return the seconds until the last run is done; None if any of them is unknown."""
    longest = 0.0
    for run in running:
        rate = run.rate(now)
        if run.total is None or rate is None:
            return None
        longest = max(longest, max(0.0, run.total - run.done) / rate)
    return longest if running else None
