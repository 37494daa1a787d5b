"""``curvature_spectra``: the eigenvalues of the curvatures that are saved with a run."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np

from sawlog import curvature
from sawlog.errors import SawlogError
from sawlog.inspect._store_folders import stores_under

MOST = 120  # eigenvalues of a layer that are kept


@dataclasses.dataclass(frozen=True)
class LayerSpectrum:
    """The eigenvalues of a layer, greatest first.

    Args:
        name: the layer.
        ranks: the ranks of the eigenvalues that are kept, from 0, evenly spaced on a log scale.
        values: these eigenvalues.
        directions: how many directions there are in all.
        damping: what the default damping adds to each eigenvalue.
    """

    name: str
    ranks: list[int]
    values: list[float]
    directions: int
    damping: float


@dataclasses.dataclass(frozen=True)
class CurvatureSpectrum:
    """A saved curvature: its kind, the examples it was fitted to, and a spectrum for each layer."""

    path: Path
    kind: str
    count: int | None
    layers: list[LayerSpectrum]
    problem: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields in types of JSON."""
        return {**dataclasses.asdict(self), "path": str(self.path)}


def curvature_spectra(run: str | os.PathLike[str]) -> list[CurvatureSpectrum]:
    """Return the spectra of the curvatures that are saved with the run at ``run``."""
    found = []
    for path in stores_under(Path(run) / "curvature"):
        try:
            fitted = curvature.load(path)
        except (SawlogError, OSError) as error:
            problem = str(error).partition(" Hint:")[0]
            found.append(CurvatureSpectrum(path, path.name, None, [], problem))
            continue
        layers = [_spectrum(name, fitted, layer) for name, layer in fitted.layers.items()]
        found.append(CurvatureSpectrum(path, fitted.kind, fitted.count, layers))
    return found


def _spectrum(name: str, fitted: curvature.Curvature, layer: curvature.Layer) -> LayerSpectrum:
    values = np.sort(np.asarray(layer.values, np.float64).reshape(-1))[::-1]
    total = len(values) + layer.outside
    ranks = np.unique(np.geomspace(1, max(1, len(values)), MOST).astype(int)) - 1
    kept = values[ranks].tolist() if len(values) else []
    return LayerSpectrum(name, ranks[: len(kept)].tolist(), kept, total, fitted.added(name))
