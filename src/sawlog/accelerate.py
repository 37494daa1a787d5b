"""Accelerate: a tracker over sawlog's sinks.

``Accelerator(log_with=SawlogTracker("my_project"))`` sends ``accelerator.log(...)`` to sawlog.
Models, loaders and optimizers that ``accelerator.prepare`` returned can be watched and logged like
any others; see docs/huggingface.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

from sawlog._optional import require

require("torch", "torch", "sawlog.accelerate")
require("accelerate", "huggingface", "sawlog.accelerate")  # before anything below imports it

import numpy as np
from accelerate.tracking import GeneralTracker, on_main_process  # type: ignore[import-untyped]

from sawlog._arrays import to_numpy
from sawlog._atomic import replacing
from sawlog._paths import absolute
from sawlog.capture._metrics import RunMetrics

__all__ = ["SawlogTracker"]


class SawlogTracker(GeneralTracker):
    """Writes what ``accelerator.log`` logs to sinks.

    Args:
        project: the name of the run, a folder in ``root``.
        root: the folder of all runs.
        sinks: where values are written; by default a store in the folder ``metrics`` of the run.
    """

    name = "sawlog"
    requires_logging_directory = False

    def __init__(
        self,
        project: str = "accelerate",
        *,
        root: str | os.PathLike[str] = "sawlog",
        sinks: Sequence[Any] | None = None,
    ) -> None:
        super().__init__()
        self.path = absolute(root) / project
        self._metrics = RunMetrics(self.path / "metrics", sinks)

    @property
    def tracker(self) -> RunMetrics:
        """What writes to the sinks."""
        return self._metrics

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Write the configuration to ``hyperparameters.json`` in the folder of the run."""
        self.path.mkdir(parents=True, exist_ok=True)
        with replacing(self.path / "hyperparameters.json") as file:
            file.write(json.dumps(values, default=str, indent=2).encode())

    @on_main_process
    def log(self, values: Mapping[str, Any], step: int | None = None, **options: Any) -> None:
        """Write the numbers and arrays among the values; texts are left out."""
        numbers = {name: value for name, value in values.items() if _is_number(value)}
        self._metrics.log((numbers,), {} if step is None else {"step": step})

    @on_main_process
    def finish(self) -> None:
        """Close the sinks."""
        self._metrics.close()


def _is_number(value: Any) -> bool:
    if isinstance(value, (Number, np.ndarray)):
        return True
    try:
        return not isinstance(value, str) and to_numpy(value).dtype.kind in "biufcV"
    except (TypeError, ValueError):
        return False
