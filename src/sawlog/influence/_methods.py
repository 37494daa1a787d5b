"""Known methods by name, each a choice of curvature, mode and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sawlog.errors import ArgumentError
from sawlog.influence._attribute import attribute
from sawlog.influence._logs import Logs
from sawlog.influence._scores import Scores, ensemble

Checkpoint = tuple[Any, Any]


def influence_functions(train: Any, queries: Any, **options: Any) -> Scores:
    """Influence functions: :func:`attribute` with EK-FAC."""
    return attribute(train, queries, **{"curvature": "ekfac", **options})


def tracin(
    checkpoints: Sequence[Checkpoint], learning_rates: Sequence[float] | None = None, **options: Any
) -> Scores:
    """TracIn: the sum over checkpoints of dot products of gradients, times the learning rate.

    Args:
        checkpoints: ``(train, queries)`` of each, logged with the parameters as they were then.
        learning_rates: those of the steps that a checkpoint stands for; all 1 by default.
        options: those of :func:`attribute`.
    """
    rates = [1.0] * len(checkpoints) if learning_rates is None else list(learning_rates)
    return _over(checkpoints, rates, {"curvature": "identity", **options})


def trak(checkpoints: Sequence[Checkpoint], **options: Any) -> Scores:
    """TRAK: the mean over checkpoints of projected gradients compared in their raw Fisher.

    Log with ``compress=`` and, for each checkpoint, another seed.
    """
    return _over(checkpoints, None, {"curvature": "fisher", **options})


def trackstar(train: Any, queries: Any, **options: Any) -> Scores:
    """TrackStar: preconditioned gradients of unit length, so that loud examples do not win."""
    return attribute(train, queries, **{"curvature": "fisher", "mode": "cosine", **options})


def gradient_cosine(train: Any, queries: Any, **options: Any) -> Scores:
    """The cosine of gradients as they are."""
    return attribute(train, queries, **{"curvature": "identity", "mode": "cosine", **options})


def activation_similarity(train: Any, queries: Any, layer: str, **options: Any) -> Scores:
    """The cosine of what a layer does for two examples: a baseline without gradients.

    ``layer`` is the name of the log, as ``"forward/encoder.fc1"``; both runs need
    ``log="forward"``.
    """
    options = {"curvature": "identity", "mode": "cosine", **options}
    return attribute(train, queries, names=[layer], **options)


def _over(
    checkpoints: Sequence[Checkpoint], weights: Sequence[float] | None, options: dict[str, Any]
) -> Scores:
    if not checkpoints:
        raise ArgumentError("There are no checkpoints. Hint: [(train, queries), ...].")
    k, sign = options.pop("top_k", None), options.pop("sign", "positive")
    scores = [attribute(Logs(train), queries, **options) for train, queries in checkpoints]
    joined = ensemble(scores, weights)
    return joined if k is None else joined.top(k, sign)
