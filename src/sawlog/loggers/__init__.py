"""Loggers: write logs from inside of JAX programs to files and trackers, one run for each seed.

>>> import tempfile, jax, jax.numpy as jnp, sawlog
>>> from sawlog.loggers import SaveLogger
>>> def train(key):
...     def step(x, i):
...         x = x + jax.random.uniform(jax.random.fold_in(key, i))
...         sawlog.log({"x": x}, step=i)
...         return x, None
...     return jax.lax.scan(step, 0.0, jnp.arange(3))[0]
>>> folder = tempfile.mkdtemp()
>>> with SaveLogger(folder) as logger:
...     def run(key):
...         state = logger.init(key)
...         return logger.spool(train, state)(key)
...     out = jax.jit(jax.vmap(run))(jax.vmap(jax.random.key)(jnp.arange(8)))
>>> print(sawlog.load(folder + "/seed-5").step["x"])
[0 1 2]
"""

from __future__ import annotations

from sawlog._optional import require

require("jax", "jax", "sawlog.loggers")  # before anything below imports it

from sawlog.jax._runs.logger import Logger as Logger
from sawlog.jax._runs.runs import RunState as RunState
from sawlog.loggers._console import ConsoleLogger as ConsoleLogger
from sawlog.loggers._files import CsvLogger as CsvLogger
from sawlog.loggers._files import JsonlLogger as JsonlLogger
from sawlog.loggers._files import MemoryLogger as MemoryLogger
from sawlog.loggers._files import SaveLogger as SaveLogger
from sawlog.loggers._multi import MultiLogger as MultiLogger
from sawlog.loggers._trackers import MLflowLogger as MLflowLogger
from sawlog.loggers._trackers import NeptuneLogger as NeptuneLogger
from sawlog.loggers._trackers import TensorBoardLogger as TensorBoardLogger
from sawlog.loggers._trackers import TrackerLogger as TrackerLogger
from sawlog.loggers._trackers import TrackioLogger as TrackioLogger
from sawlog.loggers._trackers import WandbLogger as WandbLogger
from sawlog.sinks import Sink as Sink

__all__ = [
    "ConsoleLogger",
    "CsvLogger",
    "JsonlLogger",
    "Logger",
    "MLflowLogger",
    "MemoryLogger",
    "MultiLogger",
    "NeptuneLogger",
    "RunState",
    "SaveLogger",
    "Sink",
    "TensorBoardLogger",
    "TrackerLogger",
    "TrackioLogger",
    "WandbLogger",
]
