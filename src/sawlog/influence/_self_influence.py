"""Self-influence: how much the prediction for an example depends on that example alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np

from sawlog._array_device import ArrayDevice, device_named, to_numpy
from sawlog._optional import require
from sawlog._validate import one_of
from sawlog.curvature import Curvature, Damping
from sawlog.errors import ArgumentError
from sawlog.influence._compatibility import check_weights
from sawlog.influence._engines import as_executor, in_order, parts_for, threads_for
from sawlog.influence._fitted_curvature import curvature_for
from sawlog.influence._fitting import MOST_PARTS
from sawlog.influence._logs import BUDGET, Logs
from sawlog.influence._scoring_job import NONFINITE, check_finite
from sawlog.influence._threads import cores, limited_to
from sawlog.influence._top_k import check_top_k


@dataclasses.dataclass(frozen=True)
class Ranking:
    """One number per example.

    Args:
        ids: the ids of the examples, ``[n]``.
        values: their numbers, ``[n]``.
        layers: the numbers of each layer, which sum to ``values``.
    """

    ids: np.ndarray
    values: np.ndarray
    layers: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, key: str) -> np.ndarray:
        """Return the values for ``"influence"``, and the ids for ``"src_ids"``."""
        one_of("key", key, ("influence", "src_ids"))
        return self.values if key == "influence" else self.ids

    def top(self, k: int = 10, *, least: bool = False) -> list[tuple[Any, float]]:
        """Return ``(id, value)`` of the ``k`` greatest values, or of the least ones."""
        check_top_k(k, "positive")
        order = np.argsort(self.values if least else -self.values, kind="stable")[:k]
        return list(zip(self.ids[order].tolist(), self.values[order].tolist(), strict=True))

    def _repr_html_(self) -> str:
        """Return the greatest values as a small table for notebooks."""
        from sawlog.influence._notebook import ranking_html

        return ranking_html(self)

    def to_pandas(self) -> Any:
        """Return a data frame with the columns ``id``, ``value`` and one per layer."""
        pandas: Any = require("pandas", "arrow", "Ranking.to_pandas()")
        return pandas.DataFrame({"id": self.ids, "value": self.values, **self.layers})


def self_influence(
    logs: Any,
    *,
    curvature: str | Curvature = "ekfac",
    damping: Damping = None,
    names: Sequence[str] | None = None,
    budget: int = BUDGET,
    executor: Any = None,
    device: Any = None,
    weights: str = "same",
    nonfinite: str = "error",
) -> Ranking:
    """Compute ``g^T (H + d)^-1 g`` for each example of a store.

    Examples that are rare, hard or mislabelled have large values, because no other example
    supports the same prediction. See :func:`attribute` for the options, ``executor`` among them.

    Raises:
        ArgumentError: there are no examples, or as for :func:`attribute`.
    """
    rows = Logs(logs, names=names)
    if len(rows) == 0:
        raise ArgumentError(
            "The logs contain no examples. Hint: what a run has logged can be read after "
            "run.flush(), run.finalize() or run.eval()."
        )
    at = rows.usable_device(device_named(device))
    one_of("nonfinite", nonfinite, NONFINITE)
    check_weights(rows, rows, weights)
    engine = as_executor(executor)
    how: dict[str, Any] = {"budget": budget, "device": at, "weights": weights}
    fitted = curvature_for(rows, curvature, **how, executor=engine)
    task = SelfInfluenceTask(rows, fitted, damping, budget, at, rows.state())
    parts = [task.run((0, 1))] if engine is None else _run_on(engine, task)
    named = np.concatenate([ids for ids, _ in parts])
    joined = {name: np.concatenate([own[name] for _, own in parts]) for name in rows.layers}
    total = np.sum(list(joined.values()), axis=0)
    if nonfinite == "error":
        check_finite(total, named)
    return Ranking(named, total, joined)


@dataclasses.dataclass(frozen=True)
class SelfInfluenceTask:
    """Everything that the self-influence of some files needs; can be sent to another process.

    Args:
        logs: the rows.
        curvature, damping: of the quadratic form.
        budget: approximate bytes of memory to use.
        device: where products are computed.
        state: the state of the store when the task was made, to notice later writes.
        threads: how many threads a matrix product may use; None is as many as usual.
    """

    logs: Logs
    curvature: Curvature
    damping: Damping
    budget: int
    device: ArrayDevice
    state: str
    threads: int | None = None

    def run(self, part: tuple[int, int]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the ids of the i-th of n parts of the rows, and the values of each layer.

        Raises:
            StoreError: The store changed since the task was made.
        """
        self.logs.check_state(self.state)
        ids: list[np.ndarray] = [np.asarray(self.logs.ids[:0])]
        layers: dict[str, list[np.ndarray]] = {name: [np.zeros(0)] for name in self.logs.layers}
        with limited_to(self.threads):
            for rows in self.logs.parts(self.budget, part, copies=32):
                ids.append(np.asarray(rows.ids))
                found = self.curvature.quadratic_all(rows.rows(self.device), self.damping)
                for name, values in found.items():
                    layers[name].append(to_numpy(values))
        return np.concatenate(ids), {name: np.concatenate(own) for name, own in layers.items()}


def _run_on(
    executor: Executor, task: SelfInfluenceTask
) -> list[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Return the results of all parts in order."""
    count = parts_for(executor, min(task.logs.files, MOST_PARTS), MOST_PARTS)
    own = dataclasses.replace(task, threads=threads_for(executor, cores(task.device)))
    parts = [(index, count) for index in range(count)]
    return list(in_order(executor, own.run, parts, count))
