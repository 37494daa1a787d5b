"""Applications of influence: label errors, near-duplicates, pruning, tables of examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sawlog._rich import Table, Text
from sawlog._text import printable, printable_name
from sawlog._validate import fraction, number, positive_integer, refuse
from sawlog.influence._attribute import attribute
from sawlog.influence._logs import Logs
from sawlog.influence._scores import Scores
from sawlog.influence._self_influence import Ranking, self_influence

Data = Mapping[Any, Any] | Sequence[Any] | Callable[[Any], Any]


def label_errors(logs: Any, **options: Any) -> Ranking:
    """Rank examples by how likely their label is wrong, most suspicious first.

    Ranks by self-influence: the other examples contradict a wrong label, so only the example
    itself makes the model predict it. ``.top(k)`` returns the first ``k``.

    Args:
        logs: what :func:`self_influence` takes.
        options: those of :func:`self_influence`.
    """
    ranking = self_influence(logs, **options)
    order = np.argsort(-ranking.values, kind="stable")
    layers = {name: values[order] for name, values in ranking.layers.items()}
    return Ranking(ranking.ids[order], ranking.values[order], layers)


def near_duplicates(
    logs: Any, *, threshold: float = 0.99, neighbours: int = 8, **options: Any
) -> list[list[Any]]:
    """Return groups of examples whose gradients point in the same direction, largest group first.

    Compares each example with its nearest neighbours. Examples that are connected by a chain of
    neighbours form a group.

    Args:
        logs: what :func:`attribute` takes.
        threshold: the least cosine of two duplicates.
        neighbours: how many neighbours of each example to compare.
        options: those of :func:`attribute`.
    """
    if not -1 <= number("threshold", threshold) <= 1:
        refuse("threshold", "a cosine from -1 to 1", threshold)
    positive_integer("neighbours", neighbours)
    rows = Logs(logs)
    options = {"curvature": "identity", **options}
    scores = attribute(rows, rows, mode="cosine", top_k=neighbours + 1, **options)
    parent = {each: each for each in scores.queries.tolist()}

    def root(each: Any) -> Any:
        while parent[each] != each:
            parent[each] = parent[parent[each]]
            each = parent[each]
        return each

    for i, one in enumerate(scores.queries.tolist()):
        near = scores.values[i] >= threshold - 1e-6  # rounding of equal rows
        for other in scores.ids[i][near].tolist():
            parent[root(other)] = root(one)
    groups: dict[Any, list[Any]] = {}
    for each in scores.queries.tolist():
        groups.setdefault(root(each), []).append(each)
    return sorted((group for group in groups.values() if len(group) > 1), key=len, reverse=True)


def prune(scores: Scores | Ranking, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Split examples into those to keep and those to remove.

    Args:
        scores: :class:`Scores` removes the examples with the lowest sum of scores over all queries,
            which should represent the task of the model. A :class:`Ranking`, such as that of
            :func:`self_influence`, removes those with the greatest values.
        share: the share of examples to remove, from 0 to 1.

    Returns:
        The ids to keep in their order, and the ids to remove, worst first.
    """
    fraction("share", share)
    if isinstance(scores, Ranking):
        ids, badness = scores.ids, scores.values
    else:
        ids, badness = scores.ids, -scores.group().values[0]
    order = np.argsort(-badness, kind="stable")
    count = round(share * len(ids))
    out = np.zeros(len(ids), bool)
    out[order[:count]] = True
    return ids[~out], ids[order[:count]]


def attribution_table(
    scores: Scores,
    data: Data,
    query_data: Data | None = None,
    *,
    k: int = 3,
    least: bool = True,
    width: int = 60,
) -> Table:
    """Return a rich table of the most and least helpful examples of each query.

    Args:
        scores: scores of all examples, or the top k of each query.
        data: maps the id of an example to what to show: a dict, a sequence, or a function.
        query_data: the same for queries; their ids by default.
        k: how many examples to show per query.
        least: whether to show the least helpful examples as well, if all scores are known.
        width: the number of characters to show of each text.
    """
    table = Table(show_lines=False, title="Which examples helped, and which did not")
    for name, side in (("query", "left"), ("score", "right"), ("id", "left"), ("example", "left")):
        table.add_column(name, justify="right" if side == "right" else "left", overflow="fold")
    show_query: Data = str if query_data is None else query_data
    for query in scores.queries.tolist():
        pairs = sorted(scores[query], key=lambda pair: -pair[1])
        shown = pairs[:k]
        if least and scores.whole and len(pairs) > 2 * k:
            shown = shown + pairs[-k:]
        for i, (each, value) in enumerate(shown):
            color = "green" if value >= 0 else "red"
            score, label = Text(f"{value:+.3g}", color), Text(printable_name(each))
            first = _text(show_query, query, width) if i == 0 else Text()
            last = i == len(shown) - 1
            table.add_row(first, score, label, _text(data, each, width), end_section=last)
    return table


def _text(data: Data, key: Any, width: int) -> Text:
    text = " ".join(str(data(key) if callable(data) else data[key]).split())
    return Text(printable(text if len(text) <= width else text[: width - 3] + "..."))
