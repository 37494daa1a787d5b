"""Parts of the page about steps: the curves and the arrays of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sawlog.store
from sawlog.errors import SawlogError
from sawlog.inspect import ArrayHistory, Curve, SeriesCurves, array_histories, series_curves
from sawlog.inspect._curves import has_curve
from sawlog.inspect._summarize import _is_real
from sawlog.report._encode import data_uri, packed, packed_values

MOST_SERIES = 2_000  # of a run; the page says if there are more
MOST_ARRAYS = 60
_HIDDEN = {"provenance"}  # notes of capture runs


def curves_part(path: Path | None, points: int) -> dict[str, Any]:
    """Return the curves of the run whose series are in the store at ``path``."""
    if path is None:
        return {"points": points, "series": [], "left_out": 0}
    with sawlog.store.open(path, damaged="skip") as reader:
        names = [
            series.column.name
            for series in reader.schema.series
            if not series.column.shape or has_curve(reader, series)
        ]
        own = names[:MOST_SERIES]
        found = series_curves(reader, own, points=points) if own else []
    left_out = len(names) - len(own)
    return {"points": points, "series": [_series(each) for each in found], "left_out": left_out}


def _series(series: SeriesCurves) -> dict[str, Any]:
    return {
        "name": series.name,
        "last": series.last,
        "last_steps": series.last_steps,
        "damage": series.damage,
        "curves": [_curve(each) for each in series.curves],
    }


def _curve(curve: Curve) -> dict[str, Any]:
    said = {
        "axis": curve.axis,
        "x": packed(curve.steps),
        "mean": packed_values(curve.mean),
        "entries": curve.entries,
        "distinct": curve.distinct,
        "nonfinite": curve.nonfinite,
        "first_nonfinite": curve.first_nonfinite,
    }
    if curve.thinned:
        said["least"] = packed_values(curve.least)
        said["greatest"] = packed_values(curve.greatest)
    return said


def arrays_part(path: Path | None) -> dict[str, Any]:
    """Return histograms and images of the arrays that a run logged."""
    if path is None:
        return {"arrays": [], "left_out": 0}
    with sawlog.store.open(path, damaged="skip") as reader:
        columns = [series.column for series in reader.schema.series]
        found = array_histories(reader, limit=MOST_ARRAYS + len(_HIDDEN))
    total = sum(bool(c.shape) and _is_real(c.dtype) and c.name not in _HIDDEN for c in columns)
    shown = [each for each in found if each.name not in _HIDDEN][:MOST_ARRAYS]
    return {"arrays": [_history(each) for each in shown], "left_out": total - len(shown)}


def has_arrays(path: Path | None) -> bool:
    """Return whether a run logged arrays by step; a store that cannot be opened has none."""
    if path is None:
        return False
    try:
        with sawlog.store.open(path, damaged="skip") as reader:
            columns = [series.column for series in reader.schema.series]
    except (SawlogError, OSError):
        return False
    return any(column.shape and column.name not in _HIDDEN for column in columns)


def _history(history: ArrayHistory) -> dict[str, Any]:
    return {
        "name": history.name,
        "type": history.type,
        "total": history.total,
        "edges": history.edges,
        "damage": history.damage,
        "entries": [
            {
                "steps": entry.steps,
                "counts": entry.counts,
                "least": entry.least,
                "mean": entry.mean,
                "greatest": entry.greatest,
                "nonfinite": entry.nonfinite,
                "image": None if entry.image is None else data_uri(entry.image, "image/png"),
            }
            for entry in history.entries
        ],
    }
