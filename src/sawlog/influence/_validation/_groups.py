"""Leave groups of examples out, and compare the change with the one that scores predict."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sawlog._validate import integer
from sawlog.errors import ArgumentError
from sawlog.influence._scores import Scores
from sawlog.influence._validation._bank import BankModels
from sawlog.influence._validation._subset import Subset, number_left_out
from sawlog.influence._validation._validation import GroupChange

Groups = int | Mapping[Any, Iterable[Any]] | None


@dataclasses.dataclass(frozen=True)
class ExampleGroup:
    """A group of examples to leave out.

    Args:
        name: its name.
        query: the index of the query that it is compared for; None for the mean over all.
        subset: the training data without the group.
    """

    name: str
    query: int | None
    subset: Subset


def groups_of(scores: Scores, groups: Groups, share: float) -> list[ExampleGroup]:
    """Return the groups to leave out.

    Args:
        scores: scores of all examples.
        groups: groups by name; or for how many queries to leave out the best and the worst
            examples, besides those for the sum over all queries; or None for no groups.
        share: the share of examples in a group of the best or worst.

    Raises:
        ArgumentError: a group has unknown ids, or no or all examples.
    """
    if groups is None:
        return []
    if isinstance(groups, Mapping):
        return [ExampleGroup(str(n), None, _named(scores, n, own)) for n, own in groups.items()]
    count = min(integer("groups", groups, least=0), len(scores))
    size = number_left_out(len(scores.ids), share)
    found = _ends("all queries", None, scores.values.sum(0), size)
    for query in np.unique(np.linspace(0, len(scores) - 1, count).round().astype(int)).tolist():
        found += _ends(str(scores.queries[query]), query, scores.values[query], size)
    return found


def _ends(whose: str, query: int | None, values: np.ndarray, size: int) -> list[ExampleGroup]:
    order = np.argsort(-values, kind="stable")
    ends = {"best": order[:size], "worst": order[-size:]}
    return [
        ExampleGroup(f"{end} for {whose}", query, _without(own, len(values)))
        for end, own in ends.items()
    ]


def _named(scores: Scores, name: Any, ids: Iterable[Any]) -> Subset:
    index = {each: i for i, each in enumerate(scores.ids.tolist())}
    own = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids)).tolist()
    unknown = [each for each in own if each not in index]
    if unknown:
        raise ArgumentError(
            f"The group {name!r} has ids that the scores lack: "
            f"{', '.join(map(repr, unknown[:5]))}. Hint: ids of examples, as in scores.ids."
        )
    subset = _without([index[each] for each in own], len(index))
    if not 0 < subset.size < len(index):
        raise ArgumentError(f"The group {name!r} must contain some of the examples, not all.")
    return subset


def _without(places: Any, count: int) -> Subset:
    left_out = np.zeros(count, bool)
    left_out[places] = True
    return Subset(left_out)


def changes_of(
    groups: Sequence[ExampleGroup], scores: Scores, models: BankModels, better: str
) -> tuple[GroupChange, ...]:
    """Compare predicted with measured changes, for the groups that models were trained for.

    Args:
        groups: the groups.
        scores: scores in the order of the examples and queries of the bank.
        models: the models of the bank.
        better: whether a lower or a higher metric is better.
    """
    by_subset, unit = models.by_subset(), unit_of(scores)
    everything = by_subset.get(Subset(np.zeros(len(scores.ids), bool)).name, [])
    sign = 1.0 if better == "lower" else -1.0
    found = []
    for group in groups:
        own = by_subset.get(group.subset.name, [])
        if not own or not everything:
            continue
        lost = scores.values[:, group.subset.left_out].sum(1)
        predicted = float(_of_query(lost[None], group.query)[0])
        with_it, without = (_of_query(models.answers[p], group.query) for p in (everything, own))
        found.append(
            GroupChange(
                group.name,
                None if group.query is None else scores.queries[group.query].item(),
                group.subset.size,
                None if unit is None else sign * unit * predicted,
                float(without.mean() - with_it.mean()),
                _standard_error(with_it, without),
            )
        )
    return tuple(found)


def _of_query(values: np.ndarray, query: int | None) -> np.ndarray:
    """Return the values ``[m, q]`` of a query, or their mean over all queries."""
    return values.mean(1) if query is None else values[:, query]


def _standard_error(one: np.ndarray, other: np.ndarray) -> float | None:
    if min(len(one), len(other)) < 2:
        return None
    return math.sqrt(one.var(ddof=1) / len(one) + other.var(ddof=1) / len(other))


def unit_of(scores: Scores) -> float | None:
    """Return the factor from a score to a change of the metric; None if scores have no unit.

    Influence functions and derivatives through training estimate the change of the metric times
    the number of examples.
    """
    about = scores.about
    if "unit" in about:
        return None if about["unit"] is None else float(about["unit"])
    exact = about.get("method") == "through_training"
    fitted = about.get("curvature") not in ("identity", "shampoo", None)
    amounts = about.get("mode") == "dot" and (exact or fitted)
    return 1.0 / len(scores.ids) if amounts else None
