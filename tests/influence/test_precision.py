"""Scores are as precise as docs/influence.md promises, whatever computes them."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
import torch  # loaded, and used only where it is asked for

from sawlog._array_device import NUMPY
from sawlog.curvature import Curvature, Diagonal
from sawlog.influence import attribute
from sawlog.influence._scoring_job import ScoringJob
from tests.influence.stores import written

SINGLE, DOUBLE = 1e-5, 1e-12  # of the lengths of what is multiplied


def rows_of(kind, n, elements):
    """Rows whose products are far from 0, or that cancel in them."""
    drawn = np.random.default_rng(n).normal(size=(n, elements))
    if kind == "aligned":
        return 1.001 + 0 * drawn
    if kind == "cancelling":
        return drawn * np.where(np.arange(elements) < elements // 2, 1.0, -1.0) + 100.0
    return drawn


WAYS = {
    "default": {},
    "torch": {"device": "cpu"},
    "jax": {"device": "jax"},
    "small budget": {"budget": 100_000},
    "executor": {"executor": True},
}


@pytest.mark.parametrize(
    ("way", "kind"),
    [(way, "random") for way in WAYS]
    + [(way, kind) for way in ("default", "torch") for kind in ("aligned", "cancelling")],
)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_the_promised_precision(tmp_path, kind, dtype, way):
    rows = {"w": rows_of(kind, 9, 40_000)}
    queries = {"w": rows_of(kind, 2, 40_000)}
    stored = written(tmp_path / "logs", rows, np.arange(9), dtype, each=4)["w"].astype(float)
    eigenvalues = np.random.default_rng(5).uniform(size=40_000)
    curvature = Curvature("diagonal", {"w": Diagonal(eigenvalues)})
    solved = queries["w"] / (eigenvalues + 0.5)
    expected, lengths = solved @ stored.T, np.linalg.norm(stored, axis=1)
    options = {"curvature": curvature, "damping": 0.5, **WAYS[way]}
    if "device" in options and options["device"] == "jax":
        options["device"] = jax.devices()[0]
    with ThreadPoolExecutor(2) as pool:
        if "executor" in options:
            options["executor"] = pool
        found = attribute(tmp_path / "logs", queries, **options)
    off = np.abs(found.values - expected) / (np.linalg.norm(solved, axis=1)[:, None] * lengths)
    assert off.max() < (DOUBLE if dtype == "float64" else SINGLE)


def test_what_is_loaded_does_not_matter(monkeypatch):
    """Torch is: numpy multiplies all the same, unless a device is named."""
    places, plain = [], ScoringJob.run

    def run(work, part, *stop):
        places.append(dataclasses.asdict(work.device))
        return plain(work, part, *stop)

    monkeypatch.setattr(ScoringJob, "run", run)
    for queries in ([[1.0]], np.ones((1, 1)), torch.ones(1, 1)):
        attribute({"w": [[1.0]]}, {"w": queries}, curvature="identity")
    assert places == [dataclasses.asdict(NUMPY)] * 3
    attribute({"w": [[1.0]]}, {"w": [[1.0]]}, curvature="identity", device="cpu")
    assert places[3:] == [{"library": "torch", "device": "cpu"}]
