"""Groups of examples by a column of their data, and the sums of their scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sawlog.example_data import ExampleData
from sawlog.report._encode import listed

MOST_GROUPS = 40  # a column with more values is not a grouping

Grouping = tuple[list[Any], np.ndarray]  # the values of a column; the value of each example, or -1


def group_columns(data: ExampleData | None, ids: Any) -> dict[str, Grouping]:
    """Return the columns that group the examples, with the group of each example.

    A column is one whose values are texts, integers or booleans, of which there are few.
    """
    if data is None:
        return {}
    place = {each: i for i, each in enumerate(listed(ids))}
    values: dict[str, dict[Any, int]] = {}
    groups: dict[str, np.ndarray] = {}
    refused: set[str] = set()
    for batch in data.batches():
        for each, example in batch.items():
            if each not in place:
                continue
            for name, value in example.fields.items():
                if name in refused:
                    continue
                known = values.setdefault(name, {})
                if not isinstance(value, str | int) or len(known) > MOST_GROUPS:
                    refused.add(name)
                    continue
                own = groups.setdefault(name, np.full(len(place), -1, np.int64))
                own[place[each]] = known.setdefault(value, len(known))
    return {
        name: (list(known), groups[name])
        for name, known in values.items()
        if name not in refused and 2 <= len(known) <= MOST_GROUPS
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
