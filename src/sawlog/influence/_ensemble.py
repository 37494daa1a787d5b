"""``ensemble``: the mean of the scores of several runs, with standard errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from sawlog.errors import ArgumentError
from sawlog.influence._scores import Scores, indices_of, spread


def ensemble(
    several: Sequence[Scores], weights: Sequence[float] | None = None, *, keep: bool = False
) -> Scores:
    """Average the scores of several runs or checkpoints, or sum them with weights.

    Queries and examples are matched by id, and returned in the order of the first. Scores of
    layers are included if all have the same layers. A mean has standard errors, which tell how
    much the scores would differ for other runs.

    Args:
        several: scores of all examples.
        weights: one factor for each; by default ``1 / len(several)``.
        keep: whether to keep the scores of each run as :attr:`Scores.members`, so that sums over
            groups have standard errors, too.

    Raises:
        ArgumentError: queries, examples or modes differ, or some are a top k.
    """
    if not several:
        raise ArgumentError(
            "`several` must contain at least one Scores. Hint: ensemble([attribute(...), ...])."
        )
    for each in several:
        _check_comparable(each, several[0])
    shares = [1 / len(several)] * len(several) if weights is None else list(weights)
    if len(shares) != len(several):
        raise ArgumentError(
            f"There are {len(shares)} weights for {len(several)} Scores. Hint: one weight for "
            "each, or omit weights= for the mean."
        )
    first = several[0]
    orders = [
        np.ix_(
            indices_of(each.queries, first.queries.tolist(), "query"),
            indices_of(each.ids, first.ids.tolist(), "example"),
        )
        for each in several
    ]

    def summed(matrices: Iterable[np.ndarray]) -> np.ndarray:
        total = np.zeros(first.values.shape)
        for share, matrix, order in zip(shares, matrices, orders, strict=True):
            total += share * matrix[order]
        return total

    alike = all(set(each.layers) == set(first.layers) for each in several)
    layers = {n: summed(e.layers[n] for e in several) for n in (first.layers if alike else ())}
    about = {**first.about, "ensemble": len(several)}
    values = summed(each.values for each in several)
    joined = Scores(first.queries, first.ids, values, layers, about)
    if weights is not None or len(several) < 2:
        return joined
    members = np.stack([each.values[order] for each, order in zip(several, orders, strict=True)])
    errors, kept = spread(members), members if keep else None
    about |= {"degrees_of_freedom": len(several) - 1}  # for intervals, also without members
    return dataclasses.replace(joined, about=about, standard_errors=errors, members=kept)


def _check_comparable(each: Scores, first: Scores) -> None:
    if not each.whole or set(each.ids.tolist()) != set(first.ids.tolist()):
        raise ArgumentError(
            "An ensemble needs the scores of all examples, and the same examples. Hint: "
            "attribute(..., top_k=None), then ensemble(...).top(k)."
        )
    if set(each.queries.tolist()) != set(first.queries.tolist()):
        raise ArgumentError(
            "The scores of an ensemble have different queries. Hint: scores.select(ids) keeps "
            "those that all of them have."
        )
    modes = {one.about.get("mode", "dot") for one in (each, first)}
    if len(modes) > 1:
        raise ArgumentError(
            f"The scores of an ensemble must have one mode; got {sorted(modes)}. Hint: the same "
            "mode= in each attribute(...)."
        )
