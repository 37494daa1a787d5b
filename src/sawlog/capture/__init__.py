"""Per-example capture without a framework: runs, options, ids, and how stored rows are read.

A framework implements :class:`Backend`; :class:`sawlog.torch.Run` is the run for PyTorch.
"""

from __future__ import annotations

from sawlog.capture._backend import Backend as Backend
from sawlog.capture._data_ids import data_ids as data_ids
from sawlog.capture._run import CaptureRun as CaptureRun
from sawlog.run_files import ragged as ragged
from sawlog.run_files._blocks import Block as Block
from sawlog.run_files._blocks import Report as Report
from sawlog.run_files._encode import decode as decode
from sawlog.run_files._measured import Measured as Measured
from sawlog.run_files._options import Compression as Compression
from sawlog.run_files._options import Options as Options
from sawlog.run_files._provenance import Provenance as Provenance

__all__ = [
    "Backend",
    "Block",
    "CaptureRun",
    "Compression",
    "Measured",
    "Options",
    "Provenance",
    "Report",
    "data_ids",
    "decode",
    "ragged",
]
