"""What every capture has in common, whatever the framework: options, ids, blocks, statistics."""

from __future__ import annotations

from sawlog.capture import checkpoint as checkpoint
from sawlog.capture import progress as progress
from sawlog.capture import ragged as ragged
from sawlog.capture._blocks import Block as Block
from sawlog.capture._blocks import Report as Report
from sawlog.capture._blocks import compressed as compressed
from sawlog.capture._current import current as current
from sawlog.capture._current import set_current as set_current
from sawlog.capture._data_ids import data_ids as data_ids
from sawlog.capture._encode import SCALE as SCALE
from sawlog.capture._encode import decode as decode
from sawlog.capture._encode import encode as encode
from sawlog.capture._folders import curvature_of as curvature_of
from sawlog.capture._folders import label_of as label_of
from sawlog.capture._folders import logs_of as logs_of
from sawlog.capture._folders import measured as measured
from sawlog.capture._folders import measured_with as measured_with
from sawlog.capture._folders import statistics_of as statistics_of
from sawlog.capture._measured import LEFT as LEFT
from sawlog.capture._measured import RIGHT as RIGHT
from sawlog.capture._measured import Measured as Measured
from sawlog.capture._options import Compression as Compression
from sawlog.capture._options import Options as Options
from sawlog.capture._options import read as read
from sawlog.capture._projections import projection_of as projection_of
from sawlog.capture._projections import projections_of as projections_of
from sawlog.capture._provenance import CHANGING as CHANGING
from sawlog.capture._provenance import Provenance as Provenance
from sawlog.capture._provenance import check_same_weights as check_same_weights
from sawlog.capture._provenance import fingerprint_of as fingerprint_of
from sawlog.capture._provenance import fingerprint_of_arrays as fingerprint_of_arrays
from sawlog.capture._provenance import note as note
from sawlog.capture._provenance import noted as noted
from sawlog.capture._remembered import remember as remember
from sawlog.capture._remembered import remembered as remembered
from sawlog.capture._statistics import Staged as Staged
from sawlog.capture._statistics import Statistics as Statistics

__all__ = [
    "CHANGING",
    "LEFT",
    "RIGHT",
    "SCALE",
    "Block",
    "Compression",
    "Measured",
    "Options",
    "Provenance",
    "Report",
    "Staged",
    "Statistics",
    "check_same_weights",
    "checkpoint",
    "compressed",
    "current",
    "curvature_of",
    "data_ids",
    "decode",
    "encode",
    "fingerprint_of",
    "fingerprint_of_arrays",
    "label_of",
    "logs_of",
    "measured",
    "measured_with",
    "note",
    "noted",
    "progress",
    "projection_of",
    "projections_of",
    "ragged",
    "read",
    "remember",
    "remembered",
    "set_current",
    "statistics_of",
]
