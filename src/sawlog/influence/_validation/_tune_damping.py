"""``tune_damping``: choose the damping whose scores predict retraining best."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from sawlog.curvature import Damping, Relative
from sawlog.errors import ArgumentError
from sawlog.influence._attribute import attribute
from sawlog.influence._scores import Scores
from sawlog.influence._validation._bank import Bank, StrPath
from sawlog.influence._validation._validate import LEAST_SUBSETS, in_order_of, validation_on

SHARES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


def tune_damping(
    train: Any = None,
    queries: Any = None,
    *,
    bank: Bank | StrPath,
    dampings: Sequence[Damping] = (None, *map(Relative, SHARES)),
    drop: float = 0.5,
    confidence: float = 0.95,
    **options: Any,
) -> Scores:
    """Score with the damping whose scores predict retraining best, of a few.

    The damping is chosen by the linear datamodeling score (LDS) on one half of the random subsets
    of a bank. The validation of the result is the LDS on the other half, which the choice has not
    seen.

    Args:
        train, queries: as for :func:`attribute`.
        bank: a :class:`Bank` of retrained models that :func:`validate` filled, or its folder; 20
            subsets are enough.
        dampings: the choices; the default damping, and shares of the mean eigenvalue.
        drop: the share of examples that the subsets leave out.
        confidence: the confidence level of the validation's interval.
        options: those of :func:`attribute`, such as ``curvature`` and ``ensemble``.

    Returns:
        The scores with the chosen damping. ``about["tuned"]`` has the LDS of each choice on the
        first half of the subsets.

    Raises:
        ArgumentError: the bank has fewer than 10 random subsets, or there are no choices.
    """
    if not dampings:
        raise ArgumentError("`dampings` must contain at least one damping.")
    if "top_k" in options:
        raise ArgumentError("Tuning needs all scores. Hint: tune_damping(...).top(k).")
    own = bank if isinstance(bank, Bank) else Bank(bank)
    halves = _halves(own, drop)
    tried, found = [], []
    for damping in dampings:
        scores = attribute(train, queries, damping=damping, **options)
        tried.append(scores)
        ordered = in_order_of(own, scores)
        found.append(validation_on(ordered, own, halves[0], (), drop, confidence).lds)
    best = tried[int(np.argmax(found))]
    said = [[repr(each), value] for each, value in zip(dampings, found, strict=True)]
    seen = validation_on(in_order_of(own, best), own, halves[1], (), drop, confidence)
    return dataclasses.replace(best, about={**best.about, "tuned": said}, validation=seen)


def _halves(bank: Bank, drop: float) -> tuple[set[str], set[str]]:
    """Return the names of the random subsets in two halves."""
    size = round(drop * len(bank.ids))
    models = bank.models()
    named = {s.name: s.number for s in models.subsets if s.number >= 0 and s.size == size}
    ordered = sorted(named, key=lambda name: (named[name], name))
    if len(ordered) < 2 * LEAST_SUBSETS:
        raise ArgumentError(
            f"The bank at {bank.path} has {len(ordered)} random subsets without {drop:.0%} of the "
            f"examples; tuning needs {2 * LEAST_SUBSETS}: one half to choose by, one to validate. "
            "Hint: validate(scores, train, bank=PATH) trains more models."
        )
    return set(ordered[::2]), set(ordered[1::2])
