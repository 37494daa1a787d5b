"""Groups of examples by a column of their data, and the sums of their scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sawlog.report._encode import listed

MOST_GROUPS = 40  # a column with more values is not a grouping

Grouping = tuple[list[Any], np.ndarray]  # the values of a column; the value of each example, or -1


class GroupBuilder:
    """Collects the columns that group examples, from one example after the other.

    A column is one whose values are texts, integers or booleans, of which there are few.

    Args:
        ids: the ids of the scored examples.
    """

    def __init__(self, ids: Any) -> None:
        self._place = {each: i for i, each in enumerate(listed(ids))}
        self._values: dict[str, dict[Any, int]] = {}
        self._groups: dict[str, np.ndarray] = {}
        self._refused: set[str] = set()

    def add(self, each: Any, fields: Mapping[str, Any]) -> None:
        """Add the columns of an example."""
        place = self._place.get(each)
        if place is None:
            return
        for name, value in fields.items():
            if name in self._refused:
                continue
            known = self._values.setdefault(name, {})
            if not isinstance(value, str | int) or len(known) > MOST_GROUPS:
                self._refused.add(name)
                continue
            if name not in self._groups:
                self._groups[name] = np.full(len(self._place), -1, np.int64)
            self._groups[name][place] = known.setdefault(value, len(known))

    def columns(self) -> dict[str, Grouping]:
        """Return the columns with at least two groups, and the group of each example."""
        return {
            name: (list(known), self._groups[name])
            for name, known in self._values.items()
            if name not in self._refused and 2 <= len(known) <= MOST_GROUPS
        }


def group_sums(columns: Mapping[str, Grouping], values: np.ndarray) -> dict[str, Any]:
    """Return for each column ``[[value, examples, sum of scores], ...]``, greatest sum first."""
    found = {}
    for name, (names, groups) in columns.items():
        known = (groups >= 0) & np.isfinite(values)
        counts = np.bincount(groups[known], minlength=len(names))
        sums = np.bincount(groups[known], values[known], minlength=len(names))
        order = np.argsort(-sums, kind="stable")
        found[name] = [[names[i], int(counts[i]), float(sums[i])] for i in order]
    return found
