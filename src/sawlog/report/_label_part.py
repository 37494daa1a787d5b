"""The part of the page about likely label errors: examples ranked by self-influence."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from sawlog import curvature, store
from sawlog.curvature import Curvature
from sawlog.errors import SawlogError
from sawlog.example_data import ExampleData
from sawlog.influence import Logs, Ranking, label_errors
from sawlog.inspect._store_folders import stores_under
from sawlog.report._encode import example_json, histogram, listed, overall
from sawlog.run_files._folders import measured_with

LISTED = 200
MOST_ELEMENTS = 400_000_000  # examples times stored numbers; beyond, nothing is computed


def label_part(rows: Path, data: ExampleData | None, *, fit: bool) -> dict[str, Any]:
    """Return the ranking of the examples of a store of rows, most suspicious first.

    Args:
        rows: the store of rows.
        data: the described examples.
        fit: whether a curvature may be fitted and saved with the run. Otherwise one that is saved
            is used, or none.
    """
    with store.open(rows) as reader:
        logs = Logs(reader)
        size = len(logs) * logs.elements
        if size > MOST_ELEMENTS:
            return {
                "problem": f"{len(logs):,} examples with {logs.elements:,} numbers each are too "
                "many to rank for a page. `sawlog self-influence` ranks them."
            }
        kind, fitted = _chosen(logs, reader, fit)
        ranking = label_errors(logs, curvature=fitted, nonfinite="keep")
    return _said(ranking, kind, data)


def _chosen(logs: Logs, reader: store.Reader, fit: bool) -> tuple[str, str | Curvature]:
    """Return EK-FAC if it is saved or can be fitted, then other saved kinds, then identity."""
    if fit and measured_with(reader) is not None:
        return "ekfac", "ekfac"
    own = reader.path.parent.parent / "curvature"
    saved = [path for path in stores_under(own) if path.parent.name == reader.path.name]
    for path in sorted(saved, key=lambda each: each.name != "ekfac"):
        with contextlib.suppress(SawlogError, OSError):
            found = curvature.load(path)
            if set(logs.layers) <= set(found.layers):
                return found.kind, found
    return "identity", "identity"


def _said(ranking: Ranking, kind: str, data: ExampleData | None) -> dict[str, Any]:
    ids = listed(ranking.ids)
    first = ids[:LISTED]
    known = {} if data is None else data.get(first)
    return {
        "curvature": kind,
        "examples": len(ranking),
        "histogram": histogram(ranking.values),
        "rows": [
            {"id": each, "score": float(value)}
            for each, value in zip(first, ranking.values[:LISTED], strict=False)
        ],
        "data": {str(each): example_json(example) for each, example in known.items()},
        "overall": overall(ranking.ids, ranking.values),
    }


def checked_label_part(rows: Path, data: ExampleData | None, *, fit: bool) -> dict[str, Any]:
    """Return :func:`label_part`, or why it cannot be computed."""
    try:
        return label_part(rows, data, fit=fit)
    except (SawlogError, OSError) as error:
        return {"problem": str(error)}
