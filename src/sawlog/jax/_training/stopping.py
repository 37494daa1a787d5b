"""Finish runs until there are enough: by number, by standard error or by time."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
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
    begun, counted, reached = time.monotonic(), -1, False
    devices = list(devices or [None])
    runners = [runner] if len(devices) == 1 else [runner.on(device) for device in devices]
    with (
        _progress.shown("through training", budget.runs, quiet=quiet, unit="runs") as bar,
        thread_pool(len(devices), "sawlog-runs") as pool,
    ):
        while True:
            count = len(bank.results(budget.runs))
            if count != counted:
                bar.advance(count - max(0, counted))
                counted, reached = count, budget.reached(bank)
            late = budget.seconds is not None and time.monotonic() - begun > budget.seconds
            if count == budget.runs or reached or (late and count > 0):
                return
            together = bank.take(budget.runs, len(devices))
            for result in _each(pool, list(zip(devices, runners, together, strict=False))):
                bank.put(result)
            bank.done()


def _each(pool: Any, jobs: list[tuple[Any, Runner, int]]) -> Iterator[Any]:
    """Train several runs at once, each on a device of its own."""
    if len(jobs) == 1:
        yield _on(*jobs[0])
        return
    submitted = [pool.submit(_on, *job) for job in jobs]
    for job in submitted:
        yield job.result()


def _on(device: Any, runner: Runner, run: int) -> Any:
    with contextlib.nullcontext() if device is None else jax.default_device(device):
        return runner.run(run)
