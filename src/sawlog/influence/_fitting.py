"""Fit a curvature to stored rows: in this process, or as a map and a sum over files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any

from sawlog import curvature as curvatures
from sawlog._array_device import ArrayDevice
from sawlog.curvature import Layer, RowSums
from sawlog.influence._engines import in_order, parts_for, threads_for, workers_of
from sawlog.influence._logs import Logs
from sawlog.influence._threads import cores, limited_to
from sawlog.run_files._measured import Measured

MOST_PARTS = 256
_AT_ONCE = 8  # tasks of an executor whose number of workers is not known


@dataclasses.dataclass(frozen=True)
class Fitting:
    """How a curvature is fitted.

    Args:
        kind: the kind of curvature.
        measured: the statistics of the run, for K-FAC and EK-FAC.
        budget: approximate bytes of memory to use, for rows and for sums that wait to be added.
        device: where sums over rows are computed.
        executor: what computes sums over files; None is this process.
    """

    kind: str
    measured: Measured | None
    budget: int
    device: ArrayDevice
    executor: Executor | None = None

    def layers(self, logs: Logs) -> dict[str, Layer]:
        """Return the layers of the curvature of some logs."""
        if self.executor is not None and logs.files > 1:
            shapes = {name: shape for name, (_, shape) in logs.shapes().items()}
            sums = curvatures.row_sums(self.kind, shapes, self.measured)
            if sums is not None and 2 * sums.nbytes(len(logs)) <= self.budget:
                return self._in_parts(logs, sums, self.executor)
        fitted = curvatures.fit(
            self.kind,
            lambda: logs.scan(self.budget, self.device),
            self.measured,
            count=len(logs),
        )
        return dict(fitted.layers)

    def _in_parts(self, logs: Logs, sums: RowSums, executor: Executor) -> dict[str, Layer]:
        """Add up the sums of all parts in order, as few at a time as fit the budget."""
        count = parts_for(executor, logs.files, MOST_PARTS)
        threads = threads_for(executor, cores(self.device))
        task = SumsTask(logs, sums, self.budget, self.device, logs.state(), threads)
        fitting = self.budget // (2 * max(1, sums.nbytes(len(logs))))
        most = max(1, min(fitting, 2 * (workers_of(executor) or _AT_ONCE)))
        for part in in_order(executor, task.run, [(i, count) for i in range(count)], most):
            sums.merge(part)
        return sums.layers()


@dataclasses.dataclass(frozen=True)
class SumsTask:
    """Everything that adding up some files needs; can be sent to another process.

    Args:
        logs: the rows.
        empty: the sums to start from.
        budget: approximate bytes of memory to use.
        device: where sums are computed.
        state: the state of the store when the task was made, to notice later writes.
        threads: how many threads a matrix product may use; None is as many as usual.
    """

    logs: Logs
    empty: RowSums
    budget: int
    device: ArrayDevice
    state: str
    threads: int | None = None

    def run(self, part: tuple[int, int]) -> Any:
        """Return the data of the sums over the i-th of n parts of the rows.

        Raises:
            StoreError: The store changed since the task was made.
        """
        self.logs.check_state(self.state)
        sums = self.empty.fresh()
        with limited_to(self.threads):
            curvatures.add_blocks(sums, self._blocks(part))
        return sums.data()

    def _blocks(self, part: tuple[int, int]) -> Iterator[dict[str, Any]]:
        for rows in self.logs.parts(self.budget, part, copies=32):
            yield rows.rows(self.device)
