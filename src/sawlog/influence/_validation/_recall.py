"""``recall``: whether the examples that state a fact are found for the queries about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sawlog._validate import positive_integer
from sawlog.errors import ArgumentError
from sawlog.influence._scores import Scores


@dataclasses.dataclass(frozen=True)
class Recall:
    """How well planted examples are found.

    Args:
        mrr: the mean reciprocal rank: the mean over queries of one over the rank of the first
            planted example.
        mrr_error: its standard error over queries; None for a single query.
        at: the recall at each k: the mean over queries of the share of planted examples among the
            first k.
        first: the rank of the first planted example of each query, from 1 on; None if it is not
            among the top k that were kept.
    """

    mrr: float
    mrr_error: float | None
    at: Mapping[int, float]
    first: Mapping[Any, float | None]

    def __str__(self) -> str:
        error = "" if self.mrr_error is None else f" ± {self.mrr_error:.2f}"
        listed = ", ".join(f"recall at {k} {value:.2f}" for k, value in self.at.items())
        return f"MRR {self.mrr:.2f}{error}, {listed} ({len(self.first)} queries)"


def recall(
    scores: Scores, facts: Mapping[Any, Iterable[Any]], k: int | Sequence[int] = (1, 5, 10)
) -> Recall:
    """Compute the mean reciprocal rank and the recall of planted examples.

    Equal scores share the mean of their ranks, so that scores that tell nothing get no credit.

    Args:
        scores: scores of all examples, or the top k of each query.
        facts: for each query the ids of its planted examples, such as the sentences that state the
            answer.
        k: how many of the first examples to search; several are allowed.

    Raises:
        ArgumentError: a query or an example is unknown, a query has no planted examples, or fewer
            than ``k`` scores of each query were kept.

    >>> scores = Scores(np.array(["q"]), np.array([7, 8, 9]), np.array([[0.5, 2.0, 1.0]]))
    >>> found = recall(scores, {"q": [9]}, k=[1, 2])
    >>> found.mrr, found.at
    (0.5, {1: 0.0, 2: 1.0})
    """
    cuts = [positive_integer("k", each) for each in ([k] if isinstance(k, int) else k)]
    if not facts:
        raise ArgumentError("`facts` must have the planted examples of at least one query.")
    _check_kept(scores, max(cuts, default=1))
    index = {each: i for i, each in enumerate(scores.queries.tolist())}
    first: dict[Any, float | None] = {}
    reciprocal, shares = [], []
    for query, planted in facts.items():
        if query not in index:
            listed = ", ".join(map(repr, list(index)[:5]))
            raise ArgumentError(
                f"There is no query {query!r}, which `facts` has. Hint: the scores have {listed}."
            )
        ranks = _ranks(scores, index[query], query, _listed(planted))
        known = [rank for rank in ranks if rank is not None]
        first[query] = min(known, default=None)
        reciprocal.append(1 / min(known) if known else 0.0)
        shares.append([sum(r <= cut for r in known) / len(ranks) for cut in cuts])
    error = None
    if len(reciprocal) > 1:
        error = float(np.std(reciprocal, ddof=1) / np.sqrt(len(reciprocal)))
    means = np.mean(shares, axis=0).tolist()
    return Recall(float(np.mean(reciprocal)), error, dict(zip(cuts, means, strict=True)), first)


def _listed(ids: Any) -> list[Any]:
    listed: list[Any] = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids)).tolist()
    return list(dict.fromkeys(listed))


def _check_kept(scores: Scores, most: int) -> None:
    kept = scores.values.shape[1]
    if not scores.whole and kept < most and kept == scores.about.get("top_k", kept):
        raise ArgumentError(
            f"Only {kept} scores of each query were kept, so the recall at {most} is not known. "
            f"Hint: attribute(..., top_k={most}), or a smaller k=."
        )


def _ranks(scores: Scores, row: int, query: Any, planted: list[Any]) -> list[float | None]:
    """Return the ranks of the planted examples of a query; None beyond the top k."""
    if not planted:
        raise ArgumentError(
            f"The query {query!r} has no planted examples in `facts`. Hint: leave the query out, "
            f"or facts={{{query!r}: [ids]}}."
        )
    values = scores.values[row]
    sign = scores.about.get("sign", "positive")
    keys = np.abs(values) if sign == "absolute" else -values if sign == "negative" else values
    places = {
        e: i for i, e in enumerate((scores.ids if scores.whole else scores.ids[row]).tolist())
    }
    unknown = [each for each in planted if each not in places]
    if unknown and scores.whole:
        raise ArgumentError(
            f"The scores have no examples {', '.join(map(repr, unknown[:5]))}, which `facts` lists "
            f"for the query {query!r}."
        )
    found: list[float | None] = []
    for each in planted:
        if each not in places:
            found.append(None)
            continue
        own = keys[places[each]]
        before, equal = int((keys > own).sum()), int((keys == own).sum())
        found.append(before + (equal + 1) / 2)
    return found
