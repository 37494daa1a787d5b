"""Helpers under the names that LogIX has in ``logix.utils``."""

from __future__ import annotations

from sawlog.logix import DataIDGenerator as DataIDGenerator
from sawlog.logix import get_rank as get_rank
from sawlog.logix import get_world_size as get_world_size
from sawlog.logix import merge_logs as merge_logs

__all__ = ["DataIDGenerator", "get_rank", "get_world_size", "merge_logs"]
