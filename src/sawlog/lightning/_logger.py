"""``SawlogLogger``: a Lightning logger over sawlog's sinks."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from sawlog._atomic import replacing
from sawlog._paths import absolute
from sawlog.capture._metrics import RunMetrics


class SawlogLogger(Logger):
    """Writes the metrics of a ``lightning.Trainer`` to sinks.

    Args:
        project: the name of the run, a folder in ``root``.
        root: the folder of all runs.
        sinks: where metrics are written; by default a store in the folder ``metrics`` of the run.

    >>> import tempfile, sawlog.store
    >>> logger = SawlogLogger("example", root=tempfile.mkdtemp())
    >>> logger.log_metrics({"loss": 0.5}, step=3)
    >>> logger.finalize("success")
    >>> sawlog.store.open(logger.save_dir + "/metrics").read("loss")
    array([0.5])
    """

    def __init__(
        self,
        project: str = "lightning",
        *,
        root: str | os.PathLike[str] = "sawlog",
        sinks: Sequence[Any] | None = None,
    ) -> None:
        super().__init__()
        self._project, self._path = project, absolute(root) / project
        self._metrics = RunMetrics(self._path / "metrics", sinks)

    @property
    def name(self) -> str:
        """The name of the run."""
        return self._project

    @property
    def version(self) -> str:
        """Runs are told apart by their names."""
        return ""

    @property
    def save_dir(self) -> str:
        """The folder of the run."""
        return str(self._path)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write metrics with their step."""
        self._metrics.log((metrics,), {} if step is None else {"step": step})

    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **options: Any
    ) -> None:
        """Write hyperparameters to ``hyperparameters.json`` in the folder of the run."""
        values = vars(params) if isinstance(params, Namespace) else dict(params)
        self._path.mkdir(parents=True, exist_ok=True)
        with replacing(self._path / "hyperparameters.json") as file:
            file.write(json.dumps(values, default=str, indent=2).encode())

    @rank_zero_only
    def save(self) -> None:
        """Write everything logged so far to disk."""
        self._metrics.flush()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Close the sinks; those of a failed run are marked so."""
        if status not in ("success", "finished"):
            self._metrics.fail()
        self._metrics.finalize()
