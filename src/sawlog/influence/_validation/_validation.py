"""``Validation``: what retraining said about scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from sawlog._format import count


@dataclasses.dataclass(frozen=True)
class GroupChange:
    """What leaving out a group of examples changed.

    Args:
        name: the name of the group, such as ``"best for 7"``.
        query: the query whose metric is compared; None for the mean over all queries.
        size: the number of examples in the group.
        predicted: the change of the metric that the scores predict; None if they have no unit.
        measured: the change of the metric after retraining, a mean over seeds.
        standard_error: the standard error of ``measured``; None for a single seed.
    """

    name: str
    query: Any
    size: int
    predicted: float | None
    measured: float
    standard_error: float | None


@dataclasses.dataclass(frozen=True)
class Validation:
    """How well scores predict what retraining on subsets does.

    Args:
        lds: the linear datamodeling score: the rank correlation over subsets of the sum of the
            scores of a subset with the metric after training on it, as a mean over queries.
        low, high: the ends of its interval.
        confidence: the probability that the interval contains the value for all subsets and
            queries.
        attainable: what perfect scores would have with this number of seeds; None for one seed.
        per_query: the correlation of each query, ``[q]``.
        subsets: the number of random subsets.
        drop: the share of examples that each subset leaves out.
        models: the number of models that were trained on subsets.
        groups: what leaving out groups of examples changed.
    """

    lds: float
    low: float
    high: float
    confidence: float
    attainable: float | None
    per_query: np.ndarray
    subsets: int
    drop: float
    models: int
    groups: tuple[GroupChange, ...] = ()

    def __str__(self) -> str:
        most = "" if self.attainable is None else f", attainable {self.attainable:.2f}"
        return (
            f"LDS {self.lds:.2f} ({self.confidence:.0%} interval {self.low:.2f} to "
            f"{self.high:.2f}{most}; {count(self.models, 'model')} on "
            f"{count(self.subsets, 'subset')} without {self.drop:.0%} of the examples)"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Validation) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        groups = [dataclasses.asdict(group) for group in self.groups]
        return {**fields, "per_query": self.per_query.tolist(), "groups": groups}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Validation:
        """Return a validation from the result of :meth:`to_json`."""
        groups = tuple(GroupChange(**group) for group in values["groups"])
        return cls(**{**values, "per_query": np.array(values["per_query"]), "groups": groups})
