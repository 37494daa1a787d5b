"""Sinks: the destinations of logs, with ``write(records)``, ``flush`` and ``close``. No framework.

>>> import numpy as np
>>> from sawlog.records import Entries, Records
>>> from sawlog.sinks import MemorySink, Prefix, Select
>>> memory = MemorySink()
>>> with Select(Prefix(memory, "train/"), names="loss*") as sink:
...     sink.write(Records({"loss": Entries(np.array([2.0, 1.0])), "lr": Entries(np.ones(2))}))
>>> memory.logs
{'train/loss': array([2., 1.])}

Sinks that store logs: :class:`MemorySink`, :class:`CsvSink`, :class:`JsonlSink`,
:class:`StoreSink`. Sinks around others: :class:`Fanout`, :class:`Every`, :class:`Select`,
:class:`Prefix`, :class:`Reduce`, :class:`Async`, :class:`Fallback`, :class:`Timeout`; closing one
closes the sinks inside. A custom sink needs the three methods of :class:`Sink`; :class:`BaseSink`
implements the rest, and ``sawlog.testing.SinkContract`` tests it.
"""

from __future__ import annotations

from sawlog.sinks._async import Async as Async
from sawlog.sinks._base import BaseSink as BaseSink
from sawlog.sinks._base import Sink as Sink
from sawlog.sinks._base import fail as fail
from sawlog.sinks._console import ConsoleSink as ConsoleSink
from sawlog.sinks._console import Dashboard as Dashboard
from sawlog.sinks._csv import CsvSink as CsvSink
from sawlog.sinks._errors import AsyncError as AsyncError
from sawlog.sinks._errors import FanoutError as FanoutError
from sawlog.sinks._every import Every as Every
from sawlog.sinks._fallback import Fallback as Fallback
from sawlog.sinks._fanout import Fanout as Fanout
from sawlog.sinks._jsonl import JsonlSink as JsonlSink
from sawlog.sinks._memory import MemorySink as MemorySink
from sawlog.sinks._mlflow import MLflowSink as MLflowSink
from sawlog.sinks._neptune import NeptuneSink as NeptuneSink
from sawlog.sinks._prefix import Prefix as Prefix
from sawlog.sinks._reduce import Reduce as Reduce
from sawlog.sinks._select import Select as Select
from sawlog.sinks._store import StoreSink as StoreSink
from sawlog.sinks._tensorboard import TensorBoardSink as TensorBoardSink
from sawlog.sinks._timeout import Timeout as Timeout
from sawlog.sinks._trackio import TrackioSink as TrackioSink
from sawlog.sinks._wandb import WandbSink as WandbSink

__all__ = [
    "Async",
    "AsyncError",
    "BaseSink",
    "ConsoleSink",
    "CsvSink",
    "Dashboard",
    "Every",
    "Fallback",
    "Fanout",
    "FanoutError",
    "JsonlSink",
    "MLflowSink",
    "MemorySink",
    "NeptuneSink",
    "Prefix",
    "Reduce",
    "Select",
    "Sink",
    "StoreSink",
    "TensorBoardSink",
    "Timeout",
    "TrackioSink",
    "WandbSink",
    "fail",
]
