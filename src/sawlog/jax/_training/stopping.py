"""Finish runs until there are enough: by number, by standard error or by time."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from sawlog import _progress, _validate
from sawlog._pool import thread_pool
from sawlog.jax._training.run_bank import RunBank
from sawlog.jax._training.runner import Runner

#: Standard errors of fewer runs are too uncertain to stop by.
FEWEST = 6


@dataclasses.dataclass(frozen=True)
class Budget:
    """When to stop.

    Args:
        runs: The largest number of runs.
        error: Stop below this ratio of standard errors to scores.
        seconds: Start no run after this time.
        kind: How runs are averaged.
        paired: Whether two successive runs belong together.
    """

    runs: int
    error: float | None
    seconds: float | None
    kind: str
    paired: bool

    def __post_init__(self) -> None:
        for name in ("error", "seconds"):
            _validate.optional(_validate.positive_number, name, getattr(self, name))

    def reached(self, bank: RunBank) -> bool:
        """Return whether standard errors are as small as wanted."""
        done = len(bank.results(self.runs))
        if self.error is None or done < FEWEST or (self.paired and done % 2):
            return False
        found = bank.average(self.runs, self.kind, self.paired)
        return relative_error(found.values, found.errors) <= self.error


def relative_error(values: np.ndarray, errors: np.ndarray) -> float:
    """Return the ratio of standard errors to scores, root mean squares, median over queries."""
    size = np.sqrt((values**2).mean(1))
    return float(np.median(np.sqrt((errors**2).mean(1)) / np.where(size > 0, size, 1)))


def finish_runs(
    runner: Runner, bank: RunBank, budget: Budget, devices: Sequence[Any] | None, *, quiet: bool
) -> None:
    """Run what is missing in the bank, until the budget is reached."""
    begun = time.monotonic()
    missing = [run for run in range(budget.runs) if run not in bank]

    def enough() -> bool:
        late = budget.seconds is not None and time.monotonic() - begun > budget.seconds
        return (late and len(bank) > 0) or budget.reached(bank)

    with _progress.shown("through training", budget.runs, quiet=quiet, unit="runs") as bar:
        bar.advance(budget.runs - len(missing))
        if not devices or len(devices) == 1:
            with jax.default_device(devices[0]) if devices else contextlib.nullcontext():
                for run in missing:
                    if enough():
                        return
                    bank.put(runner.run(run))
                    bar.advance()
            return
        _spread(runner, bank, list(devices), missing, enough, bar.advance)


def _spread(
    runner: Runner,
    bank: RunBank,
    devices: list[Any],
    missing: list[int],
    enough: Callable[[], bool],
    advance: Callable[[], None],
) -> None:
    """Distribute runs over devices, one thread each."""
    runners = [runner.on(device) for device in devices]
    with thread_pool(len(devices), "sawlog-runs") as pool:
        for first in range(0, len(missing), len(devices)):
            if enough():
                return
            together = missing[first : first + len(devices)]
            jobs = [pool.submit(_on, *job) for job in zip(devices, runners, together, strict=False)]
            for job in jobs:
                bank.put(job.result())
                advance()


def _on(device: Any, runner: Runner, run: int) -> Any:
    with jax.default_device(device):
        return runner.run(run)
