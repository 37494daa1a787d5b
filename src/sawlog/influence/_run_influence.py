"""The analysis of a run as its methods, and of the current run as functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sawlog.capture import current
from sawlog.errors import ArgumentError
from sawlog.influence._attribute import attribute
from sawlog.influence._compatibility import check_weights
from sawlog.influence._logs import Ids, Logs
from sawlog.influence._scores import Scores
from sawlog.influence._self_influence import Ranking, self_influence


class LogLoader:
    """Goes through stored logs in batches: ``(ids, {layer: rows})``, as often as is wanted."""

    def __init__(self, logs: Logs, batch_size: int = 64) -> None:
        if isinstance(batch_size, bool) or not batch_size >= 1:
            raise ArgumentError(f"batch_size is a whole number from 1 on, got {batch_size!r}.")
        self.logs = logs
        self._size = int(batch_size)

    def __len__(self) -> int:
        return -(-len(self.logs) // self._size)

    def __iter__(self) -> Iterator[tuple[Ids, dict[str, np.ndarray]]]:
        ids: list[Any] = []
        waiting: dict[str, list[np.ndarray]] = {name: [] for name in self.logs.layers}
        for part in self.logs.parts():
            for name, rows in part.rows().items():
                waiting[name].append(rows)
            ids.extend(np.asarray(part.ids).tolist())
            joined = {name: np.concatenate(rows) for name, rows in waiting.items()}
            while len(ids) >= self._size:
                yield np.asarray(ids[: self._size]), {n: r[: self._size] for n, r in joined.items()}
                ids = ids[self._size :]
                joined = {n: r[self._size :] for n, r in joined.items()}
            waiting = {name: [rows] for name, rows in joined.items()}
        if ids:
            yield np.asarray(ids), {name: np.concatenate(rows) for name, rows in waiting.items()}


_HESSIANS = {"kfac": "kfac", "ekfac": "ekfac", "raw": "fisher", "none": "identity"}


def _translated(options: dict[str, Any]) -> dict[str, Any]:
    """Options of scores as LogIX has them, as ours.

    Raises:
        ArgumentError: one of them has no counterpart; says what there is.
    """
    given = dict(options)
    hessian, wanted = given.pop("hessian", "auto"), given.pop("precondition", True)
    if hessian != "auto":
        if hessian not in _HESSIANS:
            listed = ", ".join(map(repr, ("auto", *_HESSIANS)))
            raise ArgumentError(f"hessian is one of {listed}, got {hessian!r}.")
        given.setdefault("curvature", _HESSIANS[hessian])
    if not wanted:
        given["curvature"] = "identity"
    if given.pop("influence_groups", None) is not None:
        raise ArgumentError(
            "influence_groups are scores of some layers. Hint: per_layer=True gives those of each "
            "layer, scores.layers; names=[...] chooses layers."
        )
    return given


class Influence:
    """What the logs of a run say about queries; ``run.influence``.

    The options are those of :func:`sawlog.influence.attribute`.
    """

    def __init__(self, train: Any) -> None:
        self._train = train

    def compute_influence_all(
        self, test_log: Any = None, log_loader: LogLoader | None = None, **options: Any
    ) -> Scores:
        """Score every stored example for the queries of ``test_log``."""
        options = _translated(options)
        test_log, log_loader = (
            options.pop("src_log", test_log),
            options.pop("loader", log_loader),
        )
        if test_log is None:
            raise ArgumentError("There are no queries. Hint: compute_influence_all(run.get_log()).")
        train = self._train() if log_loader is None else log_loader.logs
        return attribute(train, test_log, **options)

    def compute_influence(self, src_log: Any, tgt_log: Any, **options: Any) -> Scores:
        """Score the examples of one log for the queries of another, with the run's curvature."""
        from sawlog.influence._fitted_curvature import curvature_for

        options = _translated(options)
        kind = options.pop("curvature", "ekfac")
        own = Logs(self._train())
        fitted = curvature_for(own, kind, weights=options.get("weights", "same"))
        check_weights(own, Logs(src_log), options.get("weights", "same"))
        return attribute(tgt_log, src_log, curvature=fitted, **options)

    def compute_self_influence(self, test_log: Any = None, **options: Any) -> Ranking:
        """The influence of examples on themselves: of a log, or of all that is stored."""
        from sawlog.influence._fitted_curvature import curvature_for

        options = _translated(options)
        kind = options.pop("curvature", "ekfac")
        own = Logs(self._train())
        fitted = curvature_for(own, kind, weights=options.get("weights", "same"))
        if test_log is not None:
            check_weights(own, Logs(test_log), options.get("weights", "same"))
        logs = self._train() if test_log is None else test_log
        return self_influence(logs, curvature=fitted, **options)


def compute_influence_all(test_log: Any, log_loader: Any = None, **options: Any) -> Scores:
    """Score every stored example of the current run for queries."""
    scores: Scores = current().influence.compute_influence_all(test_log, log_loader, **options)
    return scores


def compute_influence(src_log: Any, tgt_log: Any, **options: Any) -> Scores:
    """Score the examples of one log for the queries of another; see :class:`Influence`."""
    scores: Scores = current().influence.compute_influence(src_log, tgt_log, **options)
    return scores


def compute_self_influence(test_log: Any = None, **options: Any) -> Ranking:
    """The influence of examples of the current run on themselves."""
    ranking: Ranking = current().influence.compute_self_influence(test_log, **options)
    return ranking
