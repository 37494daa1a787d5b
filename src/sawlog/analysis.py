"""Analyses under the names that LogIX has in ``logix.analysis``."""

from __future__ import annotations

from sawlog.logix import InfluenceFunction as InfluenceFunction

__all__ = ["InfluenceFunction"]
