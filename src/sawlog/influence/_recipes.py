"""Published methods that combine scores with norms: RelatIF and LESS."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sawlog.errors import ArgumentError
from sawlog.influence._attribute import attribute
from sawlog.influence._engines import as_executor
from sawlog.influence._ensemble import ensemble
from sawlog.influence._fitted_curvature import curvature_for
from sawlog.influence._logs import Logs
from sawlog.influence._mixed_curvature import mixed_curvature
from sawlog.influence._scores import Scores
from sawlog.influence._self_influence import self_influence


def relatif(train: Any, queries: Any, *, curvature: Any = "ekfac", **options: Any) -> Scores:
    """Compute RelatIF: influence divided by the root of the self-influence of each example.

    Outliers have a large influence on every query. Divided by how much they change the model,
    the examples rank first that matter for the query in particular.

    Args:
        train, queries, curvature: As for :func:`attribute`.
        options: ``damping``, ``names``, ``top_k``, ``sign``, ``budget``, ``executor``, ``device``,
            ``weights``, ``nonfinite``, as for :func:`attribute`.
    """
    k, sign = options.pop("top_k", None), options.pop("sign", "positive")
    logs = Logs(train, names=options.pop("names", None))
    engine = as_executor(options.get("executor"))
    weights = options.get("weights", "same")
    fitted = curvature_for(logs, curvature, weights=weights, executor=engine)
    scores = attribute(logs, Logs(queries, names=logs.layers), curvature=fitted, **options)
    own = self_influence(logs, curvature=fitted, **options)
    divided = _divided(scores, np.sqrt(own.values), {"method": "relatif"})
    return divided if k is None else divided.top(k, sign)


def less(
    checkpoints: Sequence[tuple[Any, Any]],
    learning_rates: Sequence[float] | None = None,
    second_moments: Sequence[Mapping[str, Any]] | None = None,
    **options: Any,
) -> Scores:
    """Compute LESS: cosines of queries with the updates of Adam, summed over checkpoints.

    The gradient of a training example is divided by the roots of Adam's second moments, that of a
    query is not. Cosines are summed over checkpoints with their learning rates.

    Args:
        checkpoints: ``(train, queries)`` of each, logged with the parameters of that checkpoint.
        learning_rates: The learning rate of each checkpoint; 1 by default.
        second_moments: Those of the optimizer at each checkpoint, as for :func:`attribute`. None
            for gradients that were corrected when they were logged.
        options: ``names``, ``top_k``, ``sign``, ``budget``, ``executor``, ``weights``,
            ``nonfinite``, as for :func:`attribute`.

    Raises:
        ArgumentError: There are no checkpoints, or other numbers of rates or moments.
    """
    if not checkpoints:
        raise ArgumentError("There are no checkpoints. Hint: [(train, queries), ...].")
    rates = [1.0] * len(checkpoints) if learning_rates is None else list(learning_rates)
    none: list[Any] = [None] * len(checkpoints)
    moments: Sequence[Any] = none if second_moments is None else second_moments
    if not len(rates) == len(moments) == len(checkpoints):
        raise ArgumentError(
            f"There are {len(checkpoints)} checkpoints, {len(rates)} learning rates and "
            f"{len(moments)} second moments."
        )
    k, sign = options.pop("top_k", None), options.pop("sign", "positive")
    pairs = zip(checkpoints, moments, strict=True)
    several = [_updates(train, queries, own, options) for (train, queries), own in pairs]
    joined = ensemble(several, rates)
    joined = dataclasses.replace(joined, about={**joined.about, "method": "less", "unit": None})
    return joined if k is None else joined.top(k, sign)


def _updates(train: Any, queries: Any, moments: Any, options: Mapping[str, Any]) -> Scores:
    """Return the cosines of queries with corrected gradients, at one checkpoint."""
    if moments is None:
        return attribute(train, queries, curvature="identity", mode="cosine", **options)
    names = options.get("names")
    more = {name: value for name, value in options.items() if name != "names"}
    logs, asked = Logs(train, names=names), Logs(queries, names=names)
    budget = {"budget": options["budget"]} if "budget" in options else {"budget": 1 << 28}
    corrected = mixed_curvature(logs, asked, "identity", moments, None, **budget)
    whole = asked.whole().rows()
    turned = {
        name: rows * corrected.layers[name].factors.reshape(rows.shape[1:])  # type: ignore[attr-defined]
        for name, rows in whole.items()
    }
    meta = {**asked.meta, "provenance": [each.to_json() for each in asked.provenance]}
    moved = Logs(turned, ids=asked.ids, meta=meta)
    scores = attribute(logs, moved, curvature="identity", **more)
    lengths = self_influence(logs, curvature=corrected, damping=0.0, **more)
    squares = [
        (rows.astype(np.float64) ** 2).reshape(len(rows), -1).sum(1) for rows in whole.values()
    ]
    divided = _divided(scores, np.sqrt(lengths.values), {"mode": "cosine"})
    own = np.sqrt(np.sum(squares, axis=0))[:, None]
    return dataclasses.replace(divided, values=divided.values / np.where(own == 0, 1.0, own))


def _divided(scores: Scores, norms: np.ndarray, about: Mapping[str, Any]) -> Scores:
    """Divide the scores of each example by its norm; those of a zero gradient are 0."""
    usual = np.where(norms == 0, 1.0, norms)
    said = {**scores.about, **about, "unit": None}
    return dataclasses.replace(scores, values=scores.values / usual, about=said)
