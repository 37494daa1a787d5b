"""The part of the page about attribution: scores of training examples for queries."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sawlog import store
from sawlog.errors import SawlogError
from sawlog.example_data import ExampleData
from sawlog.influence import Logs, Scores, near_duplicates
from sawlog.report._bm25 import bm25
from sawlog.report._encode import example_json, histogram, listed, overall
from sawlog.report._groups import GroupBuilder, group_sums

TOP = 50  # examples on each side that are listed, before duplicates are folded
MOST_QUERIES = 60
MOST_OVERALL = 500_000  # examples whose total score is on the page
DUPLICATE = 0.99  # the least cosine of near-duplicates
_UNCALIBRATED = ("identity",)


@dataclasses.dataclass(frozen=True)
class ScoredRun:
    """Scores, and what is known about their examples.

    Args:
        title: what the page calls them.
        scores: the scores.
        data: the described training examples.
        query_data: the described queries.
        rows: the store of the rows that were scored, to find near-duplicates.
        coverage: the share of parameters that were watched; None if unknown.
        tokens: scores of single tokens by query and example, if they were computed.
    """

    title: str
    scores: Scores
    data: ExampleData | None = None
    query_data: ExampleData | None = None
    rows: Path | None = None
    coverage: float | None = None
    tokens: Mapping[Any, Mapping[Any, Sequence[float]]] = dataclasses.field(default_factory=dict)


def attribution_part(scored: ScoredRun) -> dict[str, Any]:
    """Return everything the page shows of some scores."""
    scores = scored.scores
    queries = listed(scores.queries)[:MOST_QUERIES]
    sides = {query: _sides(scores, place) for place, query in enumerate(queries)}
    lists = [{each for side in own for each, _, _ in side} for own in sides.values()]
    shown = set().union(*lists)
    groups = GroupBuilder(scores.ids) if scores.whole else None
    lexical = _lexical(scored, queries, groups)
    shown |= {each for pairs in lexical.values() for each, _ in pairs}
    folded = _duplicates(scored, lists)
    columns = {} if groups is None else groups.columns()
    said: dict[str, Any] = {
        "title": scored.title,
        "trust": trust(scored),
        "layers": list(scores.layers),
        "whole": scores.whole,
        "queries": [
            _query(scored, query, place, sides[query], lexical.get(query), folded, columns)
            for place, query in enumerate(queries)
        ],
        "queries_left_out": len(scores) - len(queries),
        "listed": TOP,
        "examples": _examples(scored.data, shown),
    }
    if scores.whole and said["trust"]["mode"] == "dot" and len(scores.ids) <= MOST_OVERALL:
        said["overall"] = overall(scores.ids, scores.values.sum(0))
    return said


def trust(scored: ScoredRun) -> dict[str, Any]:
    """Return how scores were made, and what is known about their reliability."""
    about = scored.scores.about
    damping = about.get("damping")
    amounts = [float(v) for v in damping.values()] if isinstance(damping, Mapping) else []
    weights = about.get("weights")
    kinds = set()
    if isinstance(weights, Mapping):
        kinds = {each for own in weights.values() for each in own}
    mode, kind = str(about.get("mode", "unknown")), str(about.get("curvature", "unknown"))
    count = about.get("examples") or (len(scored.scores.ids) if scored.scores.whole else None)
    validation = getattr(scored.scores, "validation", None)
    return {
        "method": kind,
        "mode": mode,
        "damping": [min(amounts), max(amounts)] if amounts else None,
        "coverage": scored.coverage,
        "weights": sorted(kinds),
        "same_weights": len(kinds) == 1 if kinds else None,
        "examples": count,
        "validated": about.get("validated") if validation is None else str(validation),
        "predicts": mode == "dot" and kind not in (*_UNCALIBRATED, "unknown") and bool(count),
    }


# -- one query ------------------------------------------------------------------------------------

Ranked = list[tuple[Any, float, int]]  # (id, score, its column in the scores)


def _sides(scores: Scores, place: int) -> tuple[Ranked, Ranked]:
    """Return the most helpful and the most harmful examples of a query, as far as known."""
    values = scores.values[place]
    ids = scores.ids if scores.whole else scores.ids[place]
    finite = np.isfinite(values)
    order = np.argsort(np.where(finite, -values, np.inf), kind="stable")[: int(finite.sum())]

    def ranked(columns: np.ndarray) -> Ranked:
        own = zip(listed(ids[columns]), columns.tolist(), strict=True)
        return [(each, float(values[column]), column) for each, column in own]

    if not _signed(scores):
        return ranked(order[:TOP]), []
    helpful = [each for each in ranked(order[:TOP]) if each[1] > 0]
    harmful = [each for each in ranked(order[::-1][:TOP]) if each[1] < 0]
    return helpful, harmful


def _signed(scores: Scores) -> bool:
    return scores.about.get("mode") != "l2"


def _query(
    scored: ScoredRun,
    query: Any,
    place: int,
    sides: tuple[Ranked, Ranked],
    lexical: list[tuple[Any, float]] | None,
    folded: Mapping[Any, Any],
    columns: Mapping[str, Any],
) -> dict[str, Any]:
    scores = scored.scores
    tokens = scored.tokens.get(query, {})
    said: dict[str, Any] = {
        "id": query,
        "helpful": _rows(scores, place, sides[0], folded, tokens),
        "harmful": _rows(scores, place, sides[1], folded, tokens),
        "histogram": histogram(scores.values[place]) if scores.whole else None,
        "lexical": lexical,
    }
    own = {} if scored.query_data is None else scored.query_data.get([query])
    if query in own:
        said["data"] = example_json(own[query])
    if columns and scores.about.get("mode") == "dot":
        said["groups"] = group_sums(columns, scores.values[place])
    return said


def _rows(
    scores: Scores,
    place: int,
    side: Ranked,
    folded: Mapping[Any, Any],
    tokens: Mapping[Any, Sequence[float]],
) -> list[dict[str, Any]]:
    rows = []
    for each, value, column in side:
        row: dict[str, Any] = {"id": each, "score": value}
        if scores.layers:
            row["layers"] = [float(v[place, column]) for v in scores.layers.values()]
        if each in folded:
            row["like"] = folded[each]
        if each in tokens:
            row["tokens"] = [float(value) for value in tokens[each]]
        rows.append(row)
    return rows


# -- what is known about examples -----------------------------------------------------------------


def _examples(data: ExampleData | None, shown: set[Any]) -> dict[str, Any]:
    if data is None:
        return {}
    found = data.get(sorted(shown, key=str))
    return {str(each): example_json(example) for each, example in found.items()}


def _lexical(
    scored: ScoredRun, queries: Sequence[Any], groups: GroupBuilder | None
) -> dict[Any, list[tuple[Any, float]]]:
    """Return the texts nearest to each query by BM25, if queries and examples have texts.

    All examples are read once, for their groups as well.
    """
    if scored.data is None:
        return {}
    own = {} if scored.query_data is None else scored.query_data.get(queries)
    asked = {query: example.text for query, example in own.items() if example.text}
    texts = _texts(scored.data, groups)
    if asked:
        return bm25(asked, texts, TOP)
    if groups is not None:
        for _ in texts:
            pass
    return {}


def _texts(data: ExampleData, groups: GroupBuilder | None) -> Iterator[tuple[Any, str]]:
    for batch in data.batches():
        for each, example in batch.items():
            if groups is not None:
                groups.add(each, example.fields)
            if example.text:
                yield each, example.text


def _duplicates(scored: ScoredRun, lists: Sequence[set[Any]]) -> dict[Any, Any]:
    """Return for each near-duplicate in a list the id that represents its group.

    Examples are near-duplicates if their data is equal, or if their gradients are parallel.
    """
    groups: dict[Any, list[Any]] = {}
    if scored.data is not None:
        shown = set().union(*lists)
        for each, example in scored.data.get(sorted(shown, key=str)).items():
            if example.text or example.image:
                groups.setdefault((example.text, example.image), []).append(each)
    found = list(groups.values())
    if scored.rows is not None:
        # Rows may be gone, or hold no gradients: then only equal data is folded.
        with contextlib.suppress(SawlogError, OSError), store.open(scored.rows) as reader:
            logs = Logs(reader)
            known = set(listed(logs.ids))
            for own in lists:  # list by list, so that the work grows with their number only
                found += _parallel(logs, sorted(own & known, key=str))
    return _representatives(found)


def _parallel(logs: Logs, own: list[Any]) -> list[list[Any]]:
    if len(own) < 2:
        return []
    some = logs.of(logs.gather(own))
    return near_duplicates(some, threshold=DUPLICATE, neighbours=min(8, len(own) - 1))


def _representatives(groups: Sequence[Sequence[Any]]) -> dict[Any, Any]:
    """Join groups that share an example, and map every member to the first one.

    >>> _representatives([[1, 2], [2, 3], [4]])
    {1: 1, 2: 1, 3: 1}
    """
    parent: dict[Any, Any] = {}

    def root(each: Any) -> Any:
        while parent.setdefault(each, each) != each:
            each = parent[each]
        return each

    for group in groups:
        for other in group[1:]:
            first, second = root(group[0]), root(other)
            if first != second:
                parent[second] = first
    return {each: root(each) for each in parent}
