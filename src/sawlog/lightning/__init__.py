"""Lightning: a callback that logs gradients while fitting, a logger, and logs after fitting.

>>> from sawlog.lightning import SawlogCallback, SawlogLogger
>>> callback = SawlogCallback("my_training", {"compress": 16}, steps=10)

``lightning.Trainer(callbacks=[callback], logger=SawlogLogger("my_training"))`` logs the gradient of
each example that is trained on, and all metrics. :func:`extract` logs a dataset after training.
"""

from __future__ import annotations

from sawlog._optional import require

require("torch", "torch", "sawlog.lightning")
require("lightning", "lightning", "sawlog.lightning")  # before anything below imports it

from sawlog.lightning._callback import LightningCallback as SawlogCallback
from sawlog.lightning._extract import extract as extract
from sawlog.lightning._logger import SawlogLogger as SawlogLogger
from sawlog.lightning._logix import patch as patch
from sawlog.logix import LogIXArguments as LogIXArguments

__all__ = ["LogIXArguments", "SawlogCallback", "SawlogLogger", "extract", "patch"]
