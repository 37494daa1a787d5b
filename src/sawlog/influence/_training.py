"""Influence through the steps of training: rows that were logged while a model trained."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from sawlog import store
from sawlog._validate import refuse
from sawlog.errors import ArgumentError
from sawlog.influence._attribute import attribute
from sawlog.influence._scores import Scores

COLUMNS = ("step", "learning_rate", "share")


def training_influence(
    path: str | os.PathLike[str],
    queries: Any,
    *,
    steps: range | None = None,
    weigh: bool = True,
    **options: Any,
) -> Scores:
    """Score examples by the steps in which a model was trained on them.

    The score of an example for a query with gradient ``q`` is the sum over its steps of
    ``learning_rate * share * q^T g``: how much the update of the step, as far as it came from the
    example, decreased the loss of the query, to first order. ``share`` is what the gradient ``g``
    of the example was multiplied with in that of the step, ``1 / batch size`` for a mean.

    Args:
        path: the folder of a :class:`sawlog.torch.TrainingCapture`.
        queries: the gradients of queries, logged with the same layers and compression.
        steps: the steps that count; all by default.
        weigh: whether to multiply by the learning rate and the share; otherwise scores are sums of
            ``q^T g``.
        options: those of :func:`attribute`, but for ``weights`` and ``top_k``; the curvature is
            the identity by default.

    Raises:
        ArgumentError: nothing was logged, or the learning rate or share of a step is unknown.
    """
    if "top_k" in options:
        refuse("top_k", "left out: training_influence(...).top(k) takes the best", options["top_k"])
    options = {"curvature": "identity", **options, "weights": "any"}
    epochs = sorted(Path(path).glob("epoch-*"), key=lambda each: int(each.name.split("-")[1]))
    totals: dict[Any, np.ndarray] = {}
    first: Scores | None = None
    for epoch in epochs:
        for rows in sorted((epoch / "logs").glob("*")):
            scores = attribute(rows, queries, **options)
            first = scores if first is None else first
            for name, values in _weighted(scores, epoch / "steps", steps, weigh):
                totals[name] = totals[name] + values if name in totals else values
    if first is None or not totals:
        raise ArgumentError(
            f"No step was logged at {Path(path)}. Hint: the folder of a TrainingCapture, after "
            "training; steps= must contain a logged step."
        )
    ids = np.array(list(totals))
    about = {**first.about, "train": str(path), "training": True}
    return Scores(first.queries, ids, np.stack(list(totals.values()), 1), about=about)


def _weighted(scores: Scores, path: Path, steps: range | None, weigh: bool) -> Any:
    """Yield the scores ``[q]`` of each example in one epoch."""
    places, said = _known_steps(scores.ids, path)
    factors = said["learning_rate"] * said["share"] if weigh else np.ones(len(places))
    chosen = np.ones(len(factors), bool)
    if steps is not None:
        chosen = np.array([int(each) in steps for each in said["step"]])
    if not np.isfinite(factors[chosen]).all():
        raise ArgumentError(
            "The learning rate, or the share of an example in a step, is not known. Hint: "
            "TrainingCapture(..., optimizer=optimizer) stores learning rates, if all watched "
            "parameters have the same; weigh=False sums products of gradients."
        )
    for place, factor in zip(places[chosen].tolist(), factors[chosen], strict=True):
        yield scores.ids[place].item(), scores.values[:, place] * factor


def _known_steps(ids: np.ndarray, path: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the places of the examples whose step is stored, and what is known of it."""
    with store.open(path) as reader:
        stored = np.asarray(reader.ids("step")) if "step" in reader.names else ids[:0]
        places = np.flatnonzero(np.isin(ids, stored))
        said = {name: np.zeros(0) for name in COLUMNS}
        if len(places):
            found = reader.gather(ids[places], COLUMNS)
            said = {name: np.array(found[name]) for name in COLUMNS}
    if len(places) < len(ids):
        warnings.warn(
            f"{len(ids) - len(places)} of {len(ids)} examples of {path.parent} have no step: their "
            "program was killed before it was written. They are left out. Hint: resume the "
            "training.",
            stacklevel=5,
        )
    return places, said
