"""``Influence``: the analysis of the logs of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sawlog.errors import ArgumentError
from sawlog.influence._attribute import attribute
from sawlog.influence._compatibility import check_weights
from sawlog.influence._engines import as_executor
from sawlog.influence._fitted_curvature import curvature_for
from sawlog.influence._log_loader import LogLoader
from sawlog.influence._logix import translate_options
from sawlog.influence._logs import Logs
from sawlog.influence._scores import Scores
from sawlog.influence._self_influence import Ranking, self_influence


class Influence:
    """Influence of the examples of a run; ``run.influence``.

    Creating it has no side effects: ``train`` is called by each method that reads stored rows, so
    it is the place to finish a pass whose rows are still in memory.

    Options are those of :func:`sawlog.influence.attribute`; those of LogIX, ``hessian`` and
    ``precondition``, are understood as well.

    Args:
        train: a function that returns the logs of the training examples, as :class:`Logs` or
            anything that :func:`sawlog.influence.attribute` takes.

    >>> import numpy as np
    >>> own = Influence(lambda: {"w": np.eye(2)})
    >>> own.compute_influence_all({"w": np.array([[3.0, 1.0]])}, hessian="none").values
    array([[3., 1.]])
    """

    def __init__(self, train: Callable[[], Any]) -> None:
        self._train = train

    def compute_influence_all(
        self, test_log: Any = None, log_loader: LogLoader | None = None, **options: Any
    ) -> Scores:
        """Score every stored example for the queries of ``test_log``.

        Args:
            test_log: the queries, such as ``run.get_log()``; also accepted as ``src_log``.
            log_loader: whose logs to score in place of the run's; also accepted as ``loader``.
            options: those of :func:`sawlog.influence.attribute`.
        """
        options = translate_options(options)
        test_log, log_loader = (
            options.pop("src_log", test_log),
            options.pop("loader", log_loader),
        )
        if test_log is None:
            raise ArgumentError("There are no queries. Hint: compute_influence_all(run.get_log()).")
        train = self._train() if log_loader is None else log_loader.logs
        return attribute(train, test_log, **options)

    def compute_influence(self, src_log: Any, tgt_log: Any, **options: Any) -> Scores:
        """Score the examples of ``tgt_log`` for the queries of ``src_log``.

        The curvature is fitted to the stored rows of the run.
        """
        options = translate_options(options)
        kind, weights = options.pop("curvature", "ekfac"), options.get("weights", "same")
        own = Logs(self._train())
        engine = as_executor(options.get("executor"))
        fitted = curvature_for(own, kind, weights=weights, executor=engine)
        check_weights(own, Logs(src_log), weights)
        return attribute(tgt_log, src_log, curvature=fitted, **options)

    def compute_self_influence(self, test_log: Any = None, **options: Any) -> Ranking:
        """Compute the influence of examples on themselves.

        The examples are those of ``test_log``, or by default all stored ones. The curvature is
        fitted to the stored rows of the run.
        """
        options = translate_options(options)
        kind, weights = options.pop("curvature", "ekfac"), options.get("weights", "same")
        own = Logs(self._train())
        engine = as_executor(options.get("executor"))
        fitted = curvature_for(own, kind, weights=weights, executor=engine)
        if test_log is not None:
            check_weights(own, Logs(test_log), weights)
        return self_influence(own if test_log is None else test_log, curvature=fitted, **options)
