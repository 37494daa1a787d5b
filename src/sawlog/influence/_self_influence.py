"""Self-influence: how much the prediction for an example depends on that example alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sawlog._array_device import device_named, to_numpy
from sawlog._optional import require
from sawlog._validate import one_of
from sawlog.curvature import Curvature, Damping
from sawlog.errors import ArgumentError
from sawlog.influence._compatibility import check_weights
from sawlog.influence._fitted_curvature import curvature_for
from sawlog.influence._logs import BUDGET, Logs
from sawlog.influence._scoring_job import NONFINITE, check_finite
from sawlog.influence._top_k import check_top_k


@dataclasses.dataclass(frozen=True)
class Ranking:
    """One number per example.

    Args:
        ids: The ids of the examples, ``[n]``.
        values: Their numbers, ``[n]``.
        layers: The numbers of each layer, which sum to ``values``.
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
    device: Any = None,
    weights: str = "same",
    nonfinite: str = "error",
) -> Ranking:
    """Compute ``g^T (H + d)^-1 g`` for each example of a store.

    Examples that are rare, hard or mislabelled have large values, because no other example
    supports the same prediction. See :func:`attribute` for the options.

    Raises:
        ArgumentError: There are no examples, or as for :func:`attribute`.
    """
    rows = Logs(logs, names=names)
    if len(rows) == 0:
        raise ArgumentError("The logs contain no examples.")
    at = rows.usable_device(device_named(device))
    one_of("nonfinite", nonfinite, NONFINITE)
    check_weights(rows, rows, weights)
    fitted = curvature_for(rows, curvature, budget=budget, device=at, weights=weights)
    ids: list[np.ndarray] = []
    layers: dict[str, list[np.ndarray]] = {name: [] for name in rows.layers}
    for part in rows.parts(budget, copies=32):
        ids.append(np.asarray(part.ids))
        for name, values in fitted.quadratic_all(part.rows(at), damping).items():
            layers[name].append(to_numpy(values))
    joined = {name: np.concatenate(values) for name, values in layers.items()}
    total, named = np.sum(list(joined.values()), axis=0), np.concatenate(ids)
    if nonfinite == "error":
        check_finite(total, named)
    return Ranking(named, total, joined)
