"""Published methods by name: choices of curvature, mode and checkpoints, some of norms as well."""

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
from sawlog.run_files import ragged
from sawlog.run_files._encode import SCALE, decode

Checkpoint = tuple[Any, Any]

_BATCH = 64


def influence_functions(train: Any, queries: Any, **options: Any) -> Scores:
    """Compute influence functions: :func:`attribute` with EK-FAC."""
    return attribute(train, queries, **{"curvature": "ekfac", **options})


def tracin(
    checkpoints: Sequence[Checkpoint], learning_rates: Sequence[float] | None = None, **options: Any
) -> Scores:
    """Compute TracIn: dot products of gradients times the learning rate, summed over checkpoints.

    Args:
        checkpoints: ``(train, queries)`` of each, logged with the parameters of that checkpoint.
        learning_rates: the learning rate of each checkpoint; 1 by default.
        options: those of :func:`attribute`.
    """
    rates = [1.0] * len(checkpoints) if learning_rates is None else list(learning_rates)
    return _over_checkpoints(checkpoints, rates, {"curvature": "identity", **options})


def trak(checkpoints: Sequence[Checkpoint], **options: Any) -> Scores:
    """Compute TRAK: projected gradients preconditioned by their Fisher, averaged over checkpoints.

    Log with ``compress=``, and with another seed for each checkpoint.
    """
    return _over_checkpoints(checkpoints, None, {"curvature": "fisher", **options})


def trackstar(train: Any, queries: Any, **options: Any) -> Scores:
    """Compute TrackStar: corrected, preconditioned gradients of unit length.

    The method has three parts. Gradients are divided by the roots of the optimizer's second
    moments: pass ``second_moments=``, or log gradients that are corrected. The Fisher of the
    training examples is mixed with that of the queries, so that what all queries have in common
    counts less: pass ``mix=Components(count)`` or a share. Rows are normalized, so that examples
    with large gradients do not rank first for every query. Without these options, it is the
    cosine under the Fisher of the training examples.

    Args:
        train, queries: as for :func:`attribute`.
        options: those of :func:`attribute`.
    """
    return attribute(train, queries, **{"curvature": "fisher", "mode": "cosine", **options})


def gradient_cosine(train: Any, queries: Any, **options: Any) -> Scores:
    """Compute cosines of gradients without preconditioning."""
    return attribute(train, queries, **{"curvature": "identity", "mode": "cosine", **options})


def activation_similarity(
    train: Any, queries: Any, layer: str, *, pool: str | int | None = None, **options: Any
) -> Scores:
    """Compute cosines of the activations of a layer: a baseline without gradients.

    Args:
        train, queries: logged with ``log="forward"``, alone or among others.
        layer: the name of the log, such as ``"forward/encoder.fc1"``.
        pool: for sequences: ``"mean"`` over positions, or the index of one position, -1 for the
            last. By default each position is compared with the same position of the query.
        options: those of :func:`attribute`.

    Raises:
        ArgumentError: the log does not exist, or ``pool`` is given and it has no positions.
    """
    options = {"curvature": "identity", "mode": "cosine", **options}
    pair = [Logs(each, names=[layer]) for each in (train, queries)]
    if pool is not None:
        pair = [_pooled(each, pool) for each in pair]
    return attribute(*pair, **options)


def _pooled(logs: Logs, pool: str | int) -> Logs:
    """Return logs in memory with one vector per example."""
    (layer,) = logs.layers
    if logs.ragged:
        return _pooled_ragged(logs, layer, pool)
    (_, shape), *_ = logs.shapes().values()
    if len(shape) < 2:
        raise ArgumentError(f"{layer!r} has no positions to pool. Hint: omit pool=.")
    number = isinstance(pool, int) and not isinstance(pool, bool)
    if pool != "mean" and not (number and -shape[0] <= int(pool) < shape[0]):
        raise ArgumentError(
            f'`pool` must be "mean", or the index of one of the {shape[0]} positions; got {pool!r}.'
        )
    found: list[np.ndarray] = []
    ids: list[Any] = []
    for part in logs.parts():
        rows = part.columns[layer].rows()
        found.append(rows.mean(1) if pool == "mean" else rows[:, int(pool)])
        ids.extend(np.asarray(part.ids).tolist())
    return Logs({layer: np.concatenate(found)}, ids=ids)


def _pooled_ragged(logs: Logs, layer: str, pool: str | int) -> Logs:
    """Pool logs whose examples have different numbers of positions."""
    assert logs.reader is not None
    ids = np.asarray(logs.ids)
    lengths = ragged.lengths_of(logs.reader, layer, ids)
    least = min(lengths.tolist(), default=1)
    if pool != "mean" and (isinstance(pool, (bool, str)) or not -least <= pool < least):
        raise ArgumentError(
            f'`pool` must be "mean", or the index of a position that all examples have: one of '
            f"{least}, or negative to count from the end; got {pool!r}."
        )
    found: list[np.ndarray] = []
    names = [layer, *([layer + SCALE] if layer + SCALE in logs.reader.names else [])]
    for start in range(0, len(ids), _BATCH):
        own = slice(start, start + _BATCH)
        rows = decode(ragged.gather(logs.reader, ids[own], names), layer)
        if pool == "mean":
            found.append(rows.sum(1) / lengths[own].reshape(-1, *(1,) * (rows.ndim - 2)))
        else:
            at = lengths[own] + int(pool) if int(pool) < 0 else np.full(len(rows), int(pool))
            found.append(rows[np.arange(len(rows)), at])
    return Logs({layer: np.concatenate(found)}, ids=ids.tolist())


def _over_checkpoints(
    checkpoints: Sequence[Checkpoint], weights: Sequence[float] | None, options: dict[str, Any]
) -> Scores:
    if not checkpoints:
        raise ArgumentError("There are no checkpoints. Hint: [(train, queries), ...].")
    k, sign = options.pop("top_k", None), options.pop("sign", "positive")
    scores = [attribute(Logs(train), queries, **options) for train, queries in checkpoints]
    joined = ensemble(scores, weights)
    return joined if k is None else joined.top(k, sign)


# -- methods that combine scores with norms ------------------------------------------------------


def relatif(train: Any, queries: Any, *, curvature: Any = "ekfac", **options: Any) -> Scores:
    """Compute RelatIF: influence divided by the root of the self-influence of each example.

    Outliers have a large influence on every query. Divided by how much they change the model,
    the examples rank first that matter for the query in particular.

    Args:
        train, queries, curvature: as for :func:`attribute`.
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
        learning_rates: the learning rate of each checkpoint; 1 by default.
        second_moments: those of the optimizer at each checkpoint, as for :func:`attribute`. None
            for gradients that were corrected when they were logged.
        options: ``names``, ``top_k``, ``sign``, ``budget``, ``executor``, ``weights``,
            ``nonfinite``, as for :func:`attribute`.

    Raises:
        ArgumentError: there are no checkpoints, or other numbers of rates or moments.
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
