"""Curvature fitted to stored logs, kept with the run and used again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sawlog import curvature as curvatures
from sawlog.capture import curvature_of, measured_with
from sawlog.curvature import KINDS, Curvature
from sawlog.errors import ArgumentError
from sawlog.influence._logs import BUDGET, Logs
from sawlog.store import Reader

NEEDS_FACTORS = ("kfac", "ekfac")


def curvature_for(logs: Logs, curvature: str | Curvature) -> Curvature:
    """The curvature that was asked for by its kind, fitted to the logs; or that which was given.

    One that is kept with the run is used again, unless the run has more rows by now.

    Raises:
        ArgumentError: an unknown kind, or a statistic is missing; says which stage to run.
    """
    if isinstance(curvature, Curvature):
        return curvature
    if curvature not in KINDS:
        listed = ", ".join(map(repr, KINDS))
        raise ArgumentError(f"curvature is one of {listed}, or a fitted one, got {curvature!r}.")
    if curvature == "identity":
        return curvatures.IDENTITY
    reader = logs.reader
    place = None if reader is None else curvature_of(reader, curvature)
    if place is not None and reader is not None and (kept := _kept(place, reader, logs)):
        return kept
    measured = None if reader is None else measured_with(reader)
    fitted = curvatures.fit(curvature, lambda: logs.scan(BUDGET), measured)
    if place is not None and reader is not None:
        fitted.save(place, {"fitted_to": _state(reader, logs)})
    return fitted


def _state(reader: Reader, logs: Logs) -> Any:
    return [reader.id, len(logs), list(logs.layers)]


def _kept(place: Path, reader: Reader, logs: Logs) -> Curvature | None:
    if not (place / "store.json").exists():
        return None
    found, about = curvatures.load_with_notes(place)
    return found if about.get("fitted_to") == _state(reader, logs) else None
