"""What people do with influence: find wrong labels, near-duplicates, what to leave out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from sawlog._text import printable
from sawlog.errors import ArgumentError
from sawlog.influence._attribute import attribute
from sawlog.influence._logs import Logs
from sawlog.influence._scores import Scores
from sawlog.influence._self_influence import Ranking, self_influence

Data = Mapping[Any, Any] | Sequence[Any] | Callable[[Any], Any]


def label_errors(logs: Any, **options: Any) -> Ranking:
    """Examples by how likely their label is wrong, by self-influence; ``.top(k)`` has the worst.

    A wrong label is one that the rest of the data speaks against, so that only the example itself
    holds the model to it. The options are those of :func:`self_influence`.
    """
    ranking = self_influence(logs, **options)
    order = np.argsort(-ranking.values, kind="stable")
    layers = {name: values[order] for name, values in ranking.layers.items()}
    return Ranking(ranking.ids[order], ranking.values[order], layers)


def near_duplicates(
    logs: Any, *, threshold: float = 0.99, neighbours: int = 8, **options: Any
) -> list[list[Any]]:
    """Groups of examples whose gradients point the same way: a cosine of ``threshold`` or more.

    Of each example its ``neighbours`` nearest are looked at; chains of them make a group. The
    options are those of :func:`attribute`. The largest groups come first.
    """
    if not -1 <= threshold <= 1:
        raise ArgumentError(f"threshold is a cosine, from -1 to 1, got {threshold!r}.")
    rows = Logs(logs)
    options = {"curvature": "identity", **options}
    scores = attribute(rows, rows, mode="cosine", top_k=neighbours + 1, **options)
    parent = {each: each for each in scores.queries.tolist()}

    def root(each: Any) -> Any:
        while parent[each] != each:
            parent[each] = parent[parent[each]]
            each = parent[each]
        return each

    for place, one in enumerate(scores.queries.tolist()):
        near = scores.values[place] >= threshold - 1e-6  # rounding of equal rows
        for other in scores.ids[place][near].tolist():
            parent[root(other)] = root(one)
    groups: dict[Any, list[Any]] = {}
    for each in scores.queries.tolist():
        groups.setdefault(root(each), []).append(each)
    return sorted((group for group in groups.values() if len(group) > 1), key=len, reverse=True)


def prune(scores: Scores | Ranking, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Which examples to keep and which to leave out, a ``share`` of all of them.

    By :class:`Scores`, those that help the queries least, in sum, are left out: give queries that
    stand for what the model is for. By a :class:`Ranking`, those with the greatest values are, as
    of :func:`self_influence`.

    Returns:
        The ids to keep and those to leave out, worst first.
    """
    if not 0 <= share <= 1:
        raise ArgumentError(f"share is a part of the examples, from 0 to 1, got {share!r}.")
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
    """The most and least helpful examples of each query, with what they are, as a rich table.

    Args:
        scores: of all examples, or the best of each query.
        data: what an id stands for: a dict, a sequence, or a function.
        query_data: the same for queries.
        k: how many of each query.
        least: whether to show the least helpful as well, where all scores are known.
        width: how many characters of a text to show.
    """
    table = Table(show_lines=False, title="Which examples helped, and which did not")
    for name, side in (("query", "left"), ("score", "right"), ("id", "left"), ("example", "left")):
        table.add_column(name, justify="right" if side == "right" else "left", overflow="fold")
    for query in scores.queries.tolist():
        pairs = sorted(scores[query], key=lambda pair: -pair[1])
        shown = pairs[:k]
        if least and scores.whole and len(pairs) > 2 * k:
            shown = shown + pairs[-k:]
        asked: Data = str if query_data is None else query_data
        for i, (each, value) in enumerate(shown):
            color = "green" if value >= 0 else "red"
            score, label = Text(f"{value:+.3g}", color), Text(printable(str(each)))
            said = _text(asked, query, width) if i == 0 else Text()
            last = i == len(shown) - 1
            table.add_row(said, score, label, _text(data, each, width), end_section=last)
    return table


def _text(data: Data, key: Any, width: int) -> Text:
    text = " ".join(str(data(key) if callable(data) else data[key]).split())
    return Text(printable(text if len(text) <= width else text[: width - 3] + "..."))
