"""Curvature fitted to stored logs, saved with the run and reused."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from sawlog import curvature as curvatures
from sawlog._array_device import NUMPY, ArrayDevice
from sawlog._validate import one_of
from sawlog.curvature import KINDS, Curvature, needs_factors
from sawlog.errors import ArgumentError, StoreError, StorePermissionError, UnknownNameError
from sawlog.influence._engines import agreed, as_executor, leads
from sawlog.influence._fitting import Fitting
from sawlog.influence._logs import BUDGET, Logs
from sawlog.run_files._folders import curvature_of, measured_with
from sawlog.run_files._measured import Measured
from sawlog.run_files._provenance import Provenance, check_same_weights


def curvature_for(
    logs: Logs,
    curvature: str | Curvature,
    *,
    budget: int = BUDGET,
    device: ArrayDevice = NUMPY,
    weights: str = "same",
    executor: Any = None,
) -> Curvature:
    """Return the curvature of a kind, fitted to the logs; return a given curvature unchanged.

    A curvature that was saved with the run is reused unless its rows or statistics have changed.

    Args:
        logs: the rows.
        curvature: one of :data:`sawlog.curvature.KINDS`, or a fitted curvature.
        budget: approximate bytes of memory to use besides the result.
        device: where sums over rows are computed.
        weights: as for :func:`attribute`.
        executor: as for :func:`attribute`; its workers add up the rows of files in parallel.

    Raises:
        ArgumentError: the kind is unknown, or a statistic is missing; says which stage to run.
        WeightsMismatchError: rows and statistics, or rows and the given curvature, come from
            different weights of the model, unless ``weights="any"``.
    """
    if isinstance(curvature, Curvature):
        if weights == "same":
            _check_given(logs, curvature)
        return curvature
    one_of("curvature", curvature, KINDS, or_else="a fitted Curvature")
    if curvature == "identity":
        return curvatures.IDENTITY
    reader = logs.reader
    folder = None if reader is None else curvature_of(reader, curvature)
    measured = None
    if reader is not None and needs_factors(curvature):
        measured = measured_with(reader)
    if weights == "same":
        check_statistics(logs, measured)
    fitting = Fitting(curvature, measured, budget, device, as_executor(executor))
    if folder is None:
        return Curvature(curvature, fitting.layers(logs), None, len(logs), _provenance(logs))
    return _load_or_fit(folder, logs, fitting)


def _check_given(logs: Logs, curvature: Curvature) -> None:
    theirs = tuple(map(Provenance.from_json, curvature.provenance))
    where = "" if logs.path is None else f" at {logs.path}"
    hint = 'Hint: compute it with the checkpoint of the rows; weights="any" uses it anyway.'
    what = f"the curvature {curvature.kind!r}"
    check_same_weights(logs.provenance, theirs, f"the rows{where}", what, hint)


def check_statistics(logs: Logs, measured: Measured | None) -> None:
    """Raise a WeightsMismatchError if rows and statistics come from different weights."""
    theirs = () if measured is None else measured.provenance
    where = "" if logs.path is None else f" at {logs.path}"
    hint = (
        "Hint: log rows and statistics with the same checkpoint, one project for each; "
        'weights="any" uses them anyway.'
    )
    check_same_weights(logs.provenance, theirs, f"the rows{where}", "the statistics of K-FAC", hint)


def _load_or_fit(folder: Path, logs: Logs, fitting: Fitting) -> Curvature:
    """Load the layers whose rows and statistics are unchanged; fit and save the others."""
    kind, measured, executor = fitting.kind, fitting.measured, fitting.executor
    saved, notes = agreed(executor, functools.partial(_load, folder))
    rows, factors = logs.state(), notes.get("factors", {})
    valid = {
        name: layer
        for name, layer in saved.layers.items()
        if notes.get("rows") == rows and factors.get(name) == _hash_of_factors(name, measured)
    }
    missing = [name for name in logs.layers if name not in valid]
    if missing:
        valid |= fitting.layers(Logs(logs, names=missing))
        hashes = {name: _hash_of_factors(name, measured) for name in valid}
        if leads(executor):
            notes = {"rows": rows, "factors": hashes}
            _save(Curvature(kind, valid, count=len(logs)), folder, notes)
    if lacking := [name for name in logs.layers if name not in valid]:
        where = "" if logs.path is None else f" at {logs.path}"
        raise ArgumentError(
            f"The run of the rows{where} has neither rows nor statistics of {lacking[0]!r}, so "
            f"{kind!r} cannot be fitted to it. "
            'Hint: leave it out, or pass curvature="identity".'
        )
    layers = {name: valid[name] for name in logs.layers}
    return Curvature(kind, layers, None, len(logs), _provenance(logs))


def _provenance(logs: Logs) -> list[dict[str, Any]]:
    """Return the provenance of logs in the form that a curvature stores."""
    return [each.to_json() for each in logs.provenance]


def _load(folder: Path) -> tuple[Curvature, dict[str, Any]]:
    with contextlib.suppress(StoreError):  # missing, damaged, or being replaced
        return curvatures.load_with_notes(folder)
    return Curvature("none", {}), {}


def _save(fitted: Curvature, folder: Path, notes: dict[str, Any]) -> None:
    with contextlib.suppress(StorePermissionError):  # a read-only run is fitted again next time
        fitted.save(folder, notes)


def _hash_of_factors(name: str, measured: Measured | None) -> str:
    """Return a hash of the Kronecker factors of a layer; ``""`` if there are none."""
    if measured is None:
        return ""
    digest = hashlib.blake2b(digest_size=12)
    try:
        for factor in measured.kfac(name):
            digest.update(np.ascontiguousarray(factor).tobytes())
    except UnknownNameError:
        return ""
    return digest.hexdigest()
