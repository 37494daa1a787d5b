"""Per-example capture, whatever the framework: options, ids, and how stored rows are read."""

from __future__ import annotations

from sawlog.capture._data_ids import data_ids as data_ids
from sawlog.run_files import ragged as ragged
from sawlog.run_files._blocks import Block as Block
from sawlog.run_files._blocks import Report as Report
from sawlog.run_files._encode import decode as decode
from sawlog.run_files._measured import Measured as Measured
from sawlog.run_files._options import Compression as Compression
from sawlog.run_files._options import Options as Options
from sawlog.run_files._provenance import Provenance as Provenance

__all__ = [
    "Block",
    "Compression",
    "Measured",
    "Options",
    "Provenance",
    "Report",
    "data_ids",
    "decode",
    "ragged",
]
