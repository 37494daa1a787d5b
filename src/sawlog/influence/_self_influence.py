"""Self-influence: how much the model's answer for an example rests on that example alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sawlog._array_device import device_named, to_numpy
from sawlog._optional import require
from sawlog.curvature import Curvature, Damping
from sawlog.errors import ArgumentError
from sawlog.influence._compatibility import check_weights
from sawlog.influence._fitted_curvature import curvature_for
from sawlog.influence._logs import BUDGET, Logs
from sawlog.influence._scoring_job import NONFINITE, check_finite
from sawlog.influence._top_k import check_top_k


@dataclasses.dataclass(frozen=True)
class Ranking:
    """A number for each example.

    Args:
        ids: those of the examples.
        values: their numbers.
        layers: the same for each layer; they add up to the values.
    """

    ids: np.ndarray
    values: np.ndarray
    layers: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, key: str) -> np.ndarray:
        """``"influence"``: the numbers; ``"src_ids"``: the ids."""
        if key not in ("influence", "src_ids"):
            raise ArgumentError(f"There are 'influence' and 'src_ids', got {key!r}.")
        return self.values if key == "influence" else self.ids

    def top(self, k: int = 10, *, least: bool = False) -> list[tuple[Any, float]]:
        """The ``k`` examples with the greatest numbers, or the least, with them."""
        check_top_k(k, "positive")
        order = np.argsort(self.values if least else -self.values, kind="stable")[:k]
        return list(zip(self.ids[order].tolist(), self.values[order].tolist(), strict=True))

    def to_pandas(self) -> Any:
        """A table with the columns ``id``, ``value`` and one for each layer."""
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
    """``g^T (H + d)^-1 g`` for each example of a store; see :func:`attribute` for the options.

    Examples that are rare, hard or mislabelled have much: nothing else in the data explains them.

    Raises:
        ArgumentError: there are no examples, or as for :func:`attribute`.
    """
    rows = Logs(logs, names=names)
    if len(rows) == 0:
        raise ArgumentError("There are no examples whose influence on themselves there could be.")
    place = rows.where(device_named(device))
    if nonfinite not in NONFINITE:
        listed = ", ".join(map(repr, NONFINITE))
        raise ArgumentError(f"nonfinite is one of {listed}, got {nonfinite!r}.")
    check_weights(rows, rows, weights)
    fitted = curvature_for(rows, curvature, budget=budget, place=place, weights=weights)
    ids: list[np.ndarray] = []
    layers: dict[str, list[np.ndarray]] = {name: [] for name in rows.layers}
    for part in rows.parts(budget, copies=32):
        ids.append(np.asarray(part.ids))
        for name, values in fitted.quadratic_all(part.rows(place), damping).items():
            layers[name].append(to_numpy(values))
    joined = {name: np.concatenate(values) for name, values in layers.items()}
    values, named = np.sum(list(joined.values()), axis=0), np.concatenate(ids)
    if nonfinite == "error":
        check_finite(values, named)
    return Ranking(named, values, joined)
