"""Influence as users of LogIX type it: functions of the current run, and LogIX's options."""

from __future__ import annotations

from typing import Any

from sawlog._current_run import current
from sawlog._validate import one_of
from sawlog.errors import ArgumentError
from sawlog.influence._scores import Scores
from sawlog.influence._self_influence import Ranking

_HESSIANS = {"kfac": "kfac", "ekfac": "ekfac", "raw": "fisher", "none": "identity"}


def compute_influence(src_log: Any, tgt_log: Any, **options: Any) -> Scores:
    """Score the examples of ``tgt_log`` for the queries of ``src_log``.

    Uses the curvature of the current run; see :meth:`Influence.compute_influence`.
    """
    scores: Scores = current().influence.compute_influence(src_log, tgt_log, **options)
    return scores


def compute_influence_all(test_log: Any, log_loader: Any = None, **options: Any) -> Scores:
    """Score every stored example of the current run for queries.

    See :meth:`Influence.compute_influence_all`.
    """
    scores: Scores = current().influence.compute_influence_all(test_log, log_loader, **options)
    return scores


def compute_self_influence(test_log: Any = None, **options: Any) -> Ranking:
    """Compute the influence of examples of the current run on themselves.

    See :meth:`Influence.compute_self_influence`.
    """
    ranking: Ranking = current().influence.compute_self_influence(test_log, **options)
    return ranking


def translate_options(options: dict[str, Any]) -> dict[str, Any]:
    """Replace LogIX's ``hessian`` and ``precondition`` by ``curvature``.

    >>> translate_options({"hessian": "raw", "mode": "cosine"})
    {'mode': 'cosine', 'curvature': 'fisher'}

    Raises:
        ArgumentError: an option of LogIX has no counterpart; says what to use.
    """
    given = dict(options)
    hessian, precondition = given.pop("hessian", "auto"), given.pop("precondition", True)
    one_of("hessian", hessian, ("auto", *_HESSIANS))
    if hessian != "auto":
        given.setdefault("curvature", _HESSIANS[hessian])
    if not precondition:
        given["curvature"] = "identity"
    if given.pop("influence_groups", None) is not None:
        raise ArgumentError(
            "`influence_groups` is not supported. Hint: per_layer=True returns the scores of each "
            "layer as scores.layers; names=[...] chooses layers."
        )
    return given
