"""Scores as columns of a dataset."""

from __future__ import annotations

from typing import Any

import numpy as np

from sawlog.errors import ArgumentError
from sawlog.influence import Ranking, Scores


def add_scores(
    dataset: Any,
    scores: Scores | Ranking,
    *,
    query: Any = None,
    column: str = "influence",
    data_id: str | None = None,
) -> Any:
    """Return a ``datasets.Dataset`` with scores as one more column.

    Args:
        dataset: the dataset whose examples were scored.
        scores: the result of ``trainer.influence()`` or ``trainer.self_influence()``.
        query: the id of the query whose scores are taken; None takes the only one, or the mean
            over all queries.
        column: the name of the new column.
        data_id: the column of the ids; None if they are row numbers.

    Raises:
        ArgumentError: a row has no score.
    """
    ids = list(range(len(dataset))) if data_id is None else list(dataset[data_id])
    if isinstance(scores, Scores):
        if not scores.whole:
            raise ArgumentError(
                "These are the top scores of each query, so most rows have none. Hint: "
                "trainer.influence(top_k=None)."
            )
        rows = scores.values if query is None else scores.select([query]).values
        values = rows.mean(0)
    else:
        values = np.asarray(scores.values)
    known = dict(zip(np.asarray(scores.ids).tolist(), values.tolist(), strict=True))
    missing = [each for each in ids if each not in known]
    if missing:
        raise ArgumentError(
            f"{len(missing)} rows have no score, such as {missing[0]!r}. Hint: data_id= names the "
            "column of the ids that were logged."
        )
    return dataset.add_column(column, [known[each] for each in ids])
