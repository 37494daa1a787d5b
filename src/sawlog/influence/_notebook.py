"""Scores and rankings in notebooks: small static tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sawlog._format import count, number
from sawlog._html import bar, html_table
from sawlog._text import printable_name

if TYPE_CHECKING:
    from sawlog.influence._scores import Scores
    from sawlog.influence._self_influence import Ranking

_QUERIES, _EXAMPLES, _RANKED = 10, 5, 10
_GOOD, _BAD = "#2b8a3e", "#c0271c"


def scores_html(scores: Scores) -> str:
    """Return the best examples of the first queries, with their scores."""
    shown = scores.top(_EXAMPLES) if scores.whole else scores
    rows = []
    for i, query in enumerate(scores.queries[:_QUERIES].tolist()):
        own = shown.values[i][:_EXAMPLES]
        greatest = float(np.max(np.abs(own[np.isfinite(own)]), initial=0.0))
        pairs = zip(shown.ids[i].tolist(), own.tolist(), strict=False)
        for rank, (each, value) in enumerate(pairs):
            length = abs(value) / greatest if greatest and np.isfinite(value) else 0.0
            mark = bar(length, _GOOD if value >= 0 else _BAD)
            said = "" if rank else printable_name(query)
            rows.append((said, rank + 1, printable_name(each), number(float(value)), mark))
    kind = str(scores.about.get("curvature", ""))
    title = f"{count(len(scores), 'query', 'queries')}, {scores.values.shape[1]:,} examples each"
    columns = ("query", "rank", "id", f"score ({kind})" if kind else "score", "")
    more = len(scores) - _QUERIES
    note = f"and {count(more, 'more query', 'more queries')}" if more > 0 else ""
    return html_table(title, columns, rows, right=(1, 3), note=note)


def ranking_html(ranking: Ranking) -> str:
    """Return the examples with the greatest values."""
    if not len(ranking):
        return html_table("no examples", ("id", "value"), [])
    first = ranking.top(_RANKED)
    greatest = max((abs(value) for _, value in first if np.isfinite(value)), default=0.0)
    rows = [
        (
            rank,
            printable_name(each),
            number(value),
            bar(abs(value) / greatest if greatest else 0.0, _BAD),
        )
        for rank, (each, value) in enumerate(first, 1)
    ]
    title = f"{count(len(ranking), 'example')}, greatest values first"
    return html_table(title, ("rank", "id", "value", ""), rows, right=(0, 2))
