"""Curvature fitted to stored logs, kept with the run and used again."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sawlog import curvature as curvatures
from sawlog._array_device import NUMPY, ArrayDevice
from sawlog.capture import Measured, Provenance, check_same_weights, curvature_of, measured_with
from sawlog.curvature import KINDS, Curvature
from sawlog.errors import ArgumentError, StoreError, StorePermissionError, UnknownNameError
from sawlog.influence._logs import BUDGET, Logs

NEEDS_FACTORS = ("kfac", "ekfac")


def curvature_for(
    logs: Logs,
    curvature: str | Curvature,
    *,
    budget: int = BUDGET,
    place: ArrayDevice = NUMPY,
    weights: str = "same",
) -> Curvature:
    """The curvature that was asked for by its kind, fitted to the logs; or that which was given.

    One that is kept with the run is used again, unless rows or statistics of the run are others
    by now.

    Raises:
        ArgumentError: an unknown kind, or a statistic is missing; says which stage to run.
        WeightsMismatchError: rows, and statistics or a curvature that was given, come from
            different weights of the model, unless ``weights="any"``.
    """
    if isinstance(curvature, Curvature):
        if weights == "same":
            _check_given(logs, curvature)
        return curvature
    if curvature not in KINDS:
        listed = ", ".join(map(repr, KINDS))
        raise ArgumentError(f"curvature is one of {listed}, or a fitted one, got {curvature!r}.")
    if curvature == "identity":
        return curvatures.IDENTITY
    reader = logs.reader
    folder = None if reader is None else curvature_of(reader, curvature)
    measured = None
    if reader is not None and curvature in NEEDS_FACTORS:
        measured = measured_with(reader)
    if weights == "same":
        _check_weights(logs, measured)
    if folder is None:
        fitted = curvatures.fit(
            curvature, lambda: logs.scan(budget, place), measured, count=len(logs)
        )
        return Curvature(fitted.kind, fitted.layers, fitted.joint, fitted.count, _said(logs))
    return _kept_or_fitted(folder, curvature, logs, measured, lambda some: some.scan(budget, place))


def _check_given(logs: Logs, curvature: Curvature) -> None:
    there = tuple(map(Provenance.from_json, curvature.provenance))
    where = "" if logs.path is None else f" at {logs.path}"
    hint = 'Hint: compute it with the checkpoint of the rows; weights="any" goes on knowingly.'
    what = f"the curvature {curvature.kind!r}"
    check_same_weights(logs.provenance, there, f"the rows{where}", what, hint)


def _check_weights(logs: Logs, measured: Measured | None) -> None:
    there = () if measured is None else measured.provenance
    where = "" if logs.path is None else f" at {logs.path}"
    hint = (
        "Hint: log rows and statistics with the same checkpoint, one project for each; "
        'weights="any" goes on knowingly.'
    )
    check_same_weights(logs.provenance, there, f"the rows{where}", "the statistics of K-FAC", hint)


def _kept_or_fitted(
    folder: Path,
    kind: str,
    logs: Logs,
    measured: Measured | None,
    scan: Callable[[Logs], Iterator[Mapping[str, Any]]],
) -> Curvature:
    """Layers that are kept, and the others fitted and kept from now on."""
    kept, about = _kept(folder)
    rows, factors = logs.state(), about.get("factors", {})
    there = {
        name: layer
        for name, layer in kept.layers.items()
        if about.get("rows") == rows and factors.get(name) == _factors(name, measured)
    }
    lacking = [name for name in logs.layers if name not in there]
    if lacking:
        some = Logs(logs, names=lacking)
        there |= curvatures.fit(kind, lambda: scan(some), measured, count=len(logs)).layers
        notes = {"rows": rows, "factors": {name: _factors(name, measured) for name in there}}
        _keep(Curvature(kind, there, count=len(logs)), folder, notes)
    layers = {name: there[name] for name in logs.layers}
    return Curvature(kind, layers, None, len(logs), _said(logs))


def _said(logs: Logs) -> list[dict[str, Any]]:
    """What logs were computed with, as a curvature of theirs has it."""
    return [each.to_json() for each in logs.provenance]


def _kept(folder: Path) -> tuple[Curvature, dict[str, Any]]:
    with contextlib.suppress(StoreError):  # none, or damaged, or just being replaced
        return curvatures.load_with_notes(folder)
    return Curvature("none", {}), {}


def _keep(fitted: Curvature, folder: Path, notes: dict[str, Any]) -> None:
    with contextlib.suppress(StorePermissionError):  # then the next one fits it again
        fitted.save(folder, notes)


def _factors(name: str, measured: Measured | None) -> str:
    """A name for what was measured of a layer, which changes with any of it."""
    if measured is None:
        return ""
    digest = hashlib.blake2b(digest_size=12)
    try:
        for factor in measured.kfac(name):
            digest.update(np.ascontiguousarray(factor).tobytes())
    except UnknownNameError:
        return ""
    return digest.hexdigest()
